// From rows of GGUF blocks to panels. The values and float16 parts are moved, never recomputed.
#include <string.h>

#include "matrix.h"

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static size_t value_bytes(int encoding, int64_t panels, int64_t columns) {
    const size_t panel = bits_of(encoding) ? (size_t)(columns / GROUP) * (size_t)group_bytes(encoding)
                                           : (size_t)columns * PANEL * (size_t)plain_bytes(encoding);
    return whole_lines((size_t)panels * panel);
}

static size_t scale_bytes(int encoding, int64_t panels, int64_t columns) {
    if (!bits_of(encoding)) return 0;
    const int64_t blocks = columns / (is_super(encoding) ? SUPER : GROUP);
    return whole_lines((size_t)(panels * blocks) * PANEL * sizeof(uint16_t));
}

static size_t fine_bytes(int encoding, int64_t panels, int64_t columns) {
    return is_super(encoding) ? whole_lines((size_t)(panels * (columns / GROUP)) * 2 * PANEL) : 0;
}

size_t packed_bytes(int encoding, int64_t rows, int64_t columns) {
    const int64_t panels = (rows + PANEL - 1) / PANEL;
    return value_bytes(encoding, panels, columns) +
           scale_bytes(encoding, panels, columns) * (has_offsets(encoding) ? 2 : 1) +
           fine_bytes(encoding, panels, columns);
}

Matrix packed_matrix(int encoding, int rows, int columns, uint8_t *memory) {
    Matrix matrix = {.encoding = encoding, .rows = rows, .columns = columns, .panels = (rows + PANEL - 1) / PANEL};
    const size_t scales = scale_bytes(encoding, matrix.panels, columns);
    matrix.values = memory;
    memory += value_bytes(encoding, matrix.panels, columns);
    if (bits_of(encoding)) {
        matrix.scales = (const uint16_t *)(void *)memory;
        memory += scales;
    }
    if (has_offsets(encoding)) {
        matrix.offsets = (const uint16_t *)(void *)memory;
        memory += scales;
    }
    if (is_super(encoding)) matrix.fine = memory;
    return matrix;
}

// Four columns of one row at a time, as the four bytes of a word: what is done to each byte is the same in any byte order.
static uint32_t quad_of(const uint8_t *values, int quad) {
    uint32_t word;
    memcpy(&word, values + 4 * quad, sizeof word);
    return word;
}

static void put_quad(uint8_t *line, int row, uint32_t word) { memcpy(line + 4 * row, &word, sizeof word); }

// One group of 32 values of one row into its place among the other 15 rows of the panel.
static void place_group(int bits, const uint8_t *values, int row, uint8_t *group) {
    if (bits == 8) {
        for (int quad = 0; quad < 8; quad++) put_quad(group + 64 * quad, row, quad_of(values, quad));
        return;
    }
    uint32_t high[2] = {0, 0};
    for (int pair = 0; pair < 4; pair++) {
        const uint32_t first = quad_of(values, 2 * pair), second = quad_of(values, 2 * pair + 1);
        put_quad(group + 64 * pair, row, (first & 0x0F0F0F0Fu) | (second & 0x0F0F0F0Fu) << 4);
        if (bits == 5) {
            high[0] |= (first >> 4 & 0x01010101u) << 2 * pair | (second >> 4 & 0x01010101u) << (2 * pair + 1);
        } else if (bits == 6) {
            const int at = 4 * (pair & 1);
            high[pair / 2] |= (first >> 4 & 0x03030303u) << at | (second >> 4 & 0x03030303u) << (at + 2);
        }
    }
    if (bits > 4) put_quad(group + 256, row, high[0]);
    if (bits == 6) put_quad(group + 320, row, high[1]);
}

static void place_fine(const Matrix *matrix, const Block *block, int row, uint8_t *fine) {
    for (int group = 0; group < SUPER / GROUP; group++, fine += 2 * PANEL) {
        const int q6 = matrix->encoding == Q6_K;
        fine[row] = block->fine[0][q6 ? 2 * group : group];
        fine[PANEL + row] = q6 ? block->fine[0][2 * group + 1] : block->fine[1][group];
    }
}

static void place_row(const Matrix *matrix, const uint8_t *source, int panel, int row) {
    const int encoding = matrix->encoding, groups = matrix->columns / GROUP, size = block_values(encoding);
    const int blocks = matrix->columns / size;
    uint8_t *values = (uint8_t *)matrix->values + (size_t)panel * (size_t)groups * (size_t)group_bytes(encoding);
    Block block;
    for (int number = 0; number < blocks; number++, source += block_bytes(encoding)) {
        read_block(encoding, source, &block);
        const size_t at = ((size_t)panel * (size_t)blocks + (size_t)number) * PANEL + (size_t)row;
        ((uint16_t *)matrix->scales)[at] = block.scale;
        if (matrix->offsets) ((uint16_t *)matrix->offsets)[at] = block.offset;
        if (matrix->fine)
            place_fine(matrix, &block, row,
                       (uint8_t *)matrix->fine + ((size_t)panel * (size_t)groups + (size_t)number * 8) * 2 * PANEL);
        for (int group = 0; group < size / GROUP; group++)
            place_group(bits_of(encoding), block.values + GROUP * group, row,
                        values + (size_t)(number * (size / GROUP) + group) * (size_t)group_bytes(encoding));
    }
}

static void place_plain(const Matrix *matrix, const uint8_t *source, int panel, int row) {
    const size_t bytes = (size_t)plain_bytes(matrix->encoding), columns = (size_t)matrix->columns;
    uint8_t *values = (uint8_t *)matrix->values + (size_t)panel * columns * PANEL * bytes;
    for (size_t column = 0; column < columns; column++)
        memcpy(values + (column * PANEL + (size_t)row) * bytes, source + column * bytes, bytes);
}

// Rows that pad the last panel are zeros.
static void clear_panel(const Matrix *matrix, int panel) {
    const int encoding = matrix->encoding;
    const size_t columns = (size_t)matrix->columns, at = (size_t)panel;
    if (!bits_of(encoding)) {
        const size_t bytes = columns * PANEL * (size_t)plain_bytes(encoding);
        memset((uint8_t *)matrix->values + at * bytes, 0, bytes);
        return;
    }
    const size_t bytes = columns / GROUP * (size_t)group_bytes(encoding);
    const size_t halves = columns / (size_t)block_values(encoding) * PANEL, fine = columns / GROUP * 2 * PANEL;
    memset((uint8_t *)matrix->values + at * bytes, 0, bytes);
    memset((uint16_t *)matrix->scales + at * halves, 0, halves * sizeof(uint16_t));
    if (matrix->offsets) memset((uint16_t *)matrix->offsets + at * halves, 0, halves * sizeof(uint16_t));
    if (matrix->fine) memset((uint8_t *)matrix->fine + at * fine, 0, fine);
}

void pack_panels(const Matrix *matrix, const uint8_t *source, size_t row_bytes, int first, int last) {
    for (int panel = first; panel < last; panel++) {
        if ((panel + 1) * PANEL > matrix->rows) clear_panel(matrix, panel);
        for (int row = 0; row < PANEL && panel * PANEL + row < matrix->rows; row++) {
            const uint8_t *from = source + (size_t)(panel * PANEL + row) * row_bytes;
            if (bits_of(matrix->encoding)) place_row(matrix, from, panel, row);
            else place_plain(matrix, from, panel, row);
        }
    }
}
