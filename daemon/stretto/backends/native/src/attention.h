// Attention over paged keys and values with a running softmax (Milakov and Gimelshein 2018): queries that share a KV
// head go over the cache together, so every key and value is read once for all of them.

// Where 16 or fewer neighbouring tokens lie: within one block.
typedef struct {
    const uint8_t *keys, *values;
    const uint16_t *key_scales, *value_scales;  // of INT8
    int count;
} Piece;

enum { PIECES = TOKEN_TILE / PANEL };

// The pieces from `*token` on, as many as one tile takes; moves `*token` behind them. It starts on a block's edge or
// where the last call stopped, so a piece starts on a multiple of 16 within its block.
LANE int find_pieces(const int format, const Attention *a, int *token, Piece *pieces) {
    const size_t size = format == KV_F32 ? 4 : format == KV_BF16 ? 2 : 1;
    int found = 0;
    for (; *token < a->end_token && found < PIECES; found++) {
        const int block = *token / a->kv.block_tokens, offset = *token % a->kv.block_tokens;
        const uint8_t *head = a->layer + (size_t)a->table[block] * a->block_bytes + (size_t)a->kv_head * a->kv.head_bytes;
        int count = PANEL;
        if (count > a->kv.block_tokens - offset) count = a->kv.block_tokens - offset;
        if (count > a->end_token - *token) count = a->end_token - *token;
        pieces[found].keys = head + (size_t)offset * size;
        pieces[found].values = head + a->kv.values_at + (size_t)offset * (size_t)a->kv.head_size * size;
        if (format == KV_INT8) {
            pieces[found].key_scales = (const uint16_t *)(const void *)(head + a->kv.key_scales_at) + offset;
            pieces[found].value_scales = (const uint16_t *)(const void *)(head + a->kv.value_scales_at) + offset;
        }
        pieces[found].count = count;
        *token += count;
    }
    return found;
}

// Of INT8 without its scale.
LANE Floats load_cached(const int format, const uint8_t *base, size_t index) {
    if (format == KV_INT8) return f_signed(base + index);
    return format == KV_BF16 ? f_bf16((const uint16_t *)(const void *)base + index)
                             : f_load((const float *)(const void *)base + index);
}

// Adds to the scores what every second dimension from `first` on gives.
LANE void score_every_second(const int format, const int count, const Attention *a, const uint8_t *keys, size_t first, size_t end,
                             const float *queries, Floats *sums) {
    for (size_t d = first; d < end; d += 2) {
        const Floats key = load_cached(format, keys, d * (size_t)a->kv.padded);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) sums[i] = f_fma(key, f_set(queries[(size_t)i * (size_t)a->kv.head_size + d]), sums[i]);
    }
}

// Scores of `count` queries with the 16 tokens of a piece, whose keys lie `padded` apart by dimension. Lanes beyond the
// piece hold whatever lies there and are masked by the caller.
LANE void score(const int format, const int count, const Attention *a, const Piece *piece, const float *queries,
                float *scores) {
    const size_t head_size = (size_t)a->kv.head_size, padded = (size_t)a->kv.padded;
    const size_t group = format == KV_INT8 && head_size > KV_GROUP ? KV_GROUP : head_size;
    Floats totals[8];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) totals[i] = f_set(0);
    for (size_t first = 0; first < head_size; first += group) {
        const size_t end = first + group < head_size ? first + group : head_size;
        Floats even[8], odd[8];
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) even[i] = odd[i] = f_set(0);
        if (count <= TWO_CHAINS_MOST) {
            for (size_t d = first; d < end; d += 2) {
                const Floats one = load_cached(format, piece->keys, d * padded);
                const Floats two = load_cached(format, piece->keys, (d + 1) * padded);
#pragma GCC unroll 8
                for (int i = 0; i < count; i++) {
                    const float *query = queries + (size_t)i * head_size + d;
                    even[i] = f_fma(one, f_set(query[0]), even[i]);
                    odd[i] = f_fma(two, f_set(query[1]), odd[i]);
                }
            }
        } else {  // one after the other: the sums are the same bits, however many queries there are
            score_every_second(format, count, a, piece->keys, first, end, queries, even);
            score_every_second(format, count, a, piece->keys, first + 1, end, queries, odd);
        }
        const Floats scales = format == KV_INT8 ? f_bf16(piece->key_scales + first / KV_GROUP * padded) : f_set(1.0f);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const Floats sum = f_add(even[i], odd[i]);
            totals[i] = format == KV_INT8 ? f_fma(sum, scales, totals[i]) : sum;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) f_store(scores + (size_t)i * TOKEN_TILE, totals[i]);
}

