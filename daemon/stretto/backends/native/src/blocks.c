// GGUF blocks, read one at a time. The layouts are described in stretto/weights/blocks.py.
#include <string.h>

#include "matrix.h"

static const struct { int16_t values, bytes; } SIZES[ENCODINGS] = {
    [F32] = {1, 4},     [F16] = {1, 2},     [BF16] = {1, 2},     [Q8_0] = {32, 34},   [Q4_0] = {32, 18}, [Q4_1] = {32, 20},
    [Q5_0] = {32, 22},  [Q5_1] = {32, 24},  [Q4_K] = {256, 144}, [Q5_K] = {256, 176}, [Q6_K] = {256, 210},
};

int block_values(int encoding) { return SIZES[encoding].values; }
int block_bytes(int encoding) { return SIZES[encoding].bytes; }

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, fraction = half & 0x3FFu;
    if (exponent == 31) return from_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float tiny = (float)fraction * (1.0f / 16777216.0f);  // subnormal: fraction * 2^-24
    return sign ? -tiny : tiny;
}

static uint16_t read_half(const uint8_t *bytes) { return (uint16_t)(bytes[0] | bytes[1] << 8); }

// `count` bytes, a multiple of 8: their low halves, then their high ones.
static void read_nibbles(const uint8_t *packed, int count, uint8_t *values) {
    for (int i = 0; i < count; i += 8) {
        uint64_t word;
        memcpy(&word, packed + i, sizeof word);
        const uint64_t low = word & 0x0F0F0F0F0F0F0F0Fu, high = word >> 4 & 0x0F0F0F0F0F0F0F0Fu;
        memcpy(values + i, &low, sizeof low);
        memcpy(values + i + count, &high, sizeof high);
    }
}

static void read_fifth_bits(const uint8_t *bits, uint8_t *values) {
    for (int i = 0; i < 32; i++) values[i] |= (uint8_t)((bits[i / 8] >> (i % 8) & 1) << 4);
}

// 6-bit scales and minima of 8 groups in 12 bytes.
static void read_fine(const uint8_t *bytes, Block *block) {
    for (int i = 0; i < 4; i++) {
        block->fine[0][i] = bytes[i] & 63;
        block->fine[1][i] = bytes[i + 4] & 63;
        block->fine[0][i + 4] = (uint8_t)((bytes[i + 8] & 15) | (bytes[i] >> 2 & 48));
        block->fine[1][i + 4] = (uint8_t)(bytes[i + 8] >> 4 | (bytes[i + 4] >> 2 & 48));
    }
}

static void read_k45(const uint8_t *bytes, int fifth, Block *block) {
    block->scale = read_half(bytes);
    block->offset = read_half(bytes + 2);
    read_fine(bytes + 4, block);
    const uint8_t *packed = bytes + (fifth ? 48 : 16);
    for (int part = 0; part < 4; part++) read_nibbles(packed + 32 * part, 32, block->values + 64 * part);
    if (!fifth) return;
    for (int group = 0; group < 8; group++)
        for (int i = 0; i < 32; i++)
            block->values[32 * group + i] |= (uint8_t)((bytes[16 + i] >> group & 1) << 4);
}

static void read_q6_k(const uint8_t *bytes, Block *block) {
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = bytes + 64 * half, *high = bytes + 128 + 32 * half;
        for (int i = 0; i < 32; i++)
            for (int quarter = 0; quarter < 4; quarter++) {
                const int nibble = low[i + 32 * (quarter & 1)] >> (quarter & 2 ? 4 : 0) & 15;
                block->values[128 * half + 32 * quarter + i] = (uint8_t)(nibble | (high[i] >> 2 * quarter & 3) << 4);
            }
    }
    memcpy(block->fine[0], bytes + 192, 16);
    block->scale = read_half(bytes + 208);
}

void read_block(int encoding, const uint8_t *bytes, Block *block) {
    block->offset = 0;
    block->scale = read_half(bytes);
    switch (encoding) {
    case Q8_0: memcpy(block->values, bytes + 2, 32); break;
    case Q4_0: read_nibbles(bytes + 2, 16, block->values); break;
    case Q4_1:
        block->offset = read_half(bytes + 2);
        read_nibbles(bytes + 4, 16, block->values);
        break;
    case Q5_0:
        read_nibbles(bytes + 6, 16, block->values);
        read_fifth_bits(bytes + 2, block->values);
        break;
    case Q5_1:
        block->offset = read_half(bytes + 2);
        read_nibbles(bytes + 8, 16, block->values);
        read_fifth_bits(bytes + 4, block->values);
        break;
    case Q4_K: read_k45(bytes, 0, block); break;
    case Q5_K: read_k45(bytes, 1, block); break;
    case Q6_K: read_q6_k(bytes, block); break;
    default: break;
    }
}

static void dequantise_block(int encoding, const Block *block, float *out) {
    const float scale = half_to_float(block->scale), offset = half_to_float(block->offset);
    const int zero = encoding == Q4_0 ? 8 : encoding == Q5_0 ? 16 : encoding == Q6_K ? 32 : 0;
    for (int i = 0; i < SIZES[encoding].values; i++) {
        const int value = encoding == Q8_0 ? (int8_t)block->values[i] : block->values[i] - zero;
        float fine = 1.0f, minimum = -offset;
        if (encoding == Q6_K) fine = (int8_t)block->fine[0][i / 16];
        if (encoding == Q4_K || encoding == Q5_K) {
            fine = block->fine[0][i / 32];
            minimum = offset * block->fine[1][i / 32];
        }
        out[i] = scale * fine * (float)value - minimum;
    }
}

static void dequantise_plain(int encoding, const uint8_t *row, int columns, float *out) {
    if (encoding == F32) {
        memcpy(out, row, sizeof(float) * (size_t)columns);
        return;
    }
    for (int i = 0; i < columns; i++) {
        const uint16_t bits = read_half(row + 2 * i);
        out[i] = encoding == F16 ? half_to_float(bits) : from_bits((uint32_t)bits << 16);
    }
}

void dequantise_row(int encoding, const uint8_t *row, int columns, float *out) {
    if (!bits_of(encoding)) {
        dequantise_plain(encoding, row, columns, out);
        return;
    }
    Block block;
    for (int column = 0; column < columns; column += SIZES[encoding].values, row += SIZES[encoding].bytes) {
        read_block(encoding, row, &block);
        dequantise_block(encoding, &block, out + column);
    }
}
