"""Calling single native kernels on numpy arrays, and float32 truth for them from torch."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from stretto.backends.native.library import ENCODING_NUMBERS, QUERY_TILE, Attention, Library, Matrix, address
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
    """Keys and values of one sequence in scattered blocks of a cache full of NaN."""

    memory: npt.NDArray[np.uint8]
    table: npt.NDArray[np.int32]
    keys: FloatArray
    values: FloatArray
    block_tokens: int
    bf16: bool

    @property
    def padded(self) -> int:
        """Tokens that a block has room for among its keys."""
        return -(-self.block_tokens // 16) * 16


def make_cache(
    tokens: int, kv_heads: int, head_size: int, block_tokens: int, bf16: bool, seed: int = 0
) -> PagedCache:
    """Random K and V [tokens, kv_heads, head_size], rounded to the dtype of the cache."""
    rng = np.random.default_rng(seed)
    dtype = torch.bfloat16 if bf16 else torch.float32
    keys, values = (
        torch.from_numpy(rng.normal(size=(tokens, kv_heads, head_size)).astype(np.float32)).to(dtype)
        for _ in range(2)
    )
    used = -(-tokens // block_tokens)
    table = rng.permutation(used + 3).astype(np.int32)[:used]
    padded = -(-block_tokens // 16) * 16
    pool = torch.full((used + 3, kv_heads, head_size * (padded + block_tokens)), float("nan"), dtype=dtype)
    for token in range(tokens):
        block, offset = int(table[token // block_tokens]), token % block_tokens
        for head in range(kv_heads):
            page = pool[block, head]
            page[: head_size * padded].view(head_size, padded)[:, offset] = keys[token, head]
            page[head_size * padded :].view(block_tokens, head_size)[offset] = values[token, head]
    memory = pool.view(torch.uint8).numpy()
    return PagedCache(memory, table, keys.float().numpy(), values.float().numpy(), block_tokens, bf16)


def attend(
    library: Library, kernels: str, cache: PagedCache, queries: FloatArray, start: int, kv_head: int
) -> FloatArray:
    """Queries [rows, per_position, head_size] at positions from ``start`` on, against one KV head."""
    rows, per_position, head_size = queries.shape
    size = 2 if cache.bf16 else 4
    out = np.full_like(queries, np.nan)
    head_bytes = head_size * (cache.padded + cache.block_tokens) * size
    count = rows * per_position
    assert count <= QUERY_TILE
    pointers = ctypes.c_void_p * QUERY_TILE
    step = head_size * 4
    attention = Attention(
        layer=address(cache.memory), block_bytes=head_bytes * cache.keys.shape[1], head_bytes=head_bytes,
        values_at=head_size * cache.padded * size, block_tokens=cache.block_tokens, padded=cache.padded,
        head_size=head_size, bf16=int(cache.bf16), table=address(cache.table), kv_head=kv_head, first_token=0,
        end_token=start + rows, queries=count, per_position=per_position, start=start,
        query=pointers(*(address(queries) + i * step for i in range(count))),
        out=pointers(*(address(out) + i * step for i in range(count))),
    )  # fmt: skip
    assert library.call.stretto_attend(kernels.encode(), ctypes.byref(attention)) == 1
    return out


def attend_reference(cache: PagedCache, queries: FloatArray, start: int, kv_head: int) -> FloatArray:
    """The same by torch, one row at a time."""
    keys, values = (torch.from_numpy(part[:, kv_head]) for part in (cache.keys, cache.values))
    rows = [
        torch.softmax(torch.from_numpy(row) @ keys[: start + i + 1].T / queries.shape[-1] ** 0.5, -1)
        @ values[: start + i + 1]
        for i, row in enumerate(queries)
    ]
    result: FloatArray = torch.stack(rows).numpy()
    return result


def other_threads() -> int:
    """Threads of this process that the operating system knows beyond Python's own."""
    from pathlib import Path

    return len(list(Path("/proc/self/task").iterdir())) - threading.active_count()
