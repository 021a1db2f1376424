// Sixteen lanes in one AVX-512 register; products by VNNI. With BF16_PAIRS, of pairs of bfloat16 too.
#ifndef STRETTO_LANES_H
#define STRETTO_LANES_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "matrix.h"

#ifdef BF16_PAIRS
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")))
#define KERNEL static __attribute__((unused)) TARGET  // attention is all that differs
#else
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define KERNEL static TARGET
#define KERNELS kernels_avx512
#define KERNELS_NAME "avx512-vnni"
#endif
#define LANE static INLINED TARGET
// VNNI multiplies unsigned by signed bytes: 8-bit weights are made unsigned.
enum { EIGHT_BIT_ZERO = 128 };

// Most rows of activations that one pass over a panel computes: what the registers hold.
enum { TILE_MOST = 8 };
// In attention; see lanes_avx2.h.
enum { QUERIES_MOST = 8, TWO_CHAINS_MOST = 8 };
// Planes of activations whose sums the registers hold together.
enum { PLANES_AT_ONCE = 2 };

typedef __m512 Floats;
typedef __m512i Ints;
typedef __m512i Bytes;

LANE Floats f_set(float value) { return _mm512_set1_ps(value); }
LANE Floats f_load(const float *from) { return _mm512_loadu_ps(from); }
LANE void f_store(float *to, Floats a) { _mm512_storeu_ps(to, a); }
LANE Floats f_add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
LANE Floats f_mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
LANE Floats f_div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
LANE Floats f_max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
LANE Floats f_abs(Floats a) { return _mm512_abs_ps(a); }
LANE Floats f_fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
LANE Floats f_nfma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
LANE Floats f_round(Floats a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
LANE Floats f_power2(Floats a) { return _mm512_scalef_ps(_mm512_set1_ps(1.0f), a); }
LANE float f_sum(Floats a) { return _mm512_reduce_add_ps(a); }
LANE float f_highest(Floats a) { return _mm512_reduce_max_ps(a); }
LANE Floats f_first(Floats a, int count, float fill) {
    const __mmask16 keep = count >= 16 ? 0xFFFF : (__mmask16)((1u << (count > 0 ? count : 0)) - 1);
    return _mm512_mask_blend_ps(keep, _mm512_set1_ps(fill), a);
}
LANE Floats f_half(const uint16_t *from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from)); }
LANE Floats f_bf16(const uint16_t *from) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
#ifdef BF16_PAIRS
typedef __m512i Pairs;
// Of two rows of 16 bfloat16, what stands one above the other.
LANE Pairs f_pairs(const uint16_t *low, const uint16_t *high) {
    const __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)low));
    const __m512i second = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)high));
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}
// To each lane's sum the products of its pair and one pair.
LANE Floats f_dot_pairs(Floats sum, Pairs a, uint32_t pair) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)_mm512_set1_epi32((int)pair));
}
LANE void f_store_bf16(uint16_t *to, Floats a) {
    const __m256bh packed = _mm512_cvtneps_pbh(a);
    memcpy(to, &packed, sizeof packed);
}
#endif
LANE Floats f_unsigned(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from)));
}
LANE Floats f_signed(const uint8_t *from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)from)));
}
LANE Floats f_ints(Ints a) { return _mm512_cvtepi32_ps(a); }
LANE void f_store_int8(int8_t *to, Floats a) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a)));
}

LANE Ints i_zero(void) { return _mm512_setzero_si512(); }
LANE Ints i_add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }

LANE Bytes b_load(const uint8_t *from) { return _mm512_loadu_si512(from); }
LANE Bytes b_eight(const uint8_t *from) { return _mm512_xor_si512(b_load(from), _mm512_set1_epi8((char)0x80)); }
LANE Bytes b_low(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
LANE Bytes b_high(Bytes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
LANE Bytes b_or(Bytes a, Bytes b) { return _mm512_or_si512(a, b); }
// Moves bits from `at` on to bit 4; what crosses into the neighbouring byte is masked out by the callers.
LANE Bytes b_to_fourth(Bytes a, int at) {
    return at < 4 ? _mm512_slli_epi16(a, (unsigned)(4 - at)) : _mm512_srli_epi16(a, (unsigned)(at - 4));
}
LANE Bytes b_bit(Bytes a, int at) { return _mm512_and_si512(b_to_fourth(a, at), _mm512_set1_epi8(16)); }
LANE Bytes b_pair(Bytes a, int at) { return _mm512_and_si512(b_to_fourth(a, at), _mm512_set1_epi8(48)); }

LANE __m512i four_everywhere(const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    return _mm512_set1_epi32(four);
}
LANE Ints i_dot(Ints sum, Bytes w, const int8_t *x) { return _mm512_dpbusd_epi32(sum, w, four_everywhere(x)); }
LANE Ints i_dot8(Ints sum, Bytes w, const int8_t *x) { return _mm512_dpbusd_epi32(sum, w, four_everywhere(x)); }

#endif
