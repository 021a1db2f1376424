"""Tensor encodings: how many values and bytes a block has, and how it turns into float32.

The layouts are those of ggml (``ggml-common.h``); a block is little-endian and rows are whole blocks. ``d`` and ``m``
are float16 scale and offset:

======  ======  =====  ==================================================================================
name    values  bytes  layout and value
======  ======  =====  ==================================================================================
Q8_0    32      34     d, 32 x int8: d * q
Q4_0    32      18     d, 16 bytes: low nibbles are values 0-15, high ones 16-31: d * (q - 8)
Q4_1    32      20     d, m, nibbles: d * q + m
Q5_0    32      22     d, 32 bits (the fifth bits), nibbles: d * (q - 16)
Q5_1    32      24     d, m, 32 bits, nibbles: d * q + m
Q4_K    256     144    d, dmin, 8 x (6-bit scale, 6-bit minimum) in 12 bytes, nibbles by 64: d * s * q - dmin * m
Q5_K    256     176    as Q4_K, with 32 bytes of fifth bits before the nibbles
Q6_K    256     210    128 bytes of low nibbles, 64 of high bit pairs, 16 x int8 scales, d: d * s * (q - 32)
======  ======  =====  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

UInt8Array = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]

_CHUNK_VALUES = 1 << 18
"""Values decoded at a time: temporaries stay in the processor's cache and never double a tensor."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """One tensor encoding.

    Attributes:
        name: e.g. ``Q4_K``.
        block_values: values a block.
        block_bytes: bytes a block.
    """

    name: str
    block_values: int
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of ``columns`` values. Raises ValueError if that is not a number of whole blocks."""
        blocks, rest = divmod(columns, self.block_values)
        if rest:
            raise ValueError(
                f"{columns} values a row are not whole {self.name} blocks of {self.block_values}"
            )
        return blocks * self.block_bytes


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as it lies in the file.

    Attributes:
        name: canonical name.
        encoding: a key of ``ENCODINGS``.
        shape: row-major, the last dimension is contiguous.
        data: uint8 [rows, bytes of a row], read-only, a view of the mapped file (a copy where rows were put in another
            order). A vector is one row.
    """

    name: str
    encoding: str
    shape: tuple[int, ...]
    data: UInt8Array

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.data.nbytes


def dequantise(raw: RawTensor, rows: slice | None = None) -> Float32Array:
    """Decode a tensor, or a slice of its rows.

    Args:
        raw: any supported encoding.
        rows: which rows of a matrix, so that a caller can go through a large one piece by piece; None is all.

    Returns:
        float32 of ``raw.shape``, or [selected rows, columns]; never a view of the file.
    """
    encoding = ENCODINGS[raw.encoding]
    data = raw.data if rows is None else raw.data[rows]
    columns = data.shape[1] // encoding.block_bytes * encoding.block_values
    out: Float32Array = np.empty((data.shape[0], columns), dtype=np.float32)
    decode = _DECODERS[raw.encoding]
    step = max(1, _CHUNK_VALUES // max(1, columns))
    for start in range(0, data.shape[0], step):
        part = np.ascontiguousarray(data[start : start + step])
        blocks = part.reshape(-1, encoding.block_bytes)
        decode(blocks, out[start : start + step].reshape(-1, encoding.block_values))
    return out.reshape(raw.shape) if rows is None else out


def _half(blocks: UInt8Array, start: int) -> Float32Array:
    """float32 [blocks, 1]: the float16 at byte ``start`` of each block."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _plain(dtype: Any) -> Callable[[UInt8Array, Float32Array], None]:
    def decode(blocks: UInt8Array, out: Float32Array) -> None:
        out[...] = blocks.view(dtype)

    return decode


def _bf16(blocks: UInt8Array, out: Float32Array) -> None:
    np.left_shift(blocks.view("<u2"), 16, out=out.view(np.uint32), dtype=np.uint32, casting="unsafe")


def _q8_0(blocks: UInt8Array, out: Float32Array) -> None:
    np.multiply(blocks[:, 2:].view(np.int8), _half(blocks, 0), out=out)


