"""The paged KV pool: one allocation for life, addressed by slot (block number * block_tokens + offset)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from stretto.backends.base import BackendFailure


class Pool(Protocol):
    """What a step does with keys and values, wherever they lie; see ``KVPool`` for the methods.

    Attributes:
        block_tokens: tokens a block.
        blocks: how many there are.
        kv_heads: KV heads a layer.
    """

    block_tokens: int
    blocks: int
    kv_heads: int

    def write(self, layer: int, kv: Tensor, slots: Tensor, slot_run: int | None) -> None: ...

    def run(self, start: int, tokens: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]] | None:
        """None where consecutive slots are no view either."""
        ...

    def gather(self, layer: int, blocks: Tensor, offset: int, tokens: int) -> tuple[Tensor, Tensor]: ...


class KVPool:
    """Keys and values of one layer group, head by head; layers are numbered within it.

    The tensor is [layers, 2 (K, V), kv_heads, slots, head_size]. With slots next to the innermost dimension, the cache
    of a sequence whose blocks are consecutive is one strided view for attention, with each head's values contiguous
    in memory; that is several times cheaper than gathering pages.

    On the CPU the operating system gives the memory as blocks are first written, so a large pool that is not needed
    costs nothing. What has not been written is never read into a result.
    """

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_size: int,
        block_tokens: int,
        blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_tokens = block_tokens
        self.blocks = blocks
        self.kv_heads = kv_heads
        shape = (layers, 2, kv_heads, blocks * block_tokens, head_size)
        self._tensor = torch.empty(shape, dtype=dtype, device=device)
        # K and V as one list of 2 * kv_heads heads: one call writes or gathers both.
        self._by_slot = self._tensor.view(layers, 2 * kv_heads, blocks * block_tokens, head_size).unbind(0)
        self._by_block = self._tensor.view(layers, 2 * kv_heads, blocks, block_tokens * head_size).unbind(0)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole pool."""
        return self._tensor.nbytes

    def write(self, layer: int, kv: Tensor, slots: Tensor, slot_run: int | None) -> None:
        """Store K and V of a step's tokens.

        Args:
            layer: layer number.
            kv: [T, 2 * kv_heads, head_size], a token's keys before its values.
            slots: int64 [T].
            slot_run: the first slot when they ascend by one, else None.
        """
        by_slot = self._by_slot[layer]
        if slot_run is None:
            by_slot.index_copy_(1, slots, kv.transpose(0, 1))
        else:
            by_slot.narrow(1, slot_run, kv.shape[0]).copy_(kv.transpose(0, 1))

    def run(self, start: int, tokens: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Views of consecutive slots, for all layers: K and V, each [1, kv_heads, tokens, head_size] a layer."""
        part = self._tensor.narrow(3, start, tokens).unsqueeze(2)
        return part[:, 0].unbind(0), part[:, 1].unbind(0)

    def gather(self, layer: int, blocks: Tensor, offset: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Copies of ``tokens`` positions of a scattered sequence.

        Args:
            layer: layer number.
            blocks: int64 [n], in the order of positions.
            offset: the first position within the first block.
            tokens: at most n * block_tokens - offset.

        Returns:
            K and V, each [1, kv_heads, tokens, head_size].
        """
        pages = self._by_block[layer].index_select(1, blocks)
        both = pages.view(2, 1, self.kv_heads, -1, self._tensor.shape[-1]).narrow(3, offset, tokens)
        return both[0], both[1]

    def gather_slots(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of single slots for several sequences at once.

        Args:
            layer: layer number.
            slots: int64 [sequences, tokens].

        Returns:
            K and V, each [sequences, kv_heads, tokens, head_size].
        """
        sequences, tokens = slots.shape
        both = self._by_slot[layer].index_select(1, slots.view(-1))
        both = both.view(2, self.kv_heads, sequences, tokens, -1).transpose(1, 2)
        return both[0], both[1]

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) one after the other. Raises BackendFailure for a bad number."""
        for source, destination in pairs:
            self._block(destination).copy_(self._block(source))

    def read(self, block: int) -> bytes:
        """One block: [layers, 2, kv_heads, block_tokens, head_size] in the pool's dtype, native byte order."""
        return self._block(block).contiguous().cpu().view(torch.uint8).numpy().tobytes()

    def write_block(self, block: int, data: bytes) -> None:
        """Put back what ``read`` gave. Raises BackendFailure when the length is not a block's."""
        target = self._block(block)
        if len(data) != target.nbytes:
            raise BackendFailure(f"a block has {target.nbytes} bytes, {len(data)} were given")
        target.copy_(torch.frombuffer(bytearray(data), dtype=self._tensor.dtype).view(target.shape))

    def _block(self, block: int) -> Tensor:
        if not 0 <= block < self.blocks:
            raise BackendFailure(f"block {block} is not in 0 to {self.blocks - 1}, the range of the pool")
        return self._tensor.narrow(3, block * self.block_tokens, self.block_tokens)
