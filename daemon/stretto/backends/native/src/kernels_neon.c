#if defined(__aarch64__)

#include "lanes_neon.h"

#include "kernels_body.h"

#else

// ISO C wants a declaration.
extern int stretto_no_neon;

#endif
