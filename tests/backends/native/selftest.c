// Runs the kernels and whole steps over memory that is exactly as large as promised; built with sanitizers by
// test_sanitizers.py. Results are compared with the scalar kernels.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

static unsigned seed = 1;
static unsigned next(void) { return seed = seed * 1664525u + 1013904223u, seed >> 8; }
static float uniform(void) { return (float)(next() % 2001) / 1000.0f - 1.0f; }

static void check(int good, const char *what) {
    if (good) return;
    printf("failed: %s\n", what);
    exit(1);
}

static float *floats(size_t count) {
    float *values = malloc(count * sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = uniform();
    return values;
}

// Random bytes, with small float16 scales where blocks have them.
static uint8_t *random_rows(int encoding, int rows, int columns) {
    const int size = block_bytes(encoding), blocks = columns / block_values(encoding) * rows;
    uint8_t *data = malloc((size_t)blocks * (size_t)size);
    for (int i = 0; i < blocks * size; i++) data[i] = (uint8_t)next();
    for (int block = 0; block < blocks; block++) {
        uint8_t *at = data + block * size;
        const uint16_t half = 0x2000 + next() % 256;
        if (!bits_of(encoding)) {
            const float value = uniform();
            uint32_t bits;
            memcpy(&bits, &value, 4);
            if (encoding == F32) memcpy(at, &bits, 4);
            else memcpy(at, encoding == F16 ? (const void *)&half : (const uint8_t *)&bits + 2, 2);
            continue;
        }
        memcpy(at + (encoding == Q6_K ? 208 : 0), &half, 2);
        if (has_offsets(encoding)) memcpy(at + 2, &half, 2);
    }
    return data;
}

static Matrix make_matrix(int encoding, int rows, int columns) {
    uint8_t *data = random_rows(encoding, rows, columns);
    uint8_t *memory = aligned_alloc(64, packed_bytes(encoding, rows, columns));
    const Matrix matrix = packed_matrix(encoding, rows, columns, memory);
    pack_panels(&matrix, data, (size_t)(columns / block_values(encoding) * block_bytes(encoding)), 0, matrix.panels);
    free(data);
    return matrix;
}

static void products(const Kernels *kernels, int encoding, int rows, int width, int columns, int fine) {
    const Matrix matrix = make_matrix(encoding, width, columns);
    const size_t count = (size_t)rows * (size_t)columns;
    float *x = floats(count), *out[2];
    for (int which = 0; which < 2; which++) {
        const Kernels *k = which ? kernels : &kernels_scalar;
        const int lanes = lanes_of(rows);
        const size_t room = (size_t)((rows + lanes - 1) / lanes * lanes) * (size_t)columns;
        Activations a = {columns, lanes, malloc(room), fine ? malloc(room) : NULL, malloc(room / 8), malloc(room / 8),
                         malloc(room / 4)};
        for (int row = 0; row < rows && bits_of(encoding); row++)
            k->quantise(x + (size_t)row * (size_t)columns, columns, &a, row, 0);
        out[which] = calloc((size_t)(rows * width), sizeof(float));
        const Product product = {.quantised = &a, .plain = x, .rows = rows, .out = out[which], .out_stride = (size_t)width};
        k->multiply(&matrix, 0, matrix.panels, &product);
        free(a.values), free(a.fine), free(a.scales), free(a.sums), free(a.halves);
    }
    for (int i = 0; i < rows * width; i++) {
        const float wanted = out[0][i], found = out[1][i];
        check(fabsf(wanted - found) <= 1e-3f * (1.0f + fabsf(wanted)), kernels->name);
    }
    free(out[0]), free(out[1]), free(x), free((void *)matrix.values);
}

// A head's values into the cache's 8 bits, in memory that is exactly as large as they are.
static void heads(const Kernels *kernels, int size) {
    const size_t groups = (size_t)(size + KV_GROUP - 1) / KV_GROUP;
    float *x = floats((size_t)size);
    for (int spread = 0; spread < 2; spread++) {
        int8_t *values[2];
        uint16_t *scales[2];
        for (int which = 0; which < 2; which++) {
            values[which] = malloc((size_t)size);
            scales[which] = malloc(groups * sizeof(uint16_t));
            (which ? kernels : &kernels_scalar)->pack_head(x, size, spread, values[which], scales[which]);
        }
        for (int i = 0; i < size; i++) check(abs(values[0][i] - values[1][i]) <= 2, "a head in 8 bits");
        free(values[0]), free(values[1]), free(scales[0]), free(scales[1]);
    }
    free(x);
}

// A whole model of one layer, whose program uses every operation.
static void steps(const Kernels *kernels, int workers, int kv_format, float *logits) {
    enum { HIDDEN = 64, HEADS = 4, KV = 2, HEAD = 16, FFN = 96, VOCAB = 53, BLOCK = 4, BLOCKS = 100, LONG = 264 };
    seed = 7;
    Matrix m[7] = {make_matrix(Q4_1, 64, 64), make_matrix(Q8_0, 32, 64), make_matrix(Q5_0, 32, 64), make_matrix(Q4_0, 64, 64),
                   make_matrix(Q5_1, 192, 64), make_matrix(F16, 64, 96), make_matrix(Q8_0, VOCAB, 64)};
    float *norm = floats(HIDDEN), *frequencies = floats(HEAD / 2);
    uint8_t *table = random_rows(Q8_0, VOCAB, HIDDEN);
    const Op ops[] = {
        {EMBED, 0, 0, 0, 4, 0, NULL, NULL, NULL},        {NORM, 0, 1, 0, 13, 0, NULL, norm, NULL},
        {MULTIPLY, 1, 2, 0, 8, 0, &m[0], NULL, NULL},    {MULTIPLY, 1, 2, 64, 8, 0, &m[1], NULL, NULL},
        {MULTIPLY, 1, 2, 96, 12, 0, &m[2], norm, NULL},   {ROTATE, 2, 2, 0, 4, 0, NULL, norm, norm},
        {ATTEND, 2, 3, 0, 4, 0, NULL, NULL, NULL},       {MERGE, 2, 3, 0, 4, 0, NULL, NULL, NULL},
        {SELECT, 0, 3, 0, 4, 0, NULL, NULL, NULL},       {QUANTISE, 3, 3, 0, 4, 0, NULL, NULL, NULL},
        {MULTIPLY, 3, 0, 0, 6, 0, &m[3], NULL, NULL},    {NORM, 0, 1, 0, 5, 0, NULL, norm, NULL},
        {MULTIPLY, 1, 4, 0, 4, 0, &m[4], NULL, NULL},    {GATE, 4, 5, 0, 4, 0, NULL, NULL, NULL},
        {MULTIPLY, 5, 0, 0, 6, 0, &m[5], NULL, NULL},    {NORM, 0, 1, 0, 5, 0, NULL, norm, NULL},
        {MULTIPLY, 1, LOGITS, 0, 4, 0, &m[6], NULL, NULL},
    };
    const int32_t widths[] = {64, 64, 128, 64, 192, 96};
    const Plan plan = {.hidden = HIDDEN, .heads = HEADS, .kv_heads = KV, .head_size = HEAD, .rope_dims = HEAD, .vocab = VOCAB,
                       .context = 2000, .table_encoding = Q8_0, .eps = 1e-5f, .rope_scale = 1, .frequencies = frequencies,
                       .table = table, .table_row_bytes = 68, .op_count = (int)(sizeof ops / sizeof *ops),
                       .buffer_count = 6, .widest = 96, .ops = ops, .widths = widths};
    Pool *pool = pool_new(workers);
    Model *model = model_new(&plan, kernels, pool);
    check(pool && model, "a model");
    const size_t block = cache_block_bytes(&plan, BLOCK, kv_format);
    const Cache cache = {calloc(BLOCKS, block), BLOCKS, BLOCK, kv_format, 1};
    model_set_cache(model, &cache);
    int32_t tables[2 * BLOCKS], tokens[LONG + 1];
    for (int i = 0; i < 2 * BLOCKS; i++) tables[i] = i < LONG / BLOCK + 1 ? i * 7 % BLOCKS : BLOCKS - 1;
    for (int i = 0; i <= LONG; i++) tokens[i] = (int32_t)(next() % VOCAB);
    const int first = LONG / BLOCK + 1;
    const Part prompt[] = {{LONG, 0, first, 0}};
    Batch batch = {1, LONG, prompt, tokens, tables, logits};
    check(model_step(model, &batch).fault == FINE, "a prompt");
    const Part mixed[] = {{1, LONG, first, 1}, {3, 0, 1, 2}};
    batch = (Batch){2, 4, mixed, tokens, tables, logits};
    for (int i = 0; i < 20; i++) check(model_step(model, &batch).fault == FINE, "a mixed step");
    tables[3] = BLOCKS;
    check(model_step(model, &batch).fault == BAD_BLOCK, "a block outside");
    tokens[0] = VOCAB;
    check(model_step(model, &batch).fault == BAD_TOKEN, "a token outside");
    model_free(model);
    pool_free(pool);
    for (int i = 0; i < 7; i++) free((void *)m[i].values);
    free(cache.memory), free(norm), free(frequencies), free(table);
}

int main(void) {
    float reference[3 * 53], *logits = malloc(3 * 53 * sizeof(float));
    for (int kv_format = KV_F32; kv_format <= KV_INT8; kv_format++) {
        steps(&kernels_scalar, 1, kv_format, reference);
        for (int n = 0; kernels_at(n); n++)
            for (int workers = 1; workers <= 3; workers += 2) {
                if (kernels_at(n) == &kernels_scalar && workers == 1) continue;  // the reference is just that
                steps(kernels_at(n), workers, kv_format, logits);
                for (int i = 0; i < 3 * 53; i++)
                    check(fabsf(logits[i] - reference[i]) <= 0.05f * (1.0f + fabsf(reference[i])), "the logits of a step");
            }
    }
    for (int n = 0; kernels_at(n); n++) {
        heads(kernels_at(n), 16), heads(kernels_at(n), 80), heads(kernels_at(n), HEAD_MOST);
        for (int encoding = 0; encoding < ENCODINGS; encoding++) {
            products(kernels_at(n), encoding, 15, 19, 512, 0);
            products(kernels_at(n), encoding, 3, 16, 256, 1);
            products(kernels_at(n), encoding, 37, 35, 768, 1);
        }
    }
    free(logits);
    printf("passed on %s\n", kernels_at(0)->name);
    return 0;
}
