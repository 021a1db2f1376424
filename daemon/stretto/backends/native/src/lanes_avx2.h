// Sixteen lanes in two AVX2 registers, with FMA and F16C.
#ifndef STRETTO_LANES_H
#define STRETTO_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "matrix.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define LANE static INLINED TARGET
#define KERNEL static TARGET
#define KERNELS kernels_avx2
#define KERNELS_NAME "avx2"
enum { EIGHT_BIT_ZERO = 0 };

// Most rows of activations that one pass over a panel computes: what the registers hold.
enum { TILE_MOST = 4 };
// The same of queries in attention, and how many of them have registers for two chains of sums each.
enum { QUERIES_MOST = 6, TWO_CHAINS_MOST = 2 };
// Planes of activations whose sums the registers hold together.
enum { PLANES_AT_ONCE = 1 };
// A second plane of activations is computed as one of words: one product of 16 bits instead of two of 8, which take two more
// to be summed. Sums of one plane stay in 16 bits for as many quads as hold them.
#define WORDS

typedef struct { __m256 a, b; } Floats;
typedef struct { __m256i a, b; } Ints;
typedef Ints Bytes;

#define BOTH(type, call_a, call_b) ((type){call_a, call_b})

LANE Floats f_set(float value) { const __m256 v = _mm256_set1_ps(value); return BOTH(Floats, v, v); }
LANE Floats f_load(const float *from) { return BOTH(Floats, _mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)); }
LANE void f_store(float *to, Floats v) { _mm256_storeu_ps(to, v.a); _mm256_storeu_ps(to + 8, v.b); }
LANE Floats f_add(Floats v, Floats w) { return BOTH(Floats, _mm256_add_ps(v.a, w.a), _mm256_add_ps(v.b, w.b)); }
LANE Floats f_mul(Floats v, Floats w) { return BOTH(Floats, _mm256_mul_ps(v.a, w.a), _mm256_mul_ps(v.b, w.b)); }
LANE Floats f_div(Floats v, Floats w) { return BOTH(Floats, _mm256_div_ps(v.a, w.a), _mm256_div_ps(v.b, w.b)); }
LANE Floats f_max(Floats v, Floats w) { return BOTH(Floats, _mm256_max_ps(v.a, w.a), _mm256_max_ps(v.b, w.b)); }
LANE Floats f_abs(Floats v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return BOTH(Floats, _mm256_andnot_ps(sign, v.a), _mm256_andnot_ps(sign, v.b));
}
LANE Floats f_fma(Floats v, Floats w, Floats c) {
    return BOTH(Floats, _mm256_fmadd_ps(v.a, w.a, c.a), _mm256_fmadd_ps(v.b, w.b, c.b));
}
LANE Floats f_nfma(Floats v, Floats w, Floats c) {
    return BOTH(Floats, _mm256_fnmadd_ps(v.a, w.a, c.a), _mm256_fnmadd_ps(v.b, w.b, c.b));
}
LANE Floats f_round(Floats v) {
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return BOTH(Floats, _mm256_round_ps(v.a, NEAREST), _mm256_round_ps(v.b, NEAREST));
}
LANE __m256 power2(__m256 v) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
LANE Floats f_power2(Floats v) { return BOTH(Floats, power2(v.a), power2(v.b)); }
LANE float f_sum(Floats v) {
    const __m256 eight = _mm256_add_ps(v.a, v.b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_shuffle_ps(four, four, 1)));
}
LANE float f_highest(Floats v) {
    const __m256 eight = _mm256_max_ps(v.a, v.b);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
}
LANE Floats f_first(Floats v, int count, float fill) {
    const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32(count);
    const __m256 keep_a = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, places)), other = _mm256_set1_ps(fill);
    const __m256i after = _mm256_add_epi32(places, _mm256_set1_epi32(8));
    const __m256 keep_b = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, after));
    return BOTH(Floats, _mm256_blendv_ps(other, v.a, keep_a), _mm256_blendv_ps(other, v.b, keep_b));
}
LANE __m128i load_eight_words(const uint16_t *from) { return _mm_loadu_si128((const __m128i *)(const void *)from); }
LANE Floats f_half(const uint16_t *from) {
    return BOTH(Floats, _mm256_cvtph_ps(load_eight_words(from)), _mm256_cvtph_ps(load_eight_words(from + 8)));
}
LANE __m256 from_bf16(const uint16_t *from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_eight_words(from)), 16));
}
LANE Floats f_bf16(const uint16_t *from) { return BOTH(Floats, from_bf16(from), from_bf16(from + 8)); }
LANE __m128i load_eight_bytes(const uint8_t *from) { return _mm_loadl_epi64((const __m128i *)(const void *)from); }
LANE Floats f_unsigned(const uint8_t *from) {
    return BOTH(Floats, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_eight_bytes(from))),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_eight_bytes(from + 8))));
}
LANE Floats f_signed(const uint8_t *from) {
    return BOTH(Floats, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_eight_bytes(from))),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_eight_bytes(from + 8))));
}
LANE Floats f_ints(Ints v) { return BOTH(Floats, _mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b)); }
LANE __m128i to_words(__m256 v) {
    const __m256i whole = _mm256_cvtps_epi32(v);
    return _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
}
LANE void f_store_int8(int8_t *to, Floats v) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm_packs_epi16(to_words(v.a), to_words(v.b)));
}

LANE Ints i_zero(void) { return BOTH(Ints, _mm256_setzero_si256(), _mm256_setzero_si256()); }
LANE Ints i_add(Ints v, Ints w) { return BOTH(Ints, _mm256_add_epi32(v.a, w.a), _mm256_add_epi32(v.b, w.b)); }