// The weights of `count` queries, times the scales of the group of the values that dimension `d` is in.
LANE void scale_weights(const int count, const Attention *a, const Piece *pieces, int found, size_t d, const float *weights,
                        float *scaled) {
    for (int piece = 0; piece < found; piece++) {
        const Floats scales = f_bf16(pieces[piece].value_scales + d / KV_GROUP * (size_t)a->kv.padded);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const size_t at = (size_t)i * TOKEN_TILE + (size_t)piece * PANEL;
            f_store(scaled + at, f_mul(f_load(weights + at), scales));
        }
    }
}

// Adds weighted values to the outputs of `count` queries.
LANE void mix(const int format, const int count, const Attention *a, const Piece *pieces, int found, const float *weights,
              float *outputs) {
    const size_t head_size = (size_t)a->kv.head_size;
    float scaled[8 * TOKEN_TILE];
    for (size_t d = 0; d < head_size; d += PANEL) {
        if (format == KV_INT8 && d % KV_GROUP == 0) scale_weights(count, a, pieces, found, d, weights, scaled);
        Floats sums[8];
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) sums[i] = f_load(outputs + (size_t)i * head_size + d);
        for (int piece = 0; piece < found; piece++)
            for (int token = 0; token < pieces[piece].count; token++) {
                const Floats value = load_cached(format, pieces[piece].values, (size_t)token * head_size + d);
                const float *weight = (format == KV_INT8 ? scaled : weights) + piece * PANEL + token;
#pragma GCC unroll 8
                for (int i = 0; i < count; i++) sums[i] = f_fma(value, f_set(weight[(size_t)i * TOKEN_TILE]), sums[i]);
            }
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) f_store(outputs + (size_t)i * head_size + d, sums[i]);
    }
}

// Turns one query's scores into weights; what was summed before is scaled to the new maximum.
LANE void soften(const Piece *pieces, int found, int visible, size_t head_size, float *scores, float *output,
                 float *highest, float *total) {
    const float none = -INFINITY;
    Floats most = f_set(none);
    int before = 0;
    for (int piece = 0; piece < found; piece++) {
        const int left = visible - before, count = left < pieces[piece].count ? left : pieces[piece].count;
        Floats masked = f_load(scores + piece * PANEL);
        if (count < PANEL) {
            masked = f_first(masked, count, none);
            f_store(scores + piece * PANEL, masked);
        }
        most = f_max(most, masked);
        before += pieces[piece].count;
    }
    const float now = f_highest(most);
    if (now == none) {
        for (int piece = 0; piece < found; piece++) f_store(scores + piece * PANEL, f_set(0));
        return;
    }
    if (now > *highest) {
        const float shrink = *highest == none ? 0.0f : expf(*highest - now);
        *highest = now;
        *total *= shrink;
        for (size_t d = 0; d < head_size; d += PANEL) f_store(output + d, f_mul(f_load(output + d), f_set(shrink)));
    }
    Floats sum = f_set(0);
    before = 0;
    for (int piece = 0; piece < found; piece++) {
        const int left = visible - before, count = left < pieces[piece].count ? left : pieces[piece].count;
        const Floats shifted = f_add(f_load(scores + piece * PANEL), f_set(-*highest));
        Floats weight = f_exp(shifted);
        if (count < PANEL) weight = f_first(weight, count, 0.0f);
        f_store(scores + piece * PANEL, weight);
        sum = f_add(sum, weight);
        before += pieces[piece].count;
    }
    *total += f_sum(sum);
}

#ifdef BF16_PAIRS
#include "attention_pairs.h"
#endif

