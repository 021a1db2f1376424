// The operations of a program. Every worker calls them; what is to do is claimed in small pieces.
#include <math.h>
#include <string.h>

#include "cache.h"
#include "state.h"

enum { GATE_COLUMNS = 256, INPUT_BYTES = 1 << 18 };

// The activations of an operation: how they lie depends on the rows of the step alone.
static Activations step_activations(const Model *model, const Op *op, int rows, int columns) {
    Activations x = model->quantised;
    x.columns = columns;
    x.lanes = lanes_of(rows);
    if (!(op->flags & FLAG_FINE)) x.fine = NULL;
    return x;
}

static float *buffer_row(const Model *model, int buffer, int row) {
    return model->buffers[buffer] + (size_t)row * (size_t)model->widths[buffer];
}

// Part of a row, from `first` on: columns are whole groups.
static void quantise_part(Model *model, const Op *op, int rows, const float *x, int row, int width, int first, int columns) {
    const Activations to = step_activations(model, op, rows, width);
    model->kernels->quantise(x, columns, &to, row, first);
}

static void embed_row(Model *model, const Op *op, int row) {
    const Plan *plan = &model->plan;
    const uint8_t *from = plan->table + (size_t)model->batch.tokens[row] * plan->table_row_bytes;
    dequantise_row(plan->table_encoding, from, plan->hidden, buffer_row(model, op->output, row));
    float *rotation = model->rotations + (size_t)row * (size_t)plan->rope_dims;
    for (int i = 0; i < plan->rope_dims / 2; i++) {
        const float angle = (float)model->positions[row] * plan->frequencies[i];
        rotation[i] = cosf(angle) * plan->rope_scale;
        rotation[plan->rope_dims / 2 + i] = sinf(angle) * plan->rope_scale;
    }
}

static void norm_row(Model *model, const Op *op, int rows, int row) {
    const int width = model->widths[op->output];
    float *out = buffer_row(model, op->output, row);
    model->kernels->norm(buffer_row(model, op->input, row), op->vector, width, model->plan.eps, out);
    if (op->flags & FLAG_QUANTISE) quantise_part(model, op, rows, out, row, width, 0, width);
}

static void quantise_row(Model *model, const Op *op, int rows, int row) {
    const int width = model->widths[op->input];
    quantise_part(model, op, rows, buffer_row(model, op->input, row), row, width, 0, width);
}

static void turn_head(const Plan *plan, const float *rotation, float *head) {
    const int half = plan->rope_dims / 2;
    for (int i = 0; i < half; i++) {
        const float first = head[i], second = head[half + i], cosine = rotation[i], sine = rotation[half + i];
        head[i] = first * cosine - second * sine;
        head[half + i] = second * cosine + first * sine;
    }
}

static void rotate_row(Model *model, const Op *op, int row) {
    const Plan *plan = &model->plan;
    const Cache *cache = &model->cache;
    const size_t head_size = (size_t)plan->head_size;
    float *heads = buffer_row(model, op->input, row);
    for (int head = 0; head < plan->heads + plan->kv_heads; head++) {
        float *values = heads + (size_t)head * head_size;
        const float *weight = head < plan->heads ? op->vector : op->second;
        if (weight) model->kernels->norm(values, weight, plan->head_size, plan->eps, values);
        turn_head(plan, model->rotations + (size_t)row * (size_t)plan->rope_dims, values);
    }
    const Tile *tile = &model->tiles[model->tile_of_row[row]];
    const int position = model->positions[row];
    const size_t block = (size_t)tile->table[position / cache->block_tokens];
    uint8_t *place = cache->memory + ((size_t)op->layer * (size_t)cache->blocks + block) * model->block_bytes;
    for (int head = 0; head < plan->kv_heads; head++, place += model->kv.head_bytes) {
        const float *key = heads + (size_t)(plan->heads + head) * head_size;
        kv_write(model->kernels, &model->kv, place, position % cache->block_tokens, key,
                 key + (size_t)plan->kv_heads * head_size);
    }
}

