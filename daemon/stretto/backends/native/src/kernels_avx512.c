#if defined(__x86_64__)

#include "lanes_avx512.h"

#include "kernels_body.h"

#if defined(HAS_AVX512_BF16)
void attend_avx512_bf16(const Attention *a);
const Kernels kernels_avx512_bf16 = {"avx512-bf16", HAS_WORDS, quantise, multiply, norm, gate, attend_avx512_bf16, pack_head};
#endif

#else

// ISO C wants a declaration.
extern int stretto_no_avx512;

#endif
