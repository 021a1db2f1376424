// Sixteen lanes in plain C: the reference for every other instruction set, and what an unknown processor runs.
#ifndef STRETTO_LANES_H
#define STRETTO_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "matrix.h"

#define LANE static inline
#define KERNEL static
#define KERNELS kernels_scalar
#define KERNELS_NAME "scalar"
// What is added to an 8-bit weight before it is multiplied.
enum { EIGHT_BIT_ZERO = 0 };

// Most rows of activations that one pass over a panel computes: what the registers hold.
enum { TILE_MOST = 1 };
// In attention; see lanes_avx2.h.
enum { QUERIES_MOST = 1, TWO_CHAINS_MOST = 8 };
// Planes of activations whose sums the registers hold together.
enum { PLANES_AT_ONCE = 1 };

typedef struct { float lane[16]; } Floats;
typedef struct { int32_t lane[16]; } Ints;
typedef struct { uint8_t byte[64]; } Bytes;

#define EACH(i) for (int i = 0; i < 16; i++)

LANE Floats f_set(float value) { Floats r; EACH(i) r.lane[i] = value; return r; }
LANE Floats f_load(const float *from) { Floats r; EACH(i) r.lane[i] = from[i]; return r; }
LANE void f_store(float *to, Floats a) { EACH(i) to[i] = a.lane[i]; }
LANE Floats f_add(Floats a, Floats b) { EACH(i) a.lane[i] += b.lane[i]; return a; }
LANE Floats f_mul(Floats a, Floats b) { EACH(i) a.lane[i] *= b.lane[i]; return a; }
LANE Floats f_div(Floats a, Floats b) { EACH(i) a.lane[i] /= b.lane[i]; return a; }
LANE Floats f_max(Floats a, Floats b) { EACH(i) a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; return a; }
LANE Floats f_abs(Floats a) { EACH(i) a.lane[i] = fabsf(a.lane[i]); return a; }
LANE Floats f_fma(Floats a, Floats b, Floats c) { EACH(i) c.lane[i] += a.lane[i] * b.lane[i]; return c; }
LANE Floats f_nfma(Floats a, Floats b, Floats c) { EACH(i) c.lane[i] -= a.lane[i] * b.lane[i]; return c; }
LANE Floats f_round(Floats a) { EACH(i) a.lane[i] = nearbyintf(a.lane[i]); return a; }
LANE Floats f_power2(Floats a) { EACH(i) a.lane[i] = ldexpf(1.0f, (int)a.lane[i]); return a; }
LANE float f_sum(Floats a) { float sum = 0; EACH(i) sum += a.lane[i]; return sum; }
LANE float f_highest(Floats a) { float most = a.lane[0]; EACH(i) most = a.lane[i] > most ? a.lane[i] : most; return most; }
// The first `count` lanes, `fill` in the others.
LANE Floats f_first(Floats a, int count, float fill) { EACH(i) if (i >= count) a.lane[i] = fill; return a; }
LANE Floats f_half(const uint16_t *from) { Floats r; EACH(i) r.lane[i] = half_to_float(from[i]); return r; }
LANE Floats f_bf16(const uint16_t *from) {
    Floats r;
    EACH(i) { const uint32_t bits = (uint32_t)from[i] << 16; memcpy(&r.lane[i], &bits, 4); }
    return r;
}
LANE Floats f_unsigned(const uint8_t *from) { Floats r; EACH(i) r.lane[i] = from[i]; return r; }
LANE Floats f_signed(const uint8_t *from) { Floats r; EACH(i) r.lane[i] = (int8_t)from[i]; return r; }
LANE Floats f_ints(Ints a) { Floats r; EACH(i) r.lane[i] = (float)a.lane[i]; return r; }
// Whole numbers from -127 to 127 as int8.
LANE void f_store_int8(int8_t *to, Floats a) { EACH(i) to[i] = (int8_t)a.lane[i]; }

LANE Ints i_zero(void) { Ints r; EACH(i) r.lane[i] = 0; return r; }
LANE Ints i_add(Ints a, Ints b) { EACH(i) a.lane[i] += b.lane[i]; return a; }

LANE Bytes b_load(const uint8_t *from) { Bytes r; memcpy(r.byte, from, 64); return r; }
LANE Bytes b_eight(const uint8_t *from) { return b_load(from); }
LANE Bytes b_low(Bytes a) { for (int i = 0; i < 64; i++) a.byte[i] &= 15; return a; }
LANE Bytes b_high(Bytes a) { for (int i = 0; i < 64; i++) a.byte[i] >>= 4; return a; }
LANE Bytes b_or(Bytes a, Bytes b) { for (int i = 0; i < 64; i++) a.byte[i] |= b.byte[i]; return a; }
// Bit `at` of every byte, moved to bit 4; the same with the two bits from `at` on.
LANE Bytes b_bit(Bytes a, int at) { for (int i = 0; i < 64; i++) a.byte[i] = (uint8_t)((a.byte[i] >> at & 1) << 4); return a; }
LANE Bytes b_pair(Bytes a, int at) { for (int i = 0; i < 64; i++) a.byte[i] = (uint8_t)((a.byte[i] >> at & 3) << 4); return a; }

// Add to each lane the product of its four bytes with the four activations at `x`. Weights of up to six bits are
// unsigned; `i_dot8` takes what `b_eight` gave.
LANE Ints i_dot(Ints sum, Bytes w, const int8_t *x) {
    EACH(i) for (int j = 0; j < 4; j++) sum.lane[i] += (int32_t)w.byte[4 * i + j] * x[j];
    return sum;
}
LANE Ints i_dot8(Ints sum, Bytes w, const int8_t *x) {
    EACH(i) for (int j = 0; j < 4; j++) sum.lane[i] += (int32_t)(int8_t)w.byte[4 * i + j] * x[j];
    return sum;
}

#endif
