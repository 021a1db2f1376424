// The inside of a model that step.c, scratch.c and operations.c share.
#ifndef STRETTO_STATE_H
#define STRETTO_STATE_H

#include <stdatomic.h>

#include "step.h"

// Rows of one sequence that attend together.
typedef struct {
    int32_t part, row, rows, start;  // start: position of the first row
    int32_t splits, partial;         // first of splits * kv_heads partial results
    const int32_t *table;
} Tile;

// One tile with one KV head, over a part of its tokens.
typedef struct { int32_t tile, kv_head, split; } Unit;

// How far an operation is: the next piece of work to claim, and the pieces that are done. The upper half of each is the
// number of the step, so that a worker who comes late (its processor was taken away for a while) can neither claim
// work of a later step too early nor wait for a step that is over.
typedef struct {
    _Alignas(64) atomic_uint_fast64_t next;
    atomic_uint_fast64_t done;
} Progress;

struct Model {
    Plan plan;
    const Kernels *kernels;
    Pool *pool;
    Op *ops;
    int32_t *widths;
    Cache cache;
    KvLayout kv;
    size_t block_bytes;
    // Scratch, grown as steps need it.
    float **buffers;             // [buffer_count]
    float *rotations;            // [rows][rope_dims]: cosines, then sines
    Activations quantised;
    int32_t *positions, *tile_of_row, *wanted;
    Tile *tiles;
    Unit *units;
    float *partials;
    float *attention;            // [workers][attention_scratch()]
    Progress *progress;          // [op_count]
    int32_t rows_room, units_room, partials_room;
    size_t scratch_bytes;
    // The step that runs.
    Batch batch;  // a copy: a late worker may look at it when the caller has gone
    int32_t tile_count, unit_count, split_any, wanted_count;
    atomic_uint step;
};

// Make room for a step of that many rows; 0 when memory is short.
int room_for_rows(Model *model, int rows);
int room_for_units(Model *model, int units, int partials);
void free_scratch(Model *model);
static inline size_t partial_floats(const Model *model) {
    return QUERY_TILE * ((size_t)model->plan.head_size + 2);
}

// An operation's work, as pieces that any worker may do in any order.
int op_pieces(const Model *model, const Op *op, int rows);
void op_piece(Model *model, const Op *op, int rows, int piece, int worker);

#endif
