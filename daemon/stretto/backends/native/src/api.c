// What the library exports, for ctypes. Structures cross by pointer; their layouts are mirrored in library.py, which
// compares the sizes that `stretto_sizes` gives.
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "state.h"

#define API __attribute__((visibility("default")))

API void stretto_sizes(int32_t sizes[6]) {
    const size_t found[6] = {sizeof(Matrix), sizeof(Op), sizeof(Plan), sizeof(Cache), sizeof(Batch), sizeof(Attention)};
    for (int i = 0; i < 6; i++) sizes[i] = (int32_t)found[i];
}

API const char *stretto_kernels(int n) {
    const Kernels *kernels = kernels_at(n);
    return kernels ? kernels->name : NULL;
}

API void *stretto_pool_new(int workers) { return pool_new(workers); }
API void stretto_pool_free(void *pool) { pool_free(pool); }

API size_t stretto_packed_bytes(int encoding, int64_t rows, int64_t columns) { return packed_bytes(encoding, rows, columns); }

typedef struct {
    Matrix matrix;
    const uint8_t *source;
    size_t row_bytes;
    atomic_int claims;
} Packing;

static void pack_share(void *context, int worker) {
    (void)worker;
    Packing *packing = context;
    const int panels = packing->matrix.panels;
    for (int first; (first = atomic_fetch_add(&packing->claims, 16)) < panels;)
        pack_panels(&packing->matrix, packing->source, packing->row_bytes, first, first + 16 < panels ? first + 16 : panels);
}

// Packs rows of GGUF blocks into `memory` and describes the result in `matrix`.
API void stretto_pack(void *pool, int encoding, int rows, int columns, const uint8_t *source, uint8_t *memory, Matrix *matrix) {
    const size_t row_bytes = (size_t)(columns / block_values(encoding)) * (size_t)block_bytes(encoding);
    Packing packing = {.matrix = packed_matrix(encoding, rows, columns, memory), .source = source, .row_bytes = row_bytes};
    atomic_init(&packing.claims, 0);
    pool_run(pool, pack_share, &packing);
    *matrix = packing.matrix;
}

// Lets go of a mapped file's pages; they are read again when they are touched. Whole pages within the range only.
API void stretto_drop_pages(const uint8_t *start, size_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t first = ((uintptr_t)start + page - 1) / page * page, end = ((uintptr_t)start + bytes) / page * page;
    if (end > first) (void)madvise((void *)first, end - first, MADV_DONTNEED);
}

API void *stretto_model_new(const Plan *plan, const char *kernels, void *pool) {
    const Kernels *found = find_kernels(kernels);
    return found ? model_new(plan, found, pool) : NULL;
}
API void stretto_model_free(void *model) { model_free(model); }
API void stretto_model_cache(void *model, const Cache *cache) { model_set_cache(model, cache); }
API size_t stretto_block_bytes(const Plan *plan, int block_tokens, int kv_format) {
    return cache_block_bytes(plan, block_tokens, kv_format);
}
API size_t stretto_scratch_bytes(void *model) { return model_scratch_bytes(model); }
API void stretto_step(void *model, const Batch *batch, Outcome *outcome) { *outcome = model_step(model, batch); }

// Single kernels, for tests. They give 0 when the processor lacks the kernels or memory is short.
API void stretto_dequantise(int encoding, const uint8_t *row, int columns, float *out) {
    dequantise_row(encoding, row, columns, out);
}

API int stretto_norm(const char *kernels, const float *x, const float *weight, int columns, float eps, float *out) {
    const Kernels *found = find_kernels(kernels);
    if (found) found->norm(x, weight, columns, eps, out);
    return found != NULL;
}

API int stretto_gate(const char *kernels, const float *gates, const float *up, int columns, float *out) {
    const Kernels *found = find_kernels(kernels);
    if (found) found->gate(gates, up, columns, out);
    return found != NULL;
}

API int stretto_attend(const char *kernels, Attention *attention) {
    const Kernels *found = find_kernels(kernels);
    attention->scratch = malloc(attention_scratch() * sizeof(float));
    if (found && attention->scratch) found->attend(attention);
    free(attention->scratch);
    return found && attention->scratch;
}

API int stretto_pack_head(const char *kernels, const float *x, int head_size, int spread, int8_t *values,
                          uint16_t *scales) {
    const Kernels *found = find_kernels(kernels);
    if (found) found->pack_head(x, head_size, spread, values, scales);
    return found != NULL;
}

// 2 where `fine` makes words of them; see Activations.
API int stretto_quantise(const char *kernels, const float *x, int columns, int8_t *values, int8_t *fine, float *scales,
                         float *sums, float *halves) {
    const Kernels *found = find_kernels(kernels);
    const Activations to = {columns, 1, values, fine, scales, sums, halves};
    if (found) found->quantise(x, columns, &to, 0, 0);
    return !found ? 0 : fine && found->words ? 2 : 1;
}

// out [rows][matrix rows] = x [rows][columns] times the matrix's rows, plus bias; `fine` as FLAG_FINE.
API int stretto_multiply(const char *kernels, const Matrix *matrix, const float *x, int rows, const float *bias, int fine,
                         float *out) {
    const Kernels *found = find_kernels(kernels);
    const int lanes = lanes_of(rows);
    const size_t values = (size_t)((rows + lanes - 1) / lanes * lanes) * (size_t)matrix->columns;
    Activations quantised = {
        matrix->columns, lanes, malloc(values), fine ? malloc(values) : NULL, malloc(values / GROUP * 4 + 4),
        malloc(values / GROUP * 4 + 4), malloc(values / PANEL * 4 + 4)};
    const int ready = found && quantised.values && (quantised.fine || !fine) && quantised.scales && quantised.sums &&
                      quantised.halves;
    if (ready) {
        if (bits_of(matrix->encoding))
            for (int row = 0; row < rows; row++)
                found->quantise(x + (size_t)row * (size_t)matrix->columns, matrix->columns, &quantised, row, 0);
        const Product product = {.quantised = &quantised, .plain = x, .rows = rows, .bias = bias, .out = out,
                                 .out_stride = (size_t)matrix->rows};
        found->multiply(matrix, 0, matrix->panels, &product);
    }
    free(quantised.values);
    free(quantised.fine);
    free(quantised.scales);
    free(quantised.sums);
    free(quantised.halves);
    return ready;
}
