// Attention over bfloat16 keys and values by products of pairs, where the processor has them: two dimensions of keys, or two
// tokens of values, in one instruction. Queries and weights are rounded to bfloat16 as keys and values are; sums are float32.

// Two neighbours of one query: the first in the low half.
typedef uint32_t __attribute__((may_alias)) Pair;

// 16 neighbours to 8 pairs. What they came from may lie there.
LANE void pack_pairs(float *to, Floats from) { f_store_bf16((uint16_t *)(void *)to, from); }

// The queries' first half becomes their pairs.
LANE void pair_query(float *query, size_t head_size) {
    for (size_t d = 0; d < head_size; d += PANEL) pack_pairs(query + d / 2, f_load(query + d));
}

// See `score`.
LANE void score_pairs(const int count, const Attention *a, const Piece *piece, const float *queries, float *scores) {
    const size_t head_size = (size_t)a->kv.head_size, padded = (size_t)a->kv.padded;
    const uint16_t *keys = (const uint16_t *)(const void *)piece->keys;
    Floats even[8], odd[8];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) even[i] = odd[i] = f_set(0);
    for (size_t d = 0; d < head_size; d += 4) {
        const Pairs one = f_pairs(keys + d * padded, keys + (d + 1) * padded);
        const Pairs two = f_pairs(keys + (d + 2) * padded, keys + (d + 3) * padded);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const Pair *query = (const Pair *)(const void *)(queries + (size_t)i * head_size) + d / 2;
            even[i] = f_dot_pairs(even[i], one, query[0]);
            odd[i] = f_dot_pairs(odd[i], two, query[1]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) f_store(scores + (size_t)i * TOKEN_TILE, f_add(even[i], odd[i]));
}

// `wide` panels of the outputs from dimension `d` on.
LANE void mix_panels(const int wide, const int count, const Attention *a, const Piece *pieces, int found, size_t d,
                     const float *weights, float *outputs) {
    const size_t head_size = (size_t)a->kv.head_size;
    static const uint16_t nothing[2 * PANEL];
    Floats sums[8][2];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int k = 0; k < wide; k++) sums[i][k] = f_load(outputs + (size_t)i * head_size + d + (size_t)k * PANEL);
    for (int piece = 0; piece < found; piece++) {
        const uint16_t *values = (const uint16_t *)(const void *)pieces[piece].values + d;
        for (int token = 0; token < pieces[piece].count; token += 2) {
            // Behind the last token may lie anything, and nothing times no number is none.
            const uint16_t *low = values + (size_t)token * head_size;
            const uint16_t *high = token + 1 < pieces[piece].count ? low + head_size : nothing;
            Pairs pairs[2];
#pragma GCC unroll 2
            for (int k = 0; k < wide; k++) pairs[k] = f_pairs(low + k * PANEL, high + k * PANEL);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                const float *row = weights + (size_t)i * TOKEN_TILE + piece * PANEL;
                const Pair weight = ((const Pair *)(const void *)row)[token / 2];
#pragma GCC unroll 2
                for (int k = 0; k < wide; k++) sums[i][k] = f_dot_pairs(sums[i][k], pairs[k], weight);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int k = 0; k < wide; k++) f_store(outputs + (size_t)i * head_size + d + (size_t)k * PANEL, sums[i][k]);
}

// See `mix`; the weights become pairs.
LANE void mix_pairs(const int count, const Attention *a, const Piece *pieces, int found, float *weights, float *outputs) {
    for (int i = 0; i < count; i++)
        for (int piece = 0; piece < found; piece++) {
            float *row = weights + (size_t)i * TOKEN_TILE + piece * PANEL;
            pack_pairs(row, f_load(row));
        }
    size_t d = 0;
    for (; d + 2 * PANEL <= (size_t)a->kv.head_size; d += 2 * PANEL)
        mix_panels(2, count, a, pieces, found, d, weights, outputs);
    for (; d < (size_t)a->kv.head_size; d += PANEL) mix_panels(1, count, a, pieces, found, d, weights, outputs);
}