LANE void attend_some(const int format, const int count, const Attention *a, const Piece *pieces, int found, int token,
                      int first, float *queries, float *outputs, float *scores, float *highest, float *total) {
    const size_t head_size = (size_t)a->kv.head_size, at = (size_t)first;
    for (int piece = 0; piece < found; piece++) {
        float *to = scores + at * TOKEN_TILE + piece * PANEL;
#ifdef BF16_PAIRS
        if (format == KV_BF16) {
            score_pairs(count, a, &pieces[piece], queries + at * head_size, to);
            continue;
        }
#endif
        score(format, count, a, &pieces[piece], queries + at * head_size, to);
    }
    for (int i = first; i < first + count; i++)
        soften(pieces, found, a->start + i / a->per_position + 1 - token, head_size, scores + (size_t)i * TOKEN_TILE,
               outputs + (size_t)i * head_size, highest + i, total + i);
#ifdef BF16_PAIRS
    if (format == KV_BF16) {
        mix_pairs(count, a, pieces, found, scores + at * TOKEN_TILE, outputs + at * head_size);
        return;
    }
#endif
    mix(format, count, a, pieces, found, scores + at * TOKEN_TILE, outputs + at * head_size);
}

LANE void attend_all(const int format, const Attention *a) {
    const size_t head_size = (size_t)a->kv.head_size;
    float *queries = a->scratch, *outputs = queries + QUERY_TILE * head_size, *scores = outputs + QUERY_TILE * head_size;
    float *highest = scores + QUERY_TILE * TOKEN_TILE, *total = highest + QUERY_TILE;
    const float factor = 1.0f / sqrtf((float)a->kv.head_size);
    for (int i = 0; i < a->queries; i++) {
        for (size_t d = 0; d < head_size; d++) queries[(size_t)i * head_size + d] = a->query[i][d] * factor;
        if (format == KV_INT8) spread_head(queries + (size_t)i * head_size, a->kv.head_size);
#ifdef BF16_PAIRS
        if (format == KV_BF16) pair_query(queries + (size_t)i * head_size, head_size);
#endif
        highest[i] = -INFINITY;
        total[i] = 0;
    }
    memset(outputs, 0, sizeof(float) * head_size * (size_t)a->queries);
    Piece pieces[PIECES];
    for (int next = a->first_token; next < a->end_token;) {
        const int token = next, found = find_pieces(format, a, &next, pieces);
        int i = 0;
        // A query costs least where the keys and values that were loaded serve many.
#define ATTEND_BY(count)                                                                                               \
    for (; a->queries - i >= count; i += count)                                                                        \
        attend_some(format, count, a, pieces, found, token, i, queries, outputs, scores, highest, total)
        if (QUERIES_MOST >= 8) ATTEND_BY(8);
        if (QUERIES_MOST >= 6) ATTEND_BY(6);
        if (QUERIES_MOST >= 4) ATTEND_BY(4);
        if (QUERIES_MOST >= 4) ATTEND_BY(3);
        if (QUERIES_MOST >= 4) ATTEND_BY(2);
        ATTEND_BY(1);
#undef ATTEND_BY
    }
    for (int i = 0; i < a->queries; i++) {
        const float scale = a->highest ? 1.0f : 1.0f / total[i];
        for (size_t d = 0; d < head_size; d++) a->out[i][d] = outputs[(size_t)i * head_size + d] * scale;
        if (!a->highest) continue;
        a->highest[i] = highest[i];
        a->total[i] = total[i];
    }
}

KERNEL __attribute__((noinline)) void attend_bf16(const Attention *a) { attend_all(KV_BF16, a); }
#ifndef BF16_PAIRS
KERNEL __attribute__((noinline)) void attend_f32(const Attention *a) { attend_all(KV_F32, a); }
KERNEL __attribute__((noinline)) void attend_int8(const Attention *a) { attend_all(KV_INT8, a); }
KERNEL void attend(const Attention *a) {
    (a->kv.format == KV_F32 ? attend_f32 : a->kv.format == KV_BF16 ? attend_bf16 : attend_int8)(a);
}
#endif
