// Products of packed matrices with rows of activations, over the lanes of whichever header came before.

LANE Floats load_scale(const int encoding, const Matrix *m, size_t panel, int group, int half) {
    const size_t groups = (size_t)m->columns / GROUP;
    if (!is_super(encoding)) return f_half(m->scales + (panel * groups + (size_t)group) * PANEL);
    const Floats scale = f_half(m->scales + (panel * (groups / 8) + (size_t)group / 8) * PANEL);
    const uint8_t *fine = m->fine + (panel * groups + (size_t)group) * 2 * PANEL;
    return f_mul(scale, encoding == Q6_K ? f_signed(fine + PANEL * half) : f_unsigned(fine));
}

LANE Floats load_offset(const int encoding, const Matrix *m, size_t panel, int group) {
    const size_t groups = (size_t)m->columns / GROUP;
    if (!is_super(encoding)) return f_half(m->offsets + (panel * groups + (size_t)group) * PANEL);
    const Floats offset = f_half(m->offsets + (panel * (groups / 8) + (size_t)group / 8) * PANEL);
    return f_mul(offset, f_unsigned(m->fine + ((panel * groups + (size_t)group) * 2 + 1) * PANEL));
}

// 4 columns of 16 rows, as unsigned bytes (what b_eight gives for 8 bits).
LANE Bytes load_quad(const int bits, const uint8_t *group, const int quad) {
    if (bits == 8) return b_eight(group + 64 * quad);
    const Bytes both = b_load(group + 64 * (quad / 2));
    const Bytes nibbles = quad & 1 ? b_high(both) : b_low(both);
    if (bits == 5) return b_or(nibbles, b_bit(b_load(group + 256), quad));
    if (bits == 6) return b_or(nibbles, b_pair(b_load(group + 256 + 64 * (quad / 4)), 2 * (quad % 4)));
    return nibbles;
}

LANE float zero_point(const int encoding) {
    switch (encoding) {
    case Q8_0: return EIGHT_BIT_ZERO;
    case Q4_0: return 8;
    case Q5_0: return 16;
    case Q6_K: return 32;
    default: return 0;
    }
}

// What the products of one group read, at the first of the rows; rows are neighbours, quads and halves lie `lanes` apart.
typedef struct {
    const int8_t *planes[2];
    const float *scales, *sums, *halves;
} Lanes;

#ifdef WORDS
// Two planes of activations as words; see multiply_quads.
LANE void multiply_words(const int bits, const int count, const int lanes, const int first, const int quads,
                         const uint8_t *values, const Lanes *x, Floats *products) {
    Ints even[LANES_MOST], odd[LANES_MOST];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) even[i] = odd[i] = i_zero();
#pragma GCC unroll 8
    for (int quad = first; quad < first + quads; quad++) {
        const Bytes weights = load_quad(bits, values, quad);
        const Ints one = w_even(bits, weights), two = w_odd(bits, weights);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const int at = 4 * (quad * lanes + i);
            Ints *sum = count <= 2 ? &odd[i] : &even[i];
            even[i] = i_dot_words(even[i], one, x->planes[0] + at);
            *sum = i_dot_words(*sum, two, x->planes[1] + at);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) products[i] = f_ints(count <= 2 ? i_add(even[i], odd[i]) : even[i]);
}

// One plane and weights of less than 8 bits; see multiply_quads. A quad adds at most 2 * (2^bits - 1) * 127 to a sum.
LANE void multiply_shorts(const int bits, const int count, const int lanes, const int first, const int quads,
                          const uint8_t *values, const Lanes *x, Floats *products) {
    const int run = bits == 4 ? 8 : bits == 5 ? 4 : 2;
    Ints sums[LANES_MOST];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) sums[i] = i_zero();
#pragma GCC unroll 4
    for (int start = first; start < first + quads; start += run) {
        Ints shorts[LANES_MOST];
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) shorts[i] = i_zero();
#pragma GCC unroll 8
        for (int quad = start; quad < start + run; quad++) {
            const Bytes weights = load_quad(bits, values, quad);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++)
                shorts[i] = i_dot_short(shorts[i], weights, x->planes[0] + 4 * (quad * lanes + i));
        }
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) sums[i] = i_add_short(sums[i], shorts[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) products[i] = f_ints(sums[i]);
}
#endif

