// Work on single rows: quantisation, norm, gate.

// e^x to about 2 units in the last place, for x up to 88; below -87 it stays near 1e-38: x = n ln 2 + r with
// |r| <= ln 2 / 2, and a polynomial for e^r (Cephes' coefficients).
LANE Floats f_exp(Floats x) {
    x = f_max(x, f_set(-87.0f));
    const Floats n = f_round(f_mul(x, f_set(1.44269504088896341f)));
    Floats r = f_nfma(n, f_set(0.693359375f), x);
    r = f_nfma(n, f_set(-2.12194440e-4f), r);
    Floats p = f_set(1.9875691500e-4f);
    p = f_fma(p, r, f_set(1.3981999507e-3f));
    p = f_fma(p, r, f_set(8.3334519073e-3f));
    p = f_fma(p, r, f_set(4.1665795894e-2f));
    p = f_fma(p, r, f_set(1.6666665459e-1f));
    p = f_fma(p, r, f_set(5.0000001201e-1f));
    p = f_add(f_fma(f_mul(p, r), r, r), f_set(1.0f));
    return f_mul(p, f_power2(n));
}

// What rounding left of x / scale, in steps of 1 / FINE_STEPS.
LANE Floats f_rest(Floats x, Floats inverse, Floats rounded) {
    const Floats rest = f_add(f_mul(x, inverse), f_mul(rounded, f_set(-1.0f)));
    return f_round(f_mul(rest, f_set(FINE_STEPS)));
}

// 32 values of a row to its lane.
LANE void store_group(int8_t *to, int lanes, Floats low, Floats high) {
    int8_t together[GROUP];
    int8_t *whole = lanes == 1 ? to : together;
    f_store_int8(whole, low);
    f_store_int8(whole + PANEL, high);
    if (lanes > 1)
        for (int quad = 0; quad < GROUP / 4; quad++) memcpy(to + 4 * quad * lanes, together + 4 * quad, 4);
}

// 32 values of a row, rounded, and what rounding left of them.
#ifdef WORDS
enum { PLANE_STEPS = FINE_STEPS };
LANE void store_fine(const Activations *to, size_t at, Floats low, Floats high, Floats low_rest, Floats high_rest) {
    const Floats steps = f_set(FINE_STEPS);
    const int step = 4 * to->lanes;
    f_store_words(to->values + at, to->fine + at, step, f_fma(low, steps, low_rest));
    at += (size_t)(4 * step);
    f_store_words(to->values + at, to->fine + at, step, f_fma(high, steps, high_rest));
}
#else
enum { PLANE_STEPS = 1 };
LANE void store_fine(const Activations *to, size_t at, Floats low, Floats high, Floats low_rest, Floats high_rest) {
    store_group(to->values + at, to->lanes, low, high);
    store_group(to->fine + at, to->lanes, low_rest, high_rest);
}
#endif

KERNEL void quantise(const float *x, int columns, const Activations *to, int row, int first) {
    const int lanes = to->lanes;
    size_t values = 4 * lane_at(to, row, first, 4), at = lane_at(to, row, first, GROUP), half = lane_at(to, row, first, PANEL);
    for (int group = 0; group < columns / GROUP; group++, x += GROUP) {
        const Floats low = f_load(x), high = f_load(x + PANEL);
        const float most = f_highest(f_max(f_abs(low), f_abs(high)));
        const float scale = most / 127.0f;
        // A scale that has no finite inverse belongs to values that are zeros beside everything else.
        const Floats inverse = f_set(most > 1e-30f ? 127.0f / most : 0.0f);
        Floats a = f_round(f_mul(low, inverse)), b = f_round(f_mul(high, inverse));
        if (!to->fine) {
            store_group(to->values + values, lanes, a, b);
        } else {
            const Floats c = f_rest(low, inverse, a), d = f_rest(high, inverse, b);
            store_fine(to, values, a, b, c, d);
            a = f_fma(c, f_set(1.0f / FINE_STEPS), a);
            b = f_fma(d, f_set(1.0f / FINE_STEPS), b);
        }
        to->scales[at] = to->fine ? scale / PLANE_STEPS : scale;
        to->halves[half] = scale * f_sum(a);
        to->halves[half + (size_t)lanes] = scale * f_sum(b);
        to->sums[at] = to->halves[half] + to->halves[half + (size_t)lanes];
        values += (size_t)(GROUP * lanes);
        at += (size_t)lanes;
        half += 2 * (size_t)lanes;
    }
}

