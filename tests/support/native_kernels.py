"""Calling single native kernels on numpy arrays, and float32 truth for them from torch."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from stretto.backends.native.kv_format import KV_FORMAT_NUMBERS
from stretto.backends.native.library import (
    ENCODING_NUMBERS,
    QUERY_TILE,
    Attention,
    KVHeadLayout,
    Library,
    Matrix,
    address,
)
from stretto.weights.blocks import RawTensor, dequantise
from support.weights_blocks import random_rows

FloatArray = npt.NDArray[np.float32]


@dataclass
class PackedMatrix:
    """A random matrix in a GGUF encoding, packed, and the same dequantised."""

    matrix: Matrix
    dense: FloatArray
    memory: npt.NDArray[np.uint8]


def make_matrix(library: Library, encoding: str, rows: int, columns: int, seed: int = 0) -> PackedMatrix:
    """Random weights; the memory for them starts dirty, as a reused allocation would."""
    data = random_rows(np.random.default_rng(seed), encoding, rows, columns)
    number = ENCODING_NUMBERS[encoding]
    size = library.call.stretto_packed_bytes(number, rows, columns)
    memory = np.full(size + 64, 0xA5, dtype=np.uint8)
    matrix = Matrix()
    pool = library.call.stretto_pool_new(2)
    library.call.stretto_pack(
        pool,
        number,
        rows,
        columns,
        address(data),
        address(memory) + -address(memory) % 64,
        ctypes.byref(matrix),
    )
    library.call.stretto_pool_free(pool)
    return PackedMatrix(matrix, dequantise(RawTensor("w", encoding, (rows, columns), data)), memory)


def multiply(
    library: Library,
    kernels: str,
    packed: PackedMatrix,
    x: FloatArray,
    bias: FloatArray | None = None,
    *,
    fine: bool = False,
) -> FloatArray:
    """[rows, columns] to [rows, matrix rows]."""
    out = np.full((x.shape[0], packed.matrix.rows), np.nan, dtype=np.float32)
    done = library.call.stretto_multiply(
        kernels.encode(), ctypes.byref(packed.matrix), address(x), x.shape[0],
        None if bias is None else address(bias), int(fine), address(out),
    )  # fmt: skip
    assert done == 1
    return out


def quantised_activations(x: FloatArray, *, fine: bool = False) -> FloatArray:
    """What 8-bit activations in groups of 32 stand for, or those with a second plane, computed in float64 by the definition."""
    groups = x.astype(np.float64).reshape(*x.shape[:-1], -1, 32)
    scale = np.abs(groups).max(-1, keepdims=True) / 127
    exact = np.divide(groups, scale, out=np.zeros_like(groups), where=scale > 0)
    steps = np.rint(exact)
    if fine:
        steps += np.rint((exact - steps) * 254) / 254
    result: FloatArray = (steps * scale).reshape(x.shape).astype(np.float32)
    return result


@dataclass
class PagedCache:
    """Keys and values of one sequence in scattered blocks of a cache full of NaN; of int8, the scales are.

    Attributes:
        keys, values: float32 [tokens, kv_heads, head_size], what the cache stands for.
        kv_dtype: ``float32``, ``bfloat16`` or ``int8``.
    """

    memory: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]
    keys: FloatArray
    values: FloatArray
    block_tokens: int
    kv_dtype: str

    @property
    def layout(self) -> KVHeadLayout:
        """Where a head's parts lie in its part of a block."""
        head_size = self.keys.shape[2]
        padded = -(-self.block_tokens // 16) * 16
        size = {"float32": 4, "bfloat16": 2, "int8": 1}[self.kv_dtype]
        scales = 2 * padded * -(-head_size // 32) if self.kv_dtype == "int8" else 0
        values_at, keys_end = head_size * padded * size, head_size * (padded + self.block_tokens) * size
        return KVHeadLayout(
            KV_FORMAT_NUMBERS[self.kv_dtype], head_size, self.block_tokens, padded,
            values_at, keys_end, keys_end + scales, keys_end + 2 * scales,
        )  # fmt: skip


def spread(x: FloatArray) -> FloatArray:
    """Walsh-Hadamard transform of the parts of the last axis, of the largest power of two in it; by the definition."""
    size = x.shape[-1]
    part = size & -size
    parity = [[(i & j).bit_count() & 1 for j in range(part)] for i in range(part)]
    matrix = (1 - 2 * np.array(parity, dtype=np.float64)) / part**0.5
    result: FloatArray = (x.reshape(*x.shape[:-1], -1, part) @ matrix).reshape(x.shape)
    return result


def eight_bits(x: FloatArray) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.uint16], FloatArray]:
    """Groups of 32 of the last axis, the last may be shorter: int8, bfloat16 scales as bits, and what these stand for."""
    whole = np.empty(x.shape, dtype=np.int8)
    scales = np.empty((*x.shape[:-1], -(-x.shape[-1] // 32)), dtype=np.uint16)
    seen = np.empty(x.shape, dtype=np.float32)
    for group in range(scales.shape[-1]):
        part = x[..., 32 * group : 32 * group + 32]
        bits = (np.abs(part).max(-1) / 127).astype(np.float32).view(np.uint32)
        scales[..., group] = (bits + 0xFFFF) >> 16
        scale = (scales[..., group].astype(np.uint32) << 16).view(np.float32)[..., None]
        steps = np.rint(np.divide(part, scale, out=np.zeros_like(part), where=scale > 0))
        whole[..., 32 * group : 32 * group + 32] = steps
        seen[..., 32 * group : 32 * group + 32] = steps * scale
    return whole, scales, seen


def make_cache(
    tokens: int, kv_heads: int, head_size: int, block_tokens: int, kv_dtype: str, seed: int = 0
) -> PagedCache:
    """Random K and V, rounded to the dtype of the cache; keys of int8 have a dimension that is far larger than the others."""
    rng = np.random.default_rng(seed)
    keys, values = (rng.normal(size=(tokens, kv_heads, head_size)).astype(np.float32) for _ in range(2))
    if kv_dtype == "int8":
        keys[:, :, 5] += 8
    used = -(-tokens // block_tokens)
    table = rng.permutation(used + 3).astype(np.int32)[:used]
    cache = PagedCache(np.empty(0, np.uint8), table, keys, values, block_tokens, kv_dtype)
    layout = cache.layout
    padded, filler = layout.padded, 0xFF if kv_dtype != "int8" else 0x81
    pool = np.full((used + 3, kv_heads, layout.head_bytes), filler, dtype=np.uint8)
    if kv_dtype == "int8":
        # Scales that nobody wrote are NaN.
        pool[:, :, layout.key_scales_at :] = 0xFF
        wholes, scales, seen = zip(*(eight_bits(part) for part in (spread(keys), values)), strict=True)
        cache.keys, cache.values = spread(seen[0]).astype(np.float32), seen[1]
    else:
        dtype = torch.bfloat16 if kv_dtype == "bfloat16" else torch.float32
        rounded = [torch.from_numpy(part).to(dtype) for part in (keys, values)]
        cache.keys, cache.values = (part.float().numpy() for part in rounded)
        unsigned = np.uint16 if kv_dtype == "bfloat16" else np.uint32
        view = torch.uint16 if kv_dtype == "bfloat16" else torch.uint32
        wholes, scales = tuple(part.view(view).numpy().astype(unsigned) for part in rounded), ()
    kind = wholes[0].dtype
    for token in range(tokens):
        block, offset = int(table[token // block_tokens]), token % block_tokens
        for head in range(kv_heads):
            page = pool[block, head]
            by_dimension = page[: layout.values_at].view(kind).reshape(head_size, padded)
            by_token = (
                page[layout.values_at : layout.key_scales_at].view(kind).reshape(block_tokens, head_size)
            )
            by_dimension[:, offset], by_token[offset] = wholes[0][token, head], wholes[1][token, head]
            ends = (layout.key_scales_at, layout.value_scales_at, layout.head_bytes)
            for number, scale in enumerate(scales):
                page[ends[number] : ends[number + 1]].view(np.uint16).reshape(-1, padded)[:, offset] = scale[
                    token, head
                ]
    cache.memory = pool
    return cache


def attend(
    library: Library, kernels: str, cache: PagedCache, queries: FloatArray, start: int, kv_head: int
) -> FloatArray:
    """Queries [rows, per_position, head_size] at positions from ``start`` on, against one KV head."""
    rows, per_position, head_size = queries.shape
    out = np.full_like(queries, np.nan)
    count = rows * per_position
    assert count <= QUERY_TILE
    pointers = ctypes.c_void_p * QUERY_TILE
    step = head_size * 4
    layout = cache.layout
    attention = Attention(
        layer=address(cache.memory), block_bytes=layout.head_bytes * cache.keys.shape[1], kv=layout,
        table=address(cache.table), kv_head=kv_head, first_token=0, end_token=start + rows, queries=count,
        per_position=per_position, start=start,
        query=pointers(*(address(queries) + i * step for i in range(count))),
        out=pointers(*(address(out) + i * step for i in range(count))),
    )  # fmt: skip
    assert library.call.stretto_attend(kernels.encode(), ctypes.byref(attention)) == 1
    return out


def attend_reference(cache: PagedCache, queries: FloatArray, start: int, kv_head: int) -> FloatArray:
    """The same by torch in float64, one row at a time."""
    keys, values = (torch.from_numpy(part[:, kv_head]).double() for part in (cache.keys, cache.values))
    rows = [
        torch.softmax(torch.from_numpy(row).double() @ keys[: start + i + 1].T / queries.shape[-1] ** 0.5, -1)
        @ values[: start + i + 1]
        for i, row in enumerate(queries)
    ]
    result: FloatArray = torch.stack(rows).float().numpy()
    return result


def other_threads() -> int:
    """Threads of this process that the operating system knows beyond Python's own."""
    from pathlib import Path

    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()
