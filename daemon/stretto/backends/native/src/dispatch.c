// Which kernels this processor can run.
#include <string.h>

#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#endif

enum { KINDS = 4 };

#if defined(__x86_64__)
// The compiler's own checks ask the operating system as well, whether it saves the registers.
static int has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#if defined(HAS_AVX512_BF16)
static int has_bf16(void) {  // GCC before 11 knows no name for it
    unsigned a, b, c, d;
    return has_avx512() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5)) != 0;
}
#endif
static int has_f16c(void) {  // GCC before 11 and Clang before 19 know no name for it
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}
#elif defined(__aarch64__)
static int has_neon_dot(void) {
#if defined(__APPLE__)
    return 1;  // every 64-bit Mac
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return 0;
#endif
}
#endif

const Kernels *kernels_at(int n) {
    const Kernels *kinds[KINDS];
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
#if defined(HAS_AVX512_BF16)
    if (has_bf16()) kinds[count++] = &kernels_avx512_bf16;
#endif
    if (has_avx512()) kinds[count++] = &kernels_avx512;
    if (has_avx2()) kinds[count++] = &kernels_avx2;
#elif defined(__aarch64__)
    if (has_neon_dot()) kinds[count++] = &kernels_neon;
#endif
    kinds[count++] = &kernels_scalar;
    return n >= 0 && n < count ? kinds[n] : NULL;
}

const Kernels *find_kernels(const char *name) {
    if (!name || !*name) return kernels_at(0);
    for (int n = 0; n < KINDS; n++) {
        const Kernels *kernels = kernels_at(n);
        if (kernels && strcmp(kernels->name, name) == 0) return kernels;
    }
    return NULL;
}