def _nibbles(packed: UInt8Array, out: Float32Array) -> None:
    """Low nibbles into the first half of each row, high ones into the second."""
    half = packed.shape[1]
    np.bitwise_and(packed, 0x0F, out=out[:, :half], casting="unsafe")
    np.right_shift(packed, 4, out=out[:, half:], casting="unsafe")


def _fifth_bits(blocks: UInt8Array, start: int, out: Float32Array) -> None:
    """Add 16 to each value whose bit is set in the 32 bits at byte ``start``."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    np.add(out, bits << np.uint8(4), out=out)


def _q4_0(blocks: UInt8Array, out: Float32Array) -> None:
    _nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _half(blocks, 0)


def _q4_1(blocks: UInt8Array, out: Float32Array) -> None:
    _nibbles(blocks[:, 4:], out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _q5_0(blocks: UInt8Array, out: Float32Array) -> None:
    _nibbles(blocks[:, 6:], out)
    _fifth_bits(blocks, 2, out)
    out -= 16
    out *= _half(blocks, 0)


def _q5_1(blocks: UInt8Array, out: Float32Array) -> None:
    _nibbles(blocks[:, 8:], out)
    _fifth_bits(blocks, 4, out)
    out *= _half(blocks, 0)
    out += _half(blocks, 2)


def _k_scales(blocks: UInt8Array) -> tuple[Float32Array, Float32Array]:
    """float32 [blocks, 8, 1] twice: d * scale and dmin * minimum of each group of 32 values.

    Bytes 4-15 hold them: low six bits of bytes 0-3 are scales 0-3, of 4-7 minima 0-3; scales 4-7 are the low nibbles
    of 8-11 under the top two bits of 0-3, minima 4-7 the high nibbles under the top two bits of 4-7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], axis=1)
    minima = np.concatenate([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], axis=1)
    return (_half(blocks, 0) * scales)[:, :, None], (_half(blocks, 2) * minima)[:, :, None]


def _q4_k(blocks: UInt8Array, out: Float32Array) -> None:
    scales, minima = _k_scales(blocks)
    packed = blocks[:, 16:].reshape(-1, 4, 32)
    groups = out.reshape(-1, 4, 2, 32)
    np.bitwise_and(packed, 0x0F, out=groups[:, :, 0], casting="unsafe")
    np.right_shift(packed, 4, out=groups[:, :, 1], casting="unsafe")
    values = out.reshape(-1, 8, 32)
    values *= scales
    values -= minima


def _q5_k(blocks: UInt8Array, out: Float32Array) -> None:
    scales, minima = _k_scales(blocks)
    fifth = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").transpose(0, 2, 1)
    packed = blocks[:, 48:].reshape(-1, 4, 32)
    groups = out.reshape(-1, 4, 2, 32)
    np.bitwise_and(packed, 0x0F, out=groups[:, :, 0], casting="unsafe")
    np.right_shift(packed, 4, out=groups[:, :, 1], casting="unsafe")
    values = out.reshape(-1, 8, 32)
    np.add(values, fifth << np.uint8(4), out=values)
    values *= scales
    values -= minima


def _q6_k(blocks: UInt8Array, out: Float32Array) -> None:
    low = blocks[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    values = (low & np.uint8(0x0F)).reshape(-1, 8, 32) | ((high & np.uint8(0x03)) << np.uint8(4)).reshape(
        -1, 8, 32
    )
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)
    np.subtract(values, 32, out=out.reshape(-1, 8, 32), dtype=np.float32)
    groups = out.reshape(-1, 16, 16)
    groups *= scales[:, :, None]


ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding
    for encoding in (
        Encoding("F32", 1, 4),
        Encoding("F16", 1, 2),
        Encoding("BF16", 1, 2),
        Encoding("Q8_0", 32, 34),
        Encoding("Q4_0", 32, 18),
        Encoding("Q4_1", 32, 20),
        Encoding("Q5_0", 32, 22),
        Encoding("Q5_1", 32, 24),
        Encoding("Q4_K", 256, 144),
        Encoding("Q5_K", 256, 176),
        Encoding("Q6_K", 256, 210),
    )
}
"""Every encoding that can be read, by name."""

_DECODERS: dict[str, Callable[[UInt8Array, Float32Array], None]] = {
    "F32": _plain("<f4"),
    "F16": _plain("<f2"),
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
