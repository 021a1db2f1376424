// Weight matrices: the encodings, how a GGUF block reads, and the panel layout that the kernels stream.
#ifndef STRETTO_MATRIX_H
#define STRETTO_MATRIX_H

#include <stddef.h>
#include <stdint.h>

// What kernels consist of is compiled into them, with its constants. The self-test overrides this: there the same code is called, since a
// compiler with sanitizers takes minutes for so much of it at one place.
#ifndef INLINED
#define INLINED inline __attribute__((always_inline))
#endif

enum Encoding { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, ENCODINGS };

enum { PANEL = 16, GROUP = 32, SUPER = 256, BLOCK_MOST = 256 };

// A matrix of `rows` x `columns` in panels of 16 rows, so that one vector holds the same place of 16 rows. Rows are
// padded to whole panels with zeros. Within a panel, values of quantised encodings lie by groups of 32 columns, and
// in a group by eight quads of 4 columns: 64 bytes, 4 columns of each row. Low nibbles of two neighbouring quads
// share their bytes; the fifth bits of a group (bit j: quad j) or the fifth and sixth (bits 2j, 2j + 1: quad j of
// the first, then of the last four) follow. Plain encodings lie as [columns][16].
typedef struct {
    int32_t encoding, rows, columns, panels;
    const uint8_t *values;
    const uint16_t *scales;    // float16 [panels][columns / 32 (256 for K encodings)][16]
    const uint16_t *offsets;   // the same, of Q4_1, Q5_1, Q4_K and Q5_K
    const uint8_t *fine;       // K encodings: [panels][columns / 32][2][16], scales and minima (Q6_K: two scales)
} Matrix;

// One block as it reads: `values` unsigned (Q8_0: int8), the float16 parts as bits.
typedef struct {
    uint8_t values[BLOCK_MOST];
    uint8_t fine[2][16];       // K encodings: scales and minima of 8 groups; Q6_K: 16 int8 scales in fine[0]
    uint16_t scale, offset;
} Block;

static inline int bits_of(int encoding) {
    switch (encoding) {
    case Q8_0: return 8;
    case Q4_0: case Q4_1: case Q4_K: return 4;
    case Q5_0: case Q5_1: case Q5_K: return 5;
    case Q6_K: return 6;
    default: return 0;  // not quantised
    }
}
static inline int is_super(int encoding) { return encoding == Q4_K || encoding == Q5_K || encoding == Q6_K; }
static inline int has_offsets(int encoding) {
    return encoding == Q4_1 || encoding == Q5_1 || encoding == Q4_K || encoding == Q5_K;
}
static inline int plain_bytes(int encoding) { return encoding == F32 ? 4 : 2; }
static inline int group_bytes(int encoding) { return 64 * bits_of(encoding); }

// Values and bytes of a block in a GGUF file.
int block_values(int encoding);
int block_bytes(int encoding);
float half_to_float(uint16_t half);
void read_block(int encoding, const uint8_t *bytes, Block *block);
// One row of a matrix as it lies in the file, to float32.
void dequantise_row(int encoding, const uint8_t *row, int columns, float *out);

// Bytes that `pack` writes, a multiple of 64. `target` is 64-byte aligned.
size_t packed_bytes(int encoding, int64_t rows, int64_t columns);
// Where the parts of a packed matrix lie in `memory`.
Matrix packed_matrix(int encoding, int rows, int columns, uint8_t *memory);
// Pack the panels first..last-1; `source` is the first row of the whole matrix, rows `row_bytes` apart.
void pack_panels(const Matrix *matrix, const uint8_t *source, size_t row_bytes, int first, int last);

#endif