// Hadamard's matrix (Sylvester's order): row i, column j is the parity of the bits of i & j.
static const float HADAMARD[PANEL][PANEL] = {
    {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
    {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1}, {1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1},
    {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1}, {1, -1, 1, -1, -1, 1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1},
    {1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1, 1, 1}, {1, -1, -1, 1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1, 1, -1},
    {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}, {1, -1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1, -1, 1, -1, 1},
    {1, 1, -1, -1, 1, 1, -1, -1, -1, -1, 1, 1, -1, -1, 1, 1}, {1, -1, -1, 1, 1, -1, -1, 1, -1, 1, 1, -1, -1, 1, 1, -1},
    {1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1, 1, 1, 1, 1}, {1, -1, 1, -1, -1, 1, -1, 1, -1, 1, -1, 1, 1, -1, 1, -1},
    {1, 1, -1, -1, -1, -1, 1, 1, -1, -1, 1, 1, 1, 1, -1, -1}, {1, -1, -1, 1, -1, 1, 1, -1, -1, 1, 1, -1, 1, -1, -1, 1}};

// Spreads a head's values evenly over its dimensions, in place: an orthonormal Walsh-Hadamard transform of the largest power
// of two that divides the head's size, part by part. Done twice it is undone.
LANE void spread_head(float *x, int head_size) {
    const int part = head_size & -head_size;
    const Floats scale = f_set(1.0f / sqrtf((float)part));
    for (int at = 0; at < head_size; at += PANEL) {
        Floats even = f_set(0), odd = f_set(0);
        for (int i = 0; i < PANEL; i += 2) {
            even = f_fma(f_set(x[at + i]), f_load(HADAMARD[i]), even);
            odd = f_fma(f_set(x[at + i + 1]), f_load(HADAMARD[i + 1]), odd);
        }
        f_store(x + at, f_mul(f_add(even, odd), scale));
    }
    for (int half = PANEL; half < part; half *= 2)
        for (int at = 0; at < head_size; at += 2 * half)
            for (int i = at; i < at + half; i += PANEL) {
                const Floats a = f_load(x + i), b = f_load(x + i + half);
                f_store(x + i, f_add(a, b));
                f_store(x + i + half, f_nfma(b, f_set(1.0f), a));
            }
}

// A number's bfloat16 that is no smaller; it is not below zero.
LANE uint16_t bf16_above(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0xFFFFu) >> 16);
}

LANE float from_bf16_bits(uint16_t half) {
    const uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds by the scale that is kept, so that the scale's own rounding costs nothing. A group that is not finite is kept as
// NaN, as a wider format would: what was computed from it must not look sound.
KERNEL void pack_head(const float *x, int head_size, int spread, int8_t *values, uint16_t *scales) {
    const Floats none = f_set(0);
    float spread_out[HEAD_MOST];
    if (spread) {
        memcpy(spread_out, x, sizeof(float) * (size_t)head_size);
        spread_head(spread_out, head_size);
        x = spread_out;
    }
    for (int first = 0; first < head_size; first += KV_GROUP) {
        const int whole = head_size - first > PANEL;
        const Floats low = f_load(x + first), high = whole ? f_load(x + first + PANEL) : none;
        const float most = f_highest(f_max(f_abs(low), f_abs(high)));
        const int finite = f_sum(f_fma(low, none, f_mul(high, none))) == 0.0f;
        // A scale that has no finite inverse belongs to values that are zeros beside everything else.
        const uint16_t scale = !finite ? 0x7FC0 : most > 1e-30f ? bf16_above(most / 127.0f) : 0;
        const Floats inverse = f_set(finite && scale ? 1.0f / from_bf16_bits(scale) : 0.0f);
        scales[first / KV_GROUP] = scale;
        f_store_int8(values + first, finite ? f_round(f_mul(low, inverse)) : none);
        if (whole) f_store_int8(values + first + PANEL, finite ? f_round(f_mul(high, inverse)) : none);
    }
}

KERNEL void norm(const float *x, const float *weight, int columns, float eps, float *out) {
    Floats squares = f_set(0);
    for (int i = 0; i < columns; i += PANEL) squares = f_fma(f_load(x + i), f_load(x + i), squares);
    const Floats factor = f_set(1.0f / sqrtf(f_sum(squares) / (float)columns + eps));
    for (int i = 0; i < columns; i += PANEL) f_store(out + i, f_mul(f_mul(f_load(x + i), factor), f_load(weight + i)));
}

// silu(gate) * up.
KERNEL void gate(const float *gates, const float *up, int columns, float *out) {
    const Floats one = f_set(1.0f);
    for (int i = 0; i < columns; i += PANEL) {
        const Floats g = f_load(gates + i);
        const Floats minus = f_mul(f_max(g, f_set(-88.0f)), f_set(-1.0f));
        f_store(out + i, f_mul(f_div(g, f_add(one, f_exp(minus))), f_load(up + i)));
    }
}