// Products of one group's quads, or half of them, with `count` rows. Everything but the pointers is constant where this
// is inlined.
LANE void multiply_quads(const int bits, const int count, const int lanes, const int planes, const int first,
                         const int quads, const uint8_t *values, const Lanes *x, Floats *products) {
    Floats step = f_set(1.0f);
#pragma GCC unroll 2
    for (int pass = 0; pass < planes; pass += PLANES_AT_ONCE) {
        const int together = planes - pass < PLANES_AT_ONCE ? planes - pass : PLANES_AT_ONCE;
        // Few rows: two chains of dependent products instead of one.
        Ints even[2][LANES_MOST], odd[2][LANES_MOST];
#pragma GCC unroll 2
        for (int plane = 0; plane < together; plane++)
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) even[plane][i] = odd[plane][i] = i_zero();
#pragma GCC unroll 8
        for (int quad = first; quad < first + quads; quad++) {
            const Bytes weights = load_quad(bits, values, quad);
#pragma GCC unroll 2
            for (int plane = 0; plane < together; plane++)
#pragma GCC unroll 8
                for (int i = 0; i < count; i++) {
                    const int8_t *at = x->planes[pass + plane] + 4 * (quad * lanes + i);
                    Ints *sum = count <= 2 && quad & 1 ? &odd[plane][i] : &even[plane][i];
                    *sum = bits == 8 ? i_dot8(*sum, weights, at) : i_dot(*sum, weights, at);
                }
        }
#pragma GCC unroll 2
        for (int plane = 0; plane < together; plane++) {
#pragma GCC unroll 8
            for (int i = 0; i < count; i++) {
                const Floats whole = f_ints(count <= 2 ? i_add(even[plane][i], odd[plane][i]) : even[plane][i]);
                products[i] = pass + plane ? f_fma(whole, step, products[i]) : whole;
            }
            step = f_set(1.0f / FINE_STEPS);
        }
    }
}

LANE int halves_of(const int encoding) { return encoding == Q6_K ? 2 : 1; }

// One row's sums, and what a group's products add to them; `sum` is that of the activations.
LANE Floats add_product(const int encoding, Floats products, Floats scale, Floats offset, float by, float sum, Floats sums) {
    Floats part = f_mul(products, f_set(by));
    if (zero_point(encoding) != 0) part = f_nfma(f_set(zero_point(encoding)), f_set(sum), part);
    sums = f_fma(scale, part, sums);
    if (!has_offsets(encoding)) return sums;
    return is_super(encoding) ? f_nfma(offset, f_set(sum), sums) : f_fma(offset, f_set(sum), sums);
}

// Adds one group's share to the sums of `count` rows.
LANE void add_group(const int encoding, const int count, const int lanes, const int planes, const Matrix *m, size_t panel,
                    int group, const uint8_t *values, const Lanes *x, Floats *sums) {
    const int halves = halves_of(encoding), quads = 8 / halves;
#pragma GCC unroll 2
    for (int half = 0; half < halves; half++) {
        Floats products[LANES_MOST];
#ifdef WORDS
        if (planes == 2) multiply_words(bits_of(encoding), count, lanes, half * quads, quads, values, x, products);
        else if (bits_of(encoding) < 8) multiply_shorts(bits_of(encoding), count, lanes, half * quads, quads, values, x, products);
        else
#endif
        multiply_quads(bits_of(encoding), count, lanes, planes, half * quads, quads, values, x, products);
        const Floats scale = load_scale(encoding, m, panel, group, half);
        const Floats offset = has_offsets(encoding) ? load_offset(encoding, m, panel, group) : f_set(0);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            sums[i] = add_product(encoding, products[i], scale, offset, x->scales[i],
                                  halves == 2 ? x->halves[half * lanes + i] : x->sums[i], sums[i]);
    }
}

