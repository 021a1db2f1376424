"""The paged KV pool of one layer group: arrays made once, for life, and written in place.

MLX's arrays never change; a write makes a new one. But when nothing else holds the old one, the new one takes over its memory, so
that a write costs what it writes. Therefore whoever reads a pool must have let go of it before the next write is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from stretto.backends.base import BackendFailure

Int64Array = npt.NDArray[np.int64]

INDEX_LIMIT = 1 << 31
"""MLX counts positions along an axis, and indexes, in 32 bits."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """K and V of one layer. The two may differ, as in latent attention.

    Attributes:
        window_tokens: how far back it looks; None for all of it.
        key_heads, key_size, value_heads, value_size: heads, and values a head.
        dtype: of both.
    """

    window_tokens: int | None
    key_heads: int
    key_size: int
    value_heads: int
    value_size: int
    dtype: mx.Dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in one layer."""
        return (self.key_heads * self.key_size + self.value_heads * self.value_size) * self.dtype.size


class GroupPool:
    """Keys and values of layers of the same geometry.

    One array a layer for K and one for V, each [heads * (slots + 1), head size]: head by head, and within it slot by slot (block
    number * block_tokens + offset), so that the cache of a sequence in consecutive blocks is a view. The last slot of each head takes
    what padding writes, and is never read.
    """

    def __init__(self, geometry: Geometry, *, layers: int, block_tokens: int, blocks: int) -> None:
        """Nothing is allocated before ``arrays`` are evaluated. Raises BackendFailure for more slots than MLX can index."""
        self.geometry = geometry
        self.block_tokens, self.blocks = block_tokens, blocks
        self.spare_slot = blocks * block_tokens
        self._stride = self.spare_slot + 1
        heads = max(geometry.key_heads, geometry.value_heads)
        if heads * self._stride >= INDEX_LIMIT:
            raise BackendFailure(
                f"{blocks} blocks of {block_tokens} tokens in {heads} KV heads are more than MLX can index"
            )
        self._keys = [self._empty(geometry.key_heads, geometry.key_size) for _ in range(layers)]
        self._values = [self._empty(geometry.value_heads, geometry.value_size) for _ in range(layers)]

    @property
    def nbytes(self) -> int:
        """Bytes of all layers."""
        return sum(array.nbytes for array in self.arrays())

    def arrays(self) -> Iterator[mx.array]:
        """What has to be evaluated after a write."""
        yield from self._keys
        yield from self._values

    def write(
        self, layer: int, keys: mx.array, values: mx.array, key_index: mx.array, value_index: mx.array
    ) -> None:
        """Store K and V of a pass, each [rows, heads, tokens, head size], where ``index`` of their slots says."""
        self._keys[layer][key_index] = keys.astype(self.geometry.dtype)
        self._values[layer][value_index] = values.astype(self.geometry.dtype)

    def gather(self, layer: int, key_index: mx.array, value_index: mx.array) -> tuple[mx.array, mx.array]:
        """Copies of the slots of an ``index``: K and V, each [rows, heads, slots, head size]."""
        return self._keys[layer][key_index], self._values[layer][value_index]

    def run(self, layer: int, start: int, end: int) -> tuple[mx.array, mx.array]:
        """Consecutive slots, without a copy: K and V, each [1, heads, end - start, head size]."""
        return self._view(self._keys[layer], start, end), self._view(self._values[layer], start, end)

    def index(self, heads: int, slots: Int64Array) -> mx.array:
        """Where slots [rows, tokens] lie in an array of so many heads: int32 [rows, heads, tokens]."""
        first = np.arange(heads, dtype=np.int64) * self._stride
        return mx.array((first[None, :, None] + slots[:, None, :]).astype(np.int32))

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) one after the other. Raises BackendFailure for a bad number."""
        for source, destination in pairs:
            here, there = self._block(source), self._block(destination)
            for arrays, heads in self._sides():
                source_index, target_index = self.index(heads, here), self.index(heads, there)
                for array in arrays:
                    part = array[source_index]
                    mx.eval(part)
                    array[target_index] = part
                    mx.eval(array)

    def read(self, block: int) -> bytes:
        """One block: of each layer K, then of each layer V, [heads, block_tokens, head size] in the pool's dtype."""
        slots = self._block(block)
        parts = [
            array[index].view(mx.uint8)
            for arrays, heads in self._sides()
            for index in (self.index(heads, slots),)
            for array in arrays
        ]
        mx.eval(*parts)
        return b"".join(np.array(part).tobytes() for part in parts)

    def write_block(self, block: int, data: bytes) -> None:
        """Put back what ``read`` gave. Raises BackendFailure when the length is not a block's."""
        slots = self._block(block)
        wanted = len(self._keys) * self.geometry.token_bytes * self.block_tokens
        if len(data) != wanted:
            raise BackendFailure(f"a block has {wanted} bytes, {len(data)} were given")
        start = 0
        for arrays, heads in self._sides():
            index = self.index(heads, slots)
            shape = (1, heads, self.block_tokens, arrays[0].shape[1] * self.geometry.dtype.size)
            size = shape[1] * shape[2] * shape[3]
            for array in arrays:
                part = np.frombuffer(data, dtype=np.uint8, count=size, offset=start).reshape(shape)
                array[index] = mx.array(part).view(self.geometry.dtype)
                start += size
        mx.eval(*self.arrays())

    def _sides(self) -> tuple[tuple[list[mx.array], int], tuple[list[mx.array], int]]:
        return (self._keys, self.geometry.key_heads), (self._values, self.geometry.value_heads)

    def _empty(self, heads: int, size: int) -> mx.array:
        return mx.zeros((heads * self._stride, size), dtype=self.geometry.dtype)

    def _view(self, array: mx.array, start: int, end: int) -> mx.array:
        return array.reshape(1, -1, self._stride, array.shape[1])[:, :, start:end]

    def _block(self, block: int) -> Int64Array:
        """Slots of a block, [1, block_tokens]."""
        if not 0 <= block < self.blocks:
            raise BackendFailure(f"block {block} is not in 0 to {self.blocks - 1}, the range of the pool")
        return np.arange(block * self.block_tokens, (block + 1) * self.block_tokens, dtype=np.int64)[None]
