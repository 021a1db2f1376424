// Sixteen lanes in four NEON registers; products by the dot product extension.
#ifndef STRETTO_LANES_H
#define STRETTO_LANES_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "matrix.h"

#if defined(__clang__)
#define TARGET __attribute__((target("dotprod")))
#else
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
#define LANE static INLINED TARGET
#define KERNEL static TARGET
#define KERNELS kernels_neon
#define KERNELS_NAME "neon-dotprod"
enum { EIGHT_BIT_ZERO = 0 };

// Most rows of activations that one pass over a panel computes: what the registers hold.
enum { TILE_MOST = 2 };
// In attention; see lanes_avx2.h.
enum { QUERIES_MOST = 2, TWO_CHAINS_MOST = 8 };
// Planes of activations whose sums the registers hold together.
enum { PLANES_AT_ONCE = 1 };

typedef struct { float32x4_t part[4]; } Floats;
typedef struct { int32x4_t part[4]; } Ints;
typedef struct { uint8x16_t part[4]; } Bytes;

#define EACH(i) for (int i = 0; i < 4; i++)

LANE Floats f_set(float value) { Floats r; EACH(i) r.part[i] = vdupq_n_f32(value); return r; }
LANE Floats f_load(const float *from) { Floats r; EACH(i) r.part[i] = vld1q_f32(from + 4 * i); return r; }
LANE void f_store(float *to, Floats v) { EACH(i) vst1q_f32(to + 4 * i, v.part[i]); }
LANE Floats f_add(Floats v, Floats w) { EACH(i) v.part[i] = vaddq_f32(v.part[i], w.part[i]); return v; }
LANE Floats f_mul(Floats v, Floats w) { EACH(i) v.part[i] = vmulq_f32(v.part[i], w.part[i]); return v; }
LANE Floats f_div(Floats v, Floats w) { EACH(i) v.part[i] = vdivq_f32(v.part[i], w.part[i]); return v; }
LANE Floats f_max(Floats v, Floats w) { EACH(i) v.part[i] = vmaxq_f32(v.part[i], w.part[i]); return v; }
LANE Floats f_abs(Floats v) { EACH(i) v.part[i] = vabsq_f32(v.part[i]); return v; }
LANE Floats f_fma(Floats v, Floats w, Floats c) { EACH(i) c.part[i] = vfmaq_f32(c.part[i], v.part[i], w.part[i]); return c; }
LANE Floats f_nfma(Floats v, Floats w, Floats c) { EACH(i) c.part[i] = vfmsq_f32(c.part[i], v.part[i], w.part[i]); return c; }
LANE Floats f_round(Floats v) { EACH(i) v.part[i] = vrndnq_f32(v.part[i]); return v; }
LANE Floats f_power2(Floats v) {
    EACH(i) {
        const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(v.part[i]), vdupq_n_s32(127));
        v.part[i] = vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23));
    }
    return v;
}
LANE float f_sum(Floats v) {
    return vaddvq_f32(vaddq_f32(vaddq_f32(v.part[0], v.part[1]), vaddq_f32(v.part[2], v.part[3])));
}
LANE float f_highest(Floats v) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.part[0], v.part[1]), vmaxq_f32(v.part[2], v.part[3])));
}
LANE Floats f_first(Floats v, int count, float fill) {
    static const int32_t PLACES[4] = {0, 1, 2, 3};
    EACH(i) {
        const uint32x4_t keep = vcltq_s32(vaddq_s32(vld1q_s32(PLACES), vdupq_n_s32(4 * i)), vdupq_n_s32(count));
        v.part[i] = vbslq_f32(keep, v.part[i], vdupq_n_f32(fill));
    }
    return v;
}
LANE Floats f_half(const uint16_t *from) {
    Floats r;
    EACH(i) r.part[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + 4 * i)));
    return r;
}
LANE Floats f_bf16(const uint16_t *from) {
    Floats r;
    EACH(i) r.part[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from + 4 * i), 16));
    return r;
}
LANE Floats f_unsigned(const uint8_t *from) {
    Floats r;
    const uint8x16_t all = vld1q_u8(from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(all)), high = vmovl_u8(vget_high_u8(all));
    r.part[0] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(low)));
    r.part[1] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(low)));
    r.part[2] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(high)));
    r.part[3] = vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)));
    return r;
}
LANE Floats f_signed(const uint8_t *from) {
    Floats r;
    const int8x16_t all = vreinterpretq_s8_u8(vld1q_u8(from));
    const int16x8_t low = vmovl_s8(vget_low_s8(all)), high = vmovl_s8(vget_high_s8(all));
    r.part[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    r.part[1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
    r.part[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    r.part[3] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
    return r;
}
LANE Floats f_ints(Ints v) { Floats r; EACH(i) r.part[i] = vcvtq_f32_s32(v.part[i]); return r; }
LANE void f_store_int8(int8_t *to, Floats v) {
    int16x4_t words[4];
    EACH(i) words[i] = vqmovn_s32(vcvtnq_s32_f32(v.part[i]));
    vst1_s8(to, vqmovn_s16(vcombine_s16(words[0], words[1])));
    vst1_s8(to + 8, vqmovn_s16(vcombine_s16(words[2], words[3])));
}

LANE Ints i_zero(void) { Ints r; EACH(i) r.part[i] = vdupq_n_s32(0); return r; }
LANE Ints i_add(Ints v, Ints w) { EACH(i) v.part[i] = vaddq_s32(v.part[i], w.part[i]); return v; }

LANE Bytes b_load(const uint8_t *from) { Bytes r; EACH(i) r.part[i] = vld1q_u8(from + 16 * i); return r; }
LANE Bytes b_eight(const uint8_t *from) { return b_load(from); }
LANE Bytes b_low(Bytes v) { EACH(i) v.part[i] = vandq_u8(v.part[i], vdupq_n_u8(15)); return v; }
LANE Bytes b_high(Bytes v) { EACH(i) v.part[i] = vshrq_n_u8(v.part[i], 4); return v; }
LANE Bytes b_or(Bytes v, Bytes w) { EACH(i) v.part[i] = vorrq_u8(v.part[i], w.part[i]); return v; }
// A shift by a variable amount goes left, and right where the amount is below zero.
LANE Bytes b_to_fourth(Bytes v, int at, int mask) {
    EACH(i) v.part[i] = vandq_u8(vshlq_u8(v.part[i], vdupq_n_s8((int8_t)(4 - at))), vdupq_n_u8((uint8_t)mask));
    return v;
}
LANE Bytes b_bit(Bytes v, int at) { return b_to_fourth(v, at, 16); }
LANE Bytes b_pair(Bytes v, int at) { return b_to_fourth(v, at, 48); }

#if defined(__clang__) && __clang_major__ < 16 && !defined(__ARM_FEATURE_DOTPROD)
// These hide the intrinsic unless a whole file is compiled for the extension.
LANE int32x4_t dot(int32x4_t sum, int8x16_t v, int8x16_t w) {
    __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum) : "w"(v), "w"(w));
    return sum;
}
#else
LANE int32x4_t dot(int32x4_t sum, int8x16_t v, int8x16_t w) { return vdotq_s32(sum, v, w); }
#endif

LANE Ints i_dot(Ints sum, Bytes w, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    const int8x16_t everywhere = vreinterpretq_s8_s32(vdupq_n_s32(four));
    EACH(i) sum.part[i] = dot(sum.part[i], vreinterpretq_s8_u8(w.part[i]), everywhere);
    return sum;
}
LANE Ints i_dot8(Ints sum, Bytes w, const int8_t *x) { return i_dot(sum, w, x); }

#endif
