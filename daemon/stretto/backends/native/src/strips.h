// Products of many rows of words (see Activations): two panels at a time are unpacked, some groups of columns each, so that what was
// unpacked serves all rows and one word of activations serves both. Every sum is made of the same terms in the same order as
// where rows are few: its bits do not tell how many there were.

enum { STRIP_ROWS = 128, STRIP_GROUPS = 8, STRIP_PANELS = 2 };

typedef struct {
    Ints words[STRIP_GROUPS][8][2][STRIP_PANELS];  // by group and quad: the even columns, the odd ones
    Floats scales[STRIP_GROUPS][2][STRIP_PANELS], offsets[STRIP_GROUPS][STRIP_PANELS];
} Unpacked;

LANE void unpack_groups(const int encoding, const Matrix *m, size_t panel, int first, int groups, int place, Unpacked *to) {
    const size_t size = (size_t)group_bytes(encoding);
    const uint8_t *values = m->values + (panel * (size_t)(m->columns / GROUP) + (size_t)first) * size;
    for (int group = 0; group < groups; group++, values += size) {
#pragma GCC unroll 8
        for (int quad = 0; quad < 8; quad++) {
            const Bytes weights = load_quad(bits_of(encoding), values, quad);
            to->words[group][quad][0][place] = w_even(bits_of(encoding), weights);
            to->words[group][quad][1][place] = w_odd(bits_of(encoding), weights);
        }
        for (int half = 0; half < halves_of(encoding); half++)
            to->scales[group][half][place] = load_scale(encoding, m, panel, first + group, half);
        to->offsets[group][place] = has_offsets(encoding) ? load_offset(encoding, m, panel, first + group) : f_set(0);
    }
}

// Adds the groups' shares to the sums of `count` rows, [count][STRIP_PANELS][PANEL].
LANE void multiply_unpacked(const int encoding, const int panels, const int count, const int lanes, const Unpacked *from, int groups,
                            Lanes x, float *sums) {
    const int halves = halves_of(encoding), quads = 8 / halves;
    Floats totals[2][STRIP_PANELS];
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) totals[i][p] = f_load(sums + (i * STRIP_PANELS + p) * PANEL);
    for (int group = 0; group < groups; group++) {
#pragma GCC unroll 2
        for (int half = 0; half < halves; half++) {
            Ints dots[2][STRIP_PANELS];
#pragma GCC unroll 2
            for (int i = 0; i < count; i++)
#pragma GCC unroll 2
                for (int p = 0; p < panels; p++) dots[i][p] = i_zero();
#pragma GCC unroll 8
            for (int quad = half * quads; quad < (half + 1) * quads; quad++)
#pragma GCC unroll 2
                for (int odd = 0; odd < 2; odd++)
#pragma GCC unroll 2
                    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
                        for (int p = 0; p < panels; p++)
                            dots[i][p] = i_dot_words(dots[i][p], from->words[group][quad][odd][p],
                                                     x.planes[odd] + 4 * (quad * lanes + i));
#pragma GCC unroll 2
            for (int i = 0; i < count; i++)
#pragma GCC unroll 2
                for (int p = 0; p < panels; p++)
                    totals[i][p] = add_product(encoding, f_ints(dots[i][p]), from->scales[group][half][p],
                                               from->offsets[group][p], x.scales[i],
                                               halves == 2 ? x.halves[half * lanes + i] : x.sums[i], totals[i][p]);
        }
        next_group(&x, lanes, 2);
    }
#pragma GCC unroll 2
    for (int i = 0; i < count; i++)
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) f_store(sums + (i * STRIP_PANELS + p) * PANEL, totals[i][p]);
}

// At most STRIP_ROWS rows from `row` on.
LANE void multiply_block(const int encoding, const int panels, const Matrix *m, int panel, const Product *p, int row, int rows) {
    const int groups = m->columns / GROUP;
    Unpacked unpacked;
    float sums[STRIP_ROWS][STRIP_PANELS][PANEL];
    for (int place = 0; place < panels; place++) {
        const Floats bias = load_bias(p, panel + place, panel_width(m, panel + place));
        for (int i = 0; i < rows; i++) f_store(sums[i][place], bias);
    }
    for (int first = 0; first < groups; first += STRIP_GROUPS) {
        const int some = groups - first < STRIP_GROUPS ? groups - first : STRIP_GROUPS;
        for (int place = 0; place < panels; place++)
            unpack_groups(encoding, m, (size_t)(panel + place), first, some, place, &unpacked);
        int i = 0;
        for (; i + 2 <= rows; i += 2)
            multiply_unpacked(encoding, panels, 2, LANES_MOST, &unpacked, some,
                              lanes_from(p->quantised, 2, row + i, first), sums[i][0]);
        if (i < rows)
            multiply_unpacked(encoding, panels, 1, LANES_MOST, &unpacked, some,
                              lanes_from(p->quantised, 2, row + i, first), sums[i][0]);
    }
    for (int place = 0; place < panels; place++)
        for (int i = 0; i < rows; i++)
            store_sums(p, panel + place, panel_width(m, panel + place), row + i, f_load(sums[i][place]));
}

// From so many rows on this is faster: what takes longer to unpack pays sooner.
LANE int strips_from(const int encoding) { return bits_of(encoding) == 5 || bits_of(encoding) == 6 ? 8 : 24; }

LANE void multiply_strips(const int encoding, const Matrix *m, int first, int last, const Product *p) {
    for (int row = 0; row < p->rows; row += STRIP_ROWS) {
        const int rows = p->rows - row < STRIP_ROWS ? p->rows - row : STRIP_ROWS;
        int panel = first;
        for (; panel + 2 <= last; panel += 2) multiply_block(encoding, 2, m, panel, p, p->first + row, rows);
        if (panel < last) multiply_block(encoding, 1, m, panel, p, p->first + row, rows);
    }
}
