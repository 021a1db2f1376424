// The kernels over the lanes of whichever header came before, and their table.
#include <math.h>
#include <string.h>

#include "kernels.h"

#include "rows.h"

#include "matmul.h"

#include "attention.h"

#ifdef WORDS
enum { HAS_WORDS = 1 };
#else
enum { HAS_WORDS = 0 };
#endif
const Kernels KERNELS = {KERNELS_NAME, HAS_WORDS, quantise, multiply, norm, gate, attend, pack_head};
