#include "lanes_scalar.h"

#include "kernels_body.h"
