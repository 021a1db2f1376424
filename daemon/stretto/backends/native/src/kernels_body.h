// The kernels over the lanes of whichever header came before, and their table.
#include <math.h>
#include <string.h>

#include "kernels.h"

#include "rows.h"

#include "matmul.h"

#include "attention.h"

const Kernels KERNELS = {KERNELS_NAME, quantise, multiply, norm, gate, attend, pack_head};