static void attend_unit(Model *model, const Op *op, const Unit *unit, int worker) {
    const Plan *plan = &model->plan;
    const Cache *cache = &model->cache;
    const Tile *tile = &model->tiles[unit->tile];
    const int per_position = plan->heads / plan->kv_heads, tokens = tile->start + tile->rows;
    // Splits are whole blocks.
    const int blocks = (tokens + cache->block_tokens - 1) / cache->block_tokens;
    const int first = blocks * unit->split / tile->splits, last = blocks * (unit->split + 1) / tile->splits;
    Attention a = {
        .layer = cache->memory + (size_t)op->layer * (size_t)cache->blocks * model->block_bytes,
        .block_bytes = model->block_bytes, .kv = model->kv, .table = tile->table, .kv_head = unit->kv_head,
        .first_token = first * cache->block_tokens,
        .end_token = last * cache->block_tokens < tokens ? last * cache->block_tokens : tokens,
        .queries = tile->rows * per_position, .per_position = per_position, .start = tile->start,
        .scratch = model->attention + (size_t)worker * attention_scratch(),
    };
    float *partial = NULL;
    if (tile->splits > 1) {
        const int number = tile->partial + unit->kv_head * tile->splits + unit->split;
        partial = model->partials + (size_t)number * partial_floats(model);
        a.highest = partial;
        a.total = partial + QUERY_TILE;
        partial += 2 * QUERY_TILE;
    }
    for (int i = 0; i < a.queries; i++) {
        const int row = tile->row + i / per_position, head = unit->kv_head * per_position + i % per_position;
        const size_t at = (size_t)head * (size_t)plan->head_size;
        a.query[i] = buffer_row(model, op->input, row) + at;
        a.out[i] = partial ? partial + (size_t)i * (size_t)plan->head_size : buffer_row(model, op->output, row) + at;
    }
    model->kernels->attend(&a);
}

// The splits' outputs, each weighted with its share of the softmax's sum.
static void merge_row(Model *model, const Op *op, int row) {
    const Plan *plan = &model->plan;
    const Tile *tile = &model->tiles[model->tile_of_row[row]];
    if (tile->splits == 1) return;
    const int per_position = plan->heads / plan->kv_heads, head_size = plan->head_size;
    for (int head = 0; head < plan->heads; head++) {
        const int kv_head = head / per_position, query = (row - tile->row) * per_position + head % per_position;
        const float *parts = model->partials + (size_t)(tile->partial + kv_head * tile->splits) * partial_floats(model);
        float highest = -INFINITY, total = 0;
        for (int split = 0; split < tile->splits; split++)
            highest = fmaxf(highest, parts[(size_t)split * partial_floats(model) + (size_t)query]);
        float *out = buffer_row(model, op->output, row) + (size_t)head * (size_t)head_size;
        memset(out, 0, sizeof(float) * (size_t)head_size);
        for (int split = 0; split < tile->splits; split++) {
            const float *part = parts + (size_t)split * partial_floats(model);
            const float *values = part + 2 * QUERY_TILE + (size_t)query * (size_t)head_size;
            const float weight = expf(part[query] - highest);
            total += weight * part[QUERY_TILE + query];
            for (int i = 0; i < head_size; i++) out[i] += weight * values[i];
        }
        for (int i = 0; i < head_size; i++) out[i] /= total;
    }
}

static int pieces_of(int count, int grain) { return (count + grain - 1) / grain; }

// How many of `count` rows, or parts of rows, are a piece.
static int share(const Model *model, const Op *op, int rows, int count) {
    // Pieces small enough that workers of different speed end together.
    const int grain = count / (pool_workers(model->pool) * 8) + 1, together = count / rows * LANES_MOST;
    // Rows that lie together once they are quantised share cache lines: one worker writes them all.
    const int quantises = op->kind == QUANTISE || (op->flags & FLAG_QUANTISE) != 0;
    return quantises && rows >= 2 * LANES_MOST ? pieces_of(grain, together) * together : grain;
}

