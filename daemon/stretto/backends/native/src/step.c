// A step: check it, lay out who attends to what, then run the program on all workers in one parallel region.
#include "step.h"

#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "state.h"

enum { SPLIT_TOKENS = 128 };  // attention is not split into shorter parts than this

size_t cache_block_bytes(const Plan *plan, int block_tokens, int kv_format) {
    return (size_t)plan->kv_heads * kv_layout(kv_format, plan->head_size, block_tokens).head_bytes;
}

Model *model_new(const Plan *plan, const Kernels *kernels, Pool *pool) {
    Model *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    model->plan = *plan;
    model->kernels = kernels;
    model->pool = pool;
    const size_t ops = (size_t)plan->op_count, buffers = (size_t)plan->buffer_count;
    model->ops = malloc(ops * sizeof(Op));
    model->widths = malloc(buffers * sizeof(int32_t));
    model->buffers = calloc(buffers, sizeof(float *));
    model->progress = aligned_alloc(64, ops * sizeof(Progress));
    const size_t scratch = (size_t)pool_workers(pool) * attention_scratch() * sizeof(float);
    model->attention = aligned_alloc(64, (scratch + 63) / 64 * 64);
    if (!model->ops || !model->widths || !model->buffers || !model->progress || !model->attention) {
        model_free(model);
        return NULL;
    }
    for (size_t i = 0; i < ops; i++) {
        atomic_init(&model->progress[i].next, 0);
        atomic_init(&model->progress[i].done, 0);
    }
    memcpy(model->ops, plan->ops, ops * sizeof(Op));
    memcpy(model->widths, plan->widths, buffers * sizeof(int32_t));
    return model;
}

static void nothing(void *context, int worker) {
    (void)context;
    (void)worker;
}

void model_free(Model *model) {
    if (!model) return;
    pool_run(model->pool, nothing, NULL);  // late workers have left the last step after this
    free_scratch(model);
    free(model->ops);
    free(model->widths);
    free(model);
}

void model_set_cache(Model *model, const Cache *cache) {
    model->cache = *cache;
    model->kv = kv_layout(cache->kv_format, model->plan.head_size, cache->block_tokens);
    model->block_bytes = cache_block_bytes(&model->plan, cache->block_tokens, cache->kv_format);
}

size_t model_scratch_bytes(const Model *model) { return model->scratch_bytes; }

// Everything that indexes memory is checked here, before anything is written.
static Outcome check(const Model *model, const Batch *batch) {
    const Plan *plan = &model->plan;
    const int32_t *table = batch->tables;
    int64_t row = 0;
    for (int number = 0; number < batch->parts; number++) {
        const Part *part = &batch->part[number];
        const int64_t end = (int64_t)part->start + part->rows;
        if (part->rows < 1 || part->start < 0 || end > plan->context || part->logit_rows < 0 ||
            part->logit_rows > part->rows || (int64_t)part->table_length * model->cache.block_tokens < end ||
            row + part->rows > batch->rows)
            return (Outcome){BAD_PART, number, 0};
        for (int i = 0; i < part->rows; i++, row++)
            if (batch->tokens[row] < 0 || batch->tokens[row] >= plan->vocab)
                return (Outcome){BAD_TOKEN, number, batch->tokens[row]};
        const int used = (int)((end + model->cache.block_tokens - 1) / model->cache.block_tokens);
        for (int i = 0; i < used; i++)
            if (table[i] < 0 || table[i] >= model->cache.blocks) return (Outcome){BAD_BLOCK, number, table[i]};
        table += part->table_length;
    }
    if (row != batch->rows || row == 0) return (Outcome){BAD_PART, 0, 0};
    return (Outcome){FINE, 0, 0};
}

// Rows, their positions, and the tiles in which they attend.
static void lay_out_rows(Model *model, const Batch *batch) {
    const int per_tile = QUERY_TILE / (model->plan.heads / model->plan.kv_heads);
    const int32_t *table = batch->tables;
    int row = 0;
    model->tile_count = model->wanted_count = 0;
    for (int number = 0; number < batch->parts; number++) {
        const Part *part = &batch->part[number];
        for (int done = 0; done < part->rows; done += per_tile) {
            const int rows = part->rows - done < per_tile ? part->rows - done : per_tile;
            model->tiles[model->tile_count] = (Tile){number, row + done, rows, part->start + done, 1, 0, table};
            for (int i = 0; i < rows; i++) model->tile_of_row[row + done + i] = model->tile_count;
            model->tile_count++;
        }
        for (int i = 0; i < part->rows; i++) model->positions[row + i] = part->start + i;
        for (int i = part->rows - part->logit_rows; i < part->rows; i++) model->wanted[model->wanted_count++] = row + i;
        row += part->rows;
        table += part->table_length;
    }
}

