#if defined(__x86_64__)

#include "lanes_avx512.h"

#include "kernels_body.h"

#else

// ISO C wants a declaration.
extern int stretto_no_avx512;

#endif
