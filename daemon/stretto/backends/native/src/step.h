// A model as a short program of operations, and steps over it.
#ifndef STRETTO_STEP_H
#define STRETTO_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"
#include "pool.h"

enum OpKind { EMBED, NORM, QUANTISE, MULTIPLY, ROTATE, ATTEND, MERGE, GATE, SELECT, OP_KINDS };
enum OpFlag {
    FLAG_QUANTISE = 1,    // quantise what was written: integer products follow
    FLAG_ACCUMULATE = 2,  // add to the output
    FLAG_SYNC = 4,        // what comes next reads this output
    FLAG_FINE = 8,        // of the quantising and of each product with it: activations of nearly 16 bits
};
enum { LOGITS = -1 };

// Laid out by Python (see program.py). `input` and `output` number the buffers, float32 [rows][width of the buffer].
//   EMBED     output = table rows of the tokens; also the step's rotations
//   NORM      output = RMS norm of input, times vector
//   QUANTISE  input, into the one set of quantised activations
//   MULTIPLY  output[column...] = matrix * (quantised activations, or input) + vector
//   ROTATE    in place in input [queries, keys, values]: norms of heads (vector: queries, second: keys; or NULL), rotary
//             positions; keys and values go to the cache of the layer
//   ATTEND    output = attention of the queries in input over the cache of the layer
//   MERGE     output: puts together attention that was split over its tokens
//   GATE      output = silu(first half of input) * second half
//   SELECT    from here on only rows whose logits are wanted: compacts input and output
typedef struct {
    int32_t kind, input, output, column, flags, layer;
    const Matrix *matrix;
    const float *vector, *second;
} Op;

typedef struct {
    int32_t hidden, heads, kv_heads, head_size, rope_dims, vocab, context;
    int32_t table_encoding;
    float eps, rope_scale;
    const float *frequencies;    // [rope_dims / 2], radians a position
    const uint8_t *table;        // embedding rows as they lie in the file
    size_t table_row_bytes;
    int32_t op_count, buffer_count, widest;  // widest: columns of the widest quantised input
    const Op *ops;
    const int32_t *widths;       // [buffer_count]
} Plan;

typedef struct {
    uint8_t *memory;
    int32_t blocks, block_tokens, kv_format, layers;
} Cache;

// One sequence's part of a step.
typedef struct { int32_t rows, start, table_length, logit_rows; } Part;

typedef struct {
    int32_t parts, rows;
    const Part *part;
    const int32_t *tokens;   // [rows]
    const int32_t *tables;   // of all parts, one after the other
    float *logits;           // [sum of logit_rows][vocab]
} Batch;

enum Fault { FINE, NO_MEMORY, BAD_TOKEN, BAD_BLOCK, BAD_PART };
typedef struct { int32_t fault, part, value; } Outcome;

typedef struct Model Model;

Model *model_new(const Plan *plan, const Kernels *kernels, Pool *pool);  // keeps copies of ops and widths
void model_free(Model *model);
void model_set_cache(Model *model, const Cache *cache);
size_t cache_block_bytes(const Plan *plan, int block_tokens, int kv_format);  // of one block in one layer
size_t model_scratch_bytes(const Model *model);
Outcome model_step(Model *model, const Batch *batch);

#endif