// The activations of the rows from `row` on, from a group on.
LANE Lanes lanes_from(const Activations *a, const int planes, int row, int group) {
    const size_t lanes = (size_t)a->lanes, at = lane_at(a, row, 0, GROUP) + (size_t)group * lanes;
    const size_t values = 4 * lane_at(a, row, 0, 4) + (size_t)(group * GROUP) * lanes;
    return (Lanes){{a->values + values, planes == 2 ? a->fine + values : NULL}, a->scales + at, a->sums + at,
                   a->halves + lane_at(a, row, 0, PANEL) + (size_t)(2 * group) * lanes};
}

LANE void next_group(Lanes *x, const int lanes, const int planes) {
    x->planes[0] += GROUP * lanes;
    if (planes == 2) x->planes[1] += GROUP * lanes;
    x->scales += lanes;
    x->sums += lanes;
    x->halves += 2 * lanes;
}

LANE void multiply_groups(const int encoding, const int count, const int lanes, const int planes, const Matrix *m, int panel,
                          const Activations *a, int row, Floats *sums) {
    const int groups = m->columns / GROUP;
    const size_t size = (size_t)group_bytes(encoding);
    const uint8_t *values = m->values + (size_t)panel * (size_t)groups * size;
    Lanes x = lanes_from(a, planes, row, 0);
    for (int group = 0; group < groups; group++) {
        // The panel streams from memory once a step: ask for it a few groups ahead.
        for (size_t line = 0; line < size; line += 64) __builtin_prefetch(values + 4 * size + line);
        add_group(encoding, count, lanes, planes, m, (size_t)panel, group, values, &x, sums);
        values += size;
        next_group(&x, lanes, planes);
    }
}

LANE Floats load_plain(const int encoding, const uint8_t *at) {
    if (encoding == F32) return f_load((const float *)(const void *)at);
    return encoding == F16 ? f_half((const uint16_t *)(const void *)at) : f_bf16((const uint16_t *)(const void *)at);
}

LANE void multiply_plain(const int encoding, const int count, const Matrix *m, int panel, const float *x, int row,
                         Floats *sums) {
    const size_t columns = (size_t)m->columns, size = (size_t)(encoding == F32 ? 4 : 2) * PANEL;
    const uint8_t *values = m->values + (size_t)panel * columns * size;
    const float *first = x + (size_t)row * columns;
    Floats odd[LANES_MOST];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) odd[i] = f_set(0);
    size_t column = 0;
    for (; column + 2 <= columns; column += 2, values += 2 * size) {
        const Floats one = load_plain(encoding, values), two = load_plain(encoding, values + size);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++) {
            const float *at = first + (size_t)i * columns + column;
            sums[i] = f_fma(one, f_set(at[0]), sums[i]);
            odd[i] = f_fma(two, f_set(at[1]), odd[i]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) {
        if (column < columns)
            sums[i] = f_fma(load_plain(encoding, values), f_set(first[(size_t)i * columns + column]), sums[i]);
        sums[i] = f_add(sums[i], odd[i]);
    }
}

LANE void store_sums(const Product *p, int panel, int width, int row, Floats sum) {
    float *out = p->out + (size_t)row * p->out_stride + (size_t)panel * PANEL;
    if (width == PANEL) {
        f_store(out, p->accumulate ? f_add(f_load(out), sum) : sum);
        return;
    }
    float lanes[PANEL];
    f_store(lanes, sum);
    for (int i = 0; i < width; i++) out[i] = p->accumulate ? out[i] + lanes[i] : lanes[i];
}

LANE Floats load_bias(const Product *p, int panel, int width) {
    if (!p->bias) return f_set(0);
    if (width == PANEL) return f_load(p->bias + (size_t)panel * PANEL);
    float lanes[PANEL] = {0};
    memcpy(lanes, p->bias + (size_t)panel * PANEL, sizeof(float) * (size_t)width);
    return f_load(lanes);
}

// Rows of the matrix in a panel.
LANE int panel_width(const Matrix *m, int panel) {
    const int left = m->rows - panel * PANEL;
    return left < PANEL ? left : PANEL;
}

