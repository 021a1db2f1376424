// What differs by instruction set: one table of functions each, chosen once at run time.
#ifndef STRETTO_KERNELS_H
#define STRETTO_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "matrix.h"

// Rows of activations, quantised in groups of 32: value = scales[group] * (values + fine / FINE_STEPS). Without `fine` they
// have 8 bits, with it nearly 16. Some kernels (`words`) keep the latter as words: value = scales[group] * word, where of a quad
// the first and the third word lie in `values` and the others in `fine`. Sums (of what the products see, times the scale) undo
// the zero points of the weights; `halves` are the sums of 16, which Q6_K needs.
//
// Rows lie `lanes` together, so that a product of several rows finds all it needs at fixed distances from one address:
// values by quads of columns, [rows / lanes][columns / 4][lanes][4], the rest [rows / lanes][groups or halves][lanes].
enum { FINE_STEPS = 254, LANES_MOST = 8 };
typedef struct {
    int32_t columns, lanes;
    int8_t *values, *fine;  // `fine` may be NULL
    float *scales, *sums, *halves;
} Activations;

// A row alone lies as it is; more share their quads.
static inline int lanes_of(int rows) { return rows == 1 ? 1 : LANES_MOST; }
// Where a row's part from column `first` on begins among things of which a row has one every `columns` columns.
static inline size_t lane_at(const Activations *x, int row, int first, int columns) {
    const size_t tile = (size_t)(row / x->lanes) * (size_t)(x->columns / columns);
    return (tile + (size_t)(first / columns)) * (size_t)x->lanes + (size_t)(row % x->lanes);
}

// The rows that one call of `multiply` computes.
typedef struct {
    const Activations *quantised;  // for quantised matrices
    const float *plain;            // [rows][columns], for the others
    int32_t first, rows;
    const float *bias;             // [matrix rows], or NULL
    float *out;                    // of row 0; rows lie `out_stride` apart
    size_t out_stride;
    int32_t accumulate;            // add to what is there
} Product;

enum { QUERY_TILE = 32, TOKEN_TILE = 64, HEAD_MOST = 512 };

// How keys and values are kept. INT8: in groups of 32 of a token's head, each with a bfloat16 scale, as value = scale * int8.
// Its keys are spread first (see rows.h), and so is each query, which leaves their products as they were: a few dimensions
// of keys are far larger than the rest, and the scale of a group would be theirs.
enum KvFormat { KV_F32, KV_BF16, KV_INT8 };
enum { KV_GROUP = 32 };

// One head's part of a block: keys [head_size][padded], values [block_tokens][head_size], and of INT8 the scales of the
// keys and then of the values, [groups][padded] each. Keys lie by dimension, 16 tokens side by side, so that scores need
// no sums across lanes; `padded` is `block_tokens`, rounded up to whole vectors.
typedef struct {
    int32_t format, head_size, block_tokens, padded;
    size_t values_at, key_scales_at, value_scales_at, head_bytes;
} KvLayout;

// Attention of several queries of one sequence that share a KV head.
typedef struct {
    const uint8_t *layer;          // K and V of one layer: [blocks][kv_heads]{a head's part of the block}
    size_t block_bytes;
    KvLayout kv;
    const int32_t *table;
    int32_t kv_head, first_token, end_token;
    int32_t queries, per_position; // query i is at position `start` + i / per_position
    int32_t start;
    const float *query[QUERY_TILE];
    float *out[QUERY_TILE];        // [head_size]
    float *highest, *total;        // [queries]: softmax's maximum and sum, when the output shall stay unnormalised
    float *scratch;                // attention_scratch() floats
} Attention;

typedef struct {
    const char *name;
    int words;  // see Activations
    // Columns `first` to `first + columns`, whole groups, of one row; `x` is the first of them.
    void (*quantise)(const float *x, int columns, const Activations *to, int row, int first);
    // The panels `first` to `last` - 1.
    void (*multiply)(const Matrix *matrix, int first, int last, const Product *product);
    void (*norm)(const float *x, const float *weight, int columns, float eps, float *out);
    void (*gate)(const float *gate, const float *up, int columns, float *out);
    void (*attend)(const Attention *attention);
    // One head's key (spread) or value as INT8 keeps it: values [head_size], scales [groups].
    void (*pack_head)(const float *x, int head_size, int spread, int8_t *values, uint16_t *scales);
} Kernels;

static inline size_t attention_scratch(void) {
    return QUERY_TILE * (HEAD_MOST * 2 + TOKEN_TILE + 4);
}

extern const Kernels kernels_scalar, kernels_avx2, kernels_avx512, kernels_avx512_bf16, kernels_neon;

// Compilers before GCC 10 and Clang 9 know no products of bfloat16.
#if defined(__x86_64__) && defined(__has_include)
#if __has_include(<avx512bf16intrin.h>)
#define HAS_AVX512_BF16
#endif
#endif

// Kernels by name, or the best that this processor has for NULL or ""; NULL when it lacks what is named.
const Kernels *find_kernels(const char *name);
// The n-th kernels that this processor can run, best first; NULL after the last.
const Kernels *kernels_at(int n);

#endif
