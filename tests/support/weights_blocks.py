"""Random but valid quantised rows for every block format, written from the format's layout (independent of the reader)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BLOCK_VALUES = {
    "F32": 1, "F16": 1, "BF16": 1, "Q8_0": 32, "Q4_0": 32, "Q4_1": 32, "Q5_0": 32, "Q5_1": 32,
    "Q4_K": 256, "Q5_K": 256, "Q6_K": 256,
}  # fmt: skip
BLOCK_BYTES = {
    "F32": 4, "F16": 2, "BF16": 2, "Q8_0": 34, "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24,
    "Q4_K": 144, "Q5_K": 176, "Q6_K": 210,
}  # fmt: skip

UInt8Array = npt.NDArray[np.uint8]


def random_rows(
    rng: np.random.Generator, encoding: str, rows: int, columns: int, *, scale: float = 0.1
) -> UInt8Array:
    """uint8 [rows, bytes of a row]: weights of standard deviation near ``scale`` once they are dequantised."""
    values, size = BLOCK_VALUES[encoding], BLOCK_BYTES[encoding]
    if columns % values:
        raise ValueError(f"{columns} columns are not a multiple of {encoding}'s block of {values}")
    count = rows * (columns // values)
    if encoding in ("F32", "F16", "BF16"):
        weights = rng.normal(0.0, scale, (rows, columns)).astype(np.float32)
        if encoding == "F16":
            return weights.astype(np.float16).view(np.uint8)
        if encoding == "BF16":
            return np.ascontiguousarray(weights.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        return weights.view(np.uint8)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)

    def half(value: float) -> UInt8Array:
        """uint8 [count, 2]: float16 numbers within 30 % of ``value``."""
        return (value * rng.uniform(0.7, 1.3, (count, 1))).astype(np.float16).view(np.uint8)

    if encoding == "Q8_0":
        blocks[:, :2] = half(scale / 74)
    elif encoding == "Q4_0":
        blocks[:, :2] = half(scale / 4.6)
    elif encoding == "Q4_1":
        blocks[:, :2], blocks[:, 2:4] = half(scale / 4.6), half(-7.5 * scale / 4.6)
    elif encoding == "Q5_0":
        blocks[:, :2] = half(scale / 9.2)
    elif encoding == "Q5_1":
        blocks[:, :2], blocks[:, 2:4] = half(scale / 9.2), half(-15.5 * scale / 9.2)
    elif encoding == "Q4_K":
        blocks[:, :2], blocks[:, 2:4] = half(scale / 240), half(7.5 * scale / 240)
    elif encoding == "Q5_K":
        blocks[:, :2], blocks[:, 2:4] = half(scale / 480), half(15.5 * scale / 480)
    else:
        blocks[:, 208:210] = half(scale / 1360)
    return blocks.reshape(rows, -1)