LANE void multiply_tile(const int encoding, const int count, const int lanes, const int planes, const Matrix *m, int panel,
                        const Product *p, int row) {
    const int width = panel_width(m, panel);
    const Floats bias = load_bias(p, panel, width);
    Floats sums[LANES_MOST];
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) sums[i] = bias;
    if (bits_of(encoding)) multiply_groups(encoding, count, lanes, planes, m, panel, p->quantised, row, sums);
    else multiply_plain(encoding, count, m, panel, p->plain, row, sums);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++) store_sums(p, panel, width, row + i, sums[i]);
}

LANE void multiply_rows(const int encoding, const int lanes, const int planes, const Matrix *m, int panel, const Product *p) {
    int row = p->first;
    const int end = p->first + p->rows;
    // The conditions on TILE_MOST are constants: each instruction set has the tiles that its registers hold.
    if (TILE_MOST >= 8 && lanes == 8)
        for (; end - row >= 8; row += 8) multiply_tile(encoding, 8, lanes, planes, m, panel, p, row);
    if (TILE_MOST >= 4 && lanes == 8)
        for (; end - row >= 4; row += 4) multiply_tile(encoding, 4, lanes, planes, m, panel, p, row);
    if (TILE_MOST >= 2 && lanes == 8)
        for (; end - row >= 2; row += 2) multiply_tile(encoding, 2, lanes, planes, m, panel, p, row);
    for (; row < end; row++) multiply_tile(encoding, 1, lanes, planes, m, panel, p, row);
}

#ifdef WORDS
#include "strips.h"
#endif

LANE void multiply_panel(const int encoding, const Matrix *m, int panel, const Product *p) {
    const Activations *x = p->quantised;
    if (!bits_of(encoding)) multiply_rows(encoding, LANES_MOST, 1, m, panel, p);
    else if (x->lanes == 1 && x->fine) multiply_rows(encoding, 1, 2, m, panel, p);
    else if (x->lanes == 1) multiply_rows(encoding, 1, 1, m, panel, p);
    else if (x->fine) multiply_rows(encoding, LANES_MOST, 2, m, panel, p);
    else multiply_rows(encoding, LANES_MOST, 1, m, panel, p);
}

LANE void multiply_any(const int encoding, const Matrix *m, int first, int last, const Product *p) {
#ifdef WORDS
    if (bits_of(encoding) && p->quantised->fine && p->rows >= strips_from(encoding)) {
        multiply_strips(encoding, m, first, last, p);
        return;
    }
#endif
    for (int panel = first; panel < last; panel++) multiply_panel(encoding, m, panel, p);
}

// One function an encoding, so that each is compiled with its constants.
#define MULTIPLY(name, encoding)                                                                            \
    KERNEL __attribute__((noinline)) void name(const Matrix *m, int first, int last, const Product *p) {    \
        multiply_any(encoding, m, first, last, p);                                                          \
    }
MULTIPLY(multiply_f32, F32)
MULTIPLY(multiply_f16, F16)
MULTIPLY(multiply_bf16, BF16)
MULTIPLY(multiply_q8_0, Q8_0)
MULTIPLY(multiply_q4_0, Q4_0)
MULTIPLY(multiply_q4_1, Q4_1)
MULTIPLY(multiply_q5_0, Q5_0)
MULTIPLY(multiply_q5_1, Q5_1)
MULTIPLY(multiply_q4_k, Q4_K)
MULTIPLY(multiply_q5_k, Q5_K)
MULTIPLY(multiply_q6_k, Q6_K)

KERNEL void multiply(const Matrix *m, int first, int last, const Product *p) {
    static void (*const BY_ENCODING[ENCODINGS])(const Matrix *, int, int, const Product *) = {
        [F32] = multiply_f32,   [F16] = multiply_f16,   [BF16] = multiply_bf16, [Q8_0] = multiply_q8_0,
        [Q4_0] = multiply_q4_0, [Q4_1] = multiply_q4_1, [Q5_0] = multiply_q5_0, [Q5_1] = multiply_q5_1,
        [Q4_K] = multiply_q4_k, [Q5_K] = multiply_q5_k, [Q6_K] = multiply_q6_k,
    };
    BY_ENCODING[m->encoding](m, first, last, p);
}