static void gate_part(Model *model, const Op *op, int rows, int part) {
    const int width = model->widths[op->output], parts = pieces_of(width, GATE_COLUMNS);
    const int row = part / parts, first = part % parts * GATE_COLUMNS;
    const int columns = width - first < GATE_COLUMNS ? width - first : GATE_COLUMNS;
    const float *gates = buffer_row(model, op->input, row) + first;
    float *out = buffer_row(model, op->output, row) + first;
    model->kernels->gate(gates, gates + width, columns, out);
    if (op->flags & FLAG_QUANTISE) quantise_part(model, op, rows, out, row, width, first, columns);
}

// Rows go in blocks whose activations stay in the second-level cache while all panels pass by.
typedef struct { int block, blocks, grain, strips; } Tiling;

static Tiling tile_product(const Model *model, const Matrix *matrix, int rows) {
    Tiling t;
    t.block = INPUT_BYTES / (matrix->columns * (bits_of(matrix->encoding) ? 1 : 4)) / LANES_MOST * LANES_MOST;
    if (t.block < LANES_MOST) t.block = LANES_MOST;
    t.blocks = pieces_of(rows, t.block);
    t.grain = matrix->panels / (pool_workers(model->pool) * 8);
    t.grain = t.grain < 1 ? 1 : t.grain > 16 ? 16 : t.grain;
    t.strips = pieces_of(matrix->panels, t.grain);
    return t;
}

static void multiply_piece(Model *model, const Op *op, int rows, int piece) {
    const Matrix *matrix = op->matrix;
    const Tiling t = tile_product(model, matrix, rows);
    const int first = piece % t.strips * t.grain, last = first + t.grain < matrix->panels ? first + t.grain : matrix->panels;
    const Activations x = step_activations(model, op, rows, matrix->columns);
    Product product = {.quantised = &x, .bias = op->vector, .accumulate = op->flags & FLAG_ACCUMULATE};
    if (!bits_of(matrix->encoding)) product.plain = model->buffers[op->input];
    product.out_stride = (size_t)(op->output == LOGITS ? model->plan.vocab : model->widths[op->output]);
    product.out = op->output == LOGITS ? model->batch.logits : model->buffers[op->output] + op->column;
    product.first = piece / t.strips * t.block;
    product.rows = rows - product.first < t.block ? rows - product.first : t.block;
    model->kernels->multiply(matrix, first, last, &product);
}

static void select_rows(Model *model, const Op *op) {
    const int buffers[2] = {op->input, op->output};
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < model->wanted_count; i++)
            if (model->wanted[i] != i)
                memcpy(buffer_row(model, buffers[which], i), buffer_row(model, buffers[which], model->wanted[i]),
                       sizeof(float) * (size_t)model->widths[buffers[which]]);
}

static int gate_parts(const Model *model, const Op *op, int rows) {
    return rows * pieces_of(model->widths[op->output], GATE_COLUMNS);
}

int op_pieces(const Model *model, const Op *op, int rows) {
    switch (op->kind) {
    case MULTIPLY: {
        const Tiling t = tile_product(model, op->matrix, rows);
        return t.blocks * t.strips;
    }
    case ATTEND: return model->unit_count;
    case GATE: return pieces_of(gate_parts(model, op, rows), share(model, op, rows, gate_parts(model, op, rows)));
    case SELECT: return 1;
    default: return pieces_of(rows, share(model, op, rows, rows));
    }
}

static void row_piece(Model *model, const Op *op, int rows, int row) {
    switch (op->kind) {
    case EMBED: embed_row(model, op, row); break;
    case NORM: norm_row(model, op, rows, row); break;
    case QUANTISE: quantise_row(model, op, rows, row); break;
    case ROTATE: rotate_row(model, op, row); break;
    case MERGE: merge_row(model, op, row); break;
    case GATE: gate_part(model, op, rows, row); break;
    default: break;
    }
}

void op_piece(Model *model, const Op *op, int rows, int piece, int worker) {
    switch (op->kind) {
    case MULTIPLY: multiply_piece(model, op, rows, piece); break;
    case ATTEND: attend_unit(model, op, &model->units[piece], worker); break;
    case SELECT: select_rows(model, op); break;
    default: {
        const int count = op->kind == GATE ? gate_parts(model, op, rows) : rows, grain = share(model, op, rows, count);
        for (int i = piece * grain; i < count && i < (piece + 1) * grain; i++) row_piece(model, op, rows, i);
    }
    }
}