// With few tiles, long attention is split over its tokens, so that every worker has a share. The last tiles of a
// prompt attend to most: they come first.
static int lay_out_units(Model *model) {
    const int kv_heads = model->plan.kv_heads, workers = pool_workers(model->pool);
    const int wanted = workers > 1 ? 4 * workers : 1, whole = model->tile_count * kv_heads;
    int units = 0, partials = 0;
    model->split_any = 0;
    for (int i = 0; i < model->tile_count; i++) {
        Tile *tile = &model->tiles[i];
        const int tokens = tile->start + tile->rows;
        int splits = whole < wanted ? (wanted + whole - 1) / whole : 1;
        if (splits > tokens / SPLIT_TOKENS) splits = tokens / SPLIT_TOKENS;
        tile->splits = splits > 1 ? splits : 1;
        tile->partial = partials;
        if (tile->splits > 1) {
            partials += tile->splits * kv_heads;
            model->split_any = 1;
        }
        units += tile->splits * kv_heads;
    }
    if (!room_for_units(model, units, partials)) return 0;
    model->unit_count = 0;
    for (int i = model->tile_count - 1; i >= 0; i--)
        for (int kv_head = 0; kv_head < kv_heads; kv_head++)
            for (int split = 0; split < model->tiles[i].splits; split++)
                model->units[model->unit_count++] = (Unit){i, kv_head, split};
    return 1;
}

static uint64_t stamped(unsigned step, uint32_t count) { return (uint64_t)step << 32 | count; }

// Claims one piece; -1 when all are claimed, -2 when the step is over.
static int64_t claim_piece(Progress *progress, unsigned step, int pieces) {
    uint_fast64_t next = atomic_load_explicit(&progress->next, memory_order_acquire);
    for (;;) {
        if (next >> 32 != step) return -2;
        if ((uint32_t)next >= (uint32_t)pieces) return -1;
        if (atomic_compare_exchange_weak(&progress->next, &next, next + 1)) return (uint32_t)next;
    }
}

typedef struct {
    const Progress *progress;
    unsigned step;
    int pieces;
} Awaited;

static int finished(const void *context) {
    const Awaited *awaited = context;
    const uint64_t done = atomic_load(&awaited->progress->done);
    return done >> 32 != awaited->step || (uint32_t)done == (uint32_t)awaited->pieces;
}

// Does what it can of one operation; 0 when the step is over.
static int take_part(Model *model, int number, unsigned step, int rows, int pieces, int worker) {
    Progress *progress = &model->progress[number];
    for (;;) {
        const int64_t piece = claim_piece(progress, step, pieces);
        if (piece < 0) return piece == -1;
        op_piece(model, &model->ops[number], rows, (int)piece, worker);
        if (atomic_fetch_add(&progress->done, 1) + 1 == stamped(step, (uint32_t)pieces)) pool_wake(model->pool);
    }
}

// Workers do not meet at barriers: an operation is over when its pieces are done, whoever did them. A worker that is
// not running holds nobody up unless it has claimed a piece.
static void run_program(void *context, int worker) {
    Model *model = context;
    const unsigned step = atomic_load(&model->step);
    Awaited group[8];
    int rows = model->batch.rows, waiting = 0;
    for (int i = 0; i < model->plan.op_count; i++) {
        const Op *op = &model->ops[i];
        if (op->kind == MERGE && !model->split_any) continue;
        const int pieces = op_pieces(model, op, rows);
        if (!take_part(model, i, step, rows, pieces, worker)) return;
        group[waiting++] = (Awaited){&model->progress[i], step, pieces};
        if (!(op->flags & FLAG_SYNC) && waiting < 8) continue;
        for (int k = 0; k < waiting; k++) pool_wait(model->pool, finished, &group[k]);
        waiting = 0;
        if (op->kind == SELECT && (rows = model->wanted_count) == 0) return;
    }
}

Outcome model_step(Model *model, const Batch *batch) {
    const Outcome outcome = check(model, batch);
    if (outcome.fault) return outcome;
    // The old step is closed for late workers before anything that they would look at changes.
    const unsigned step = atomic_load(&model->step) + 1;
    for (int i = 0; i < model->plan.op_count; i++) {
        atomic_store(&model->progress[i].next, stamped(step, UINT32_MAX));
        atomic_store(&model->progress[i].done, stamped(step, 0));
    }
    if (!room_for_rows(model, batch->rows)) return (Outcome){NO_MEMORY, 0, 0};
    lay_out_rows(model, batch);
    if (!lay_out_units(model)) return (Outcome){NO_MEMORY, 0, 0};
    model->batch = *batch;
    for (int i = 0; i < model->plan.op_count; i++) atomic_store(&model->progress[i].next, stamped(step, 0));
    atomic_store(&model->step, step);
    pool_help(model->pool, run_program, model);
    return outcome;
}
