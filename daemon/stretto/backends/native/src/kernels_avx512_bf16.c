// Attention by products of bfloat16; everything else of these kernels is in kernels_avx512.c.
#include "kernels.h"

#if defined(HAS_AVX512_BF16)

#define BF16_PAIRS

#include <math.h>

#include "lanes_avx512.h"

#include "rows.h"

#include "attention.h"

void attend_avx512_bf16(const Attention *a) { (a->kv.format == KV_BF16 ? attend_bf16 : kernels_avx512.attend)(a); }

#else

// ISO C wants a declaration.
extern int stretto_no_avx512_bf16;

#endif
