"""The native kernels' KV memory as PyTorch reads and writes it: prompts are computed here, and answers go on there."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
"""Formats of that memory that are also tensors; int8's scales lie between its values."""


class NativePool:
    """See ``kv.Pool``; of one layer group.

    A block is [kv_heads, keys by dimension (head_size, block_tokens), then values by token (block_tokens, head_size)], so keys are turned on
    their way, and even consecutive blocks are no view that attention could take.
    """

    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        *,
        kv_dtype: str,
        kv_heads: int,
        head_size: int,
        block_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        """Nothing is copied.

        Args:
            memory: uint8 [layers, blocks, bytes of a block].
            block_tokens: a multiple of 16; else keys are padded.
            dtype: in which attention wants what it gathers.
        """
        layers, self.blocks = memory.shape[:2]
        self.block_tokens, self.kv_heads, self._dtype = block_tokens, kv_heads, dtype
        plain = torch.from_numpy(memory).view(DTYPES[kv_dtype])
        halves = plain.view(layers, self.blocks, kv_heads, 2, head_size * block_tokens)
        keys = halves[:, :, :, 0].view(layers, self.blocks, kv_heads, head_size, block_tokens)
        values = halves[:, :, :, 1].view(layers, self.blocks, kv_heads, block_tokens, head_size)
        # [blocks, block_tokens, kv_heads, head_size] a layer.
        self._keys = keys.permute(0, 1, 4, 2, 3).unbind(0)
        self._values = values.permute(0, 1, 3, 2, 4).unbind(0)

    def write(self, layer: int, kv: Tensor, slots: Tensor, slot_run: int | None) -> None:
        """See KVPool."""
        where = (slots // self.block_tokens, slots % self.block_tokens)
        for part, new in ((self._keys, kv[:, : self.kv_heads]), (self._values, kv[:, self.kv_heads :])):
            part[layer].index_put_(where, new.to(part[layer].dtype))

    def run(self, start: int, tokens: int) -> None:
        """See Pool."""

    def gather(self, layer: int, blocks: Tensor, offset: int, tokens: int) -> tuple[Tensor, Tensor]:
        """See KVPool."""
        keys, values = (
            part[layer].index_select(0, blocks).flatten(0, 1).narrow(0, offset, tokens).to(self._dtype)
            for part in (self._keys, self._values)
        )
        return keys.transpose(0, 1).unsqueeze(0), values.transpose(0, 1).unsqueeze(0)