LANE __m256i load_bytes(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)(const void *)from); }
LANE Bytes b_load(const uint8_t *from) { return BOTH(Bytes, load_bytes(from), load_bytes(from + 32)); }
LANE Bytes b_eight(const uint8_t *from) { return b_load(from); }
LANE Bytes b_and(Bytes v, int mask) {
    const __m256i m = _mm256_set1_epi8((char)mask);
    return BOTH(Bytes, _mm256_and_si256(v.a, m), _mm256_and_si256(v.b, m));
}
LANE Bytes b_right(Bytes v, int by) { return BOTH(Bytes, _mm256_srli_epi16(v.a, by), _mm256_srli_epi16(v.b, by)); }
LANE Bytes b_left(Bytes v, int by) { return BOTH(Bytes, _mm256_slli_epi16(v.a, by), _mm256_slli_epi16(v.b, by)); }
LANE Bytes b_low(Bytes v) { return b_and(v, 15); }
LANE Bytes b_high(Bytes v) { return b_and(b_right(v, 4), 15); }
LANE Bytes b_or(Bytes v, Bytes w) { return BOTH(Bytes, _mm256_or_si256(v.a, w.a), _mm256_or_si256(v.b, w.b)); }
LANE Bytes b_to_fourth(Bytes v, int at) { return at < 4 ? b_left(v, 4 - at) : b_right(v, at - 4); }
LANE Bytes b_bit(Bytes v, int at) { return b_and(b_to_fourth(v, at), 16); }
LANE Bytes b_pair(Bytes v, int at) { return b_and(b_to_fourth(v, at), 48); }

LANE __m256i four_everywhere(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm256_set1_epi32(four);
}
// GCC makes a tree of a chain of integer additions, and then has no registers for its leaves: it may not look into the chain.
LANE __m256i add(__m256i sum, __m256i products) {
    sum = _mm256_add_epi32(sum, products);
    __asm__("" : "+x"(sum));
    return sum;
}
LANE __m256i add_short(__m256i sum, __m256i products) {
    sum = _mm256_add_epi16(sum, products);
    __asm__("" : "+x"(sum));
    return sum;
}
// Pairs are added in 16 bits: 2 * 63 * 127 fits, and so does 2 * 128 * 127 with the sign moved to the activation.
LANE __m256i dot(__m256i sum, __m256i w, __m256i x) {
    return add(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
LANE Ints i_dot(Ints sum, Bytes w, const int8_t *x) {
    const __m256i four = four_everywhere(x);
    return BOTH(Ints, dot(sum.a, w.a, four), dot(sum.b, w.b, four));
}
// The same with sums of 16 bits, two a lane, and what they are in 32.
LANE Ints i_dot_short(Ints sum, Bytes w, const int8_t *x) {
    const __m256i four = four_everywhere(x);
    return BOTH(Ints, add_short(sum.a, _mm256_maddubs_epi16(w.a, four)), add_short(sum.b, _mm256_maddubs_epi16(w.b, four)));
}
LANE Ints i_add_short(Ints sum, Ints v) {
    const __m256i one = _mm256_set1_epi16(1);
    return BOTH(Ints, add(sum.a, _mm256_madd_epi16(v.a, one)), add(sum.b, _mm256_madd_epi16(v.b, one)));
}
LANE Ints i_dot8(Ints sum, Bytes w, const int8_t *x) {
    const __m256i four = four_everywhere(x);
    return BOTH(Ints, dot(sum.a, _mm256_abs_epi8(w.a), _mm256_sign_epi8(four, w.a)),
                dot(sum.b, _mm256_abs_epi8(w.b), _mm256_sign_epi8(four, w.b)));
}

// Four columns of bytes as words, unsigned or (8 bits) signed: the first and the third, or the second and the fourth.
LANE Ints w_even(const int bits, Bytes w) {
    if (bits == 8) return BOTH(Ints, _mm256_srai_epi16(_mm256_slli_epi16(w.a, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(w.b, 8), 8));
    const __m256i low = _mm256_set1_epi16(255);
    return BOTH(Ints, _mm256_and_si256(w.a, low), _mm256_and_si256(w.b, low));
}
LANE Ints w_odd(const int bits, Bytes w) {
    return bits == 8 ? BOTH(Ints, _mm256_srai_epi16(w.a, 8), _mm256_srai_epi16(w.b, 8)) : b_right(w, 8);
}
// Add to each lane the products of its two words with two words of activations.
LANE Ints i_dot_words(Ints sum, Ints w, const int8_t *x) {
    const __m256i two = four_everywhere(x);
    return BOTH(Ints, add(sum.a, _mm256_madd_epi16(w.a, two)), add(sum.b, _mm256_madd_epi16(w.b, two)));
}
// Words of 16 columns: of each quad the first and the third to `even`, the second and the fourth to `odd`, quads `step` bytes
// apart.
LANE void f_store_words(int8_t *even, int8_t *odd, int step, Floats v) {
    enum { ORDER = _MM_SHUFFLE(3, 1, 2, 0) };
    const __m256i a = _mm256_shuffle_epi32(_mm256_cvtps_epi32(v.a), ORDER), b = _mm256_shuffle_epi32(_mm256_cvtps_epi32(v.b), ORDER);
    int8_t pairs[8][4];
    // Packed by halves: the quads come as 0, 2, 1, 3.
    _mm256_storeu_si256((__m256i *)(void *)pairs, _mm256_packs_epi32(a, b));
    for (int quad = 0; quad < 4; quad++) {
        const int at = 4 * (quad & 1) + (quad & 2);
        memcpy(even + quad * step, pairs[at], 4);
        memcpy(odd + quad * step, pairs[at + 1], 4);
    }
}

#endif
