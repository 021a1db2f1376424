"""Attention of a ragged step against the paged pool.

Every sequence attends to its own cache only, and is computed from nothing but its own rows; what runs beside it can
change the kernels that are chosen and so the last bits, never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.kv import KVPool
from stretto.backends.torch.plan import Span, StepPlan


class Attention(Protocol):
    """Attention of some consecutive rows of a step, for any layer."""

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """From all of the step's queries [T, heads, head_size], these rows' outputs [rows, heads * head_size]."""
        ...


class _Cache:
    """Keys and values of one sequence: views of the pool where its blocks are one run, else gathered a layer at a time."""

    def __init__(self, pool: KVPool, span: Span, device: torch.device) -> None:
        self._tokens = span.context_tokens
        self._pool = pool
        self._views = None if span.run_start is None else pool.run(span.run_start, span.context_tokens)
        self._blocks = torch.from_numpy(span.blocks).to(device) if self._views is None else None

    def __call__(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V, each [1, kv_heads, context, head_size]."""
        if self._blocks is not None:
            return self._pool.gather(layer, self._blocks, self._tokens)
        assert self._views is not None
        return self._views[0][layer], self._views[1][layer]


class DecodeAttention:
    """One token of one sequence."""

    def __init__(self, pool: KVPool, span: Span, device: torch.device) -> None:
        self._cache = _Cache(pool, span, device)
        self._row = span.row
        self._kv_heads = pool.kv_heads

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """See Attention."""
        keys, values = self._cache(layer)
        # The query heads that share a KV head become the query rows of that head: no copy of K or V, and no mask.
        query = queries[self._row].view(1, self._kv_heads, -1, queries.shape[-1])
        return F.scaled_dot_product_attention(query, keys, values).reshape(1, -1)


class PrefillAttention:
    """Several tokens of one sequence, causal among themselves, after what is cached before them."""

    def __init__(self, pool: KVPool, span: Span, device: torch.device, dtype: torch.dtype) -> None:
        self._cache = _Cache(pool, span, device)
        self._row, self._rows = span.row, span.rows
        self._kv_heads = pool.kv_heads
        self._mask = None if span.start == 0 else causal_mask(span.rows, span.start, device, dtype)

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """See Attention."""
        keys, values = self._cache(layer)
        rows = queries.narrow(0, self._row, self._rows)
        # KV heads as the batch, the query heads of each as its heads: K and V are expanded without a copy.
        query = rows.view(self._rows, self._kv_heads, -1, rows.shape[-1]).permute(1, 2, 0, 3)
        shape = (self._kv_heads, query.shape[1], *keys.shape[2:])
        out = F.scaled_dot_product_attention(
            query,
            keys.transpose(0, 1).expand(shape),
            values.transpose(0, 1).expand(shape),
            attn_mask=self._mask,
            is_causal=self._mask is None,
        )
        return out.permute(2, 0, 1, 3).reshape(self._rows, -1)


class BatchedDecodeAttention:
    """One token of each of several sequences in one call, their caches gathered and padded to the longest.

    For devices where the number of calls costs more than the copies: measured on CPU it loses to one call a sequence
    at every length, since there a call is cheap and memory is not.
    """

    def __init__(self, pool: KVPool, spans: Sequence[Span], device: torch.device, dtype: torch.dtype) -> None:
        self._pool = pool
        self._row, self._rows = spans[0].row, len(spans)
        lengths = np.array([span.context_tokens for span in spans])
        positions = np.arange(int(lengths.max()))
        # Padding repeats a sequence's own last position: whatever else lies in the pool, a NaN too, is never read.
        slots = np.stack(
            [
                span.blocks[capped // pool.block_tokens] * pool.block_tokens + capped % pool.block_tokens
                for span in spans
                for capped in (np.minimum(positions, span.context_tokens - 1),)
            ]
        )
        self._slots = torch.from_numpy(slots).to(device)
        padding = torch.from_numpy(positions[None] >= lengths[:, None]).to(device)
        self._mask = torch.zeros(padding.shape, dtype=dtype, device=device).masked_fill_(
            padding, float("-inf")
        )[:, None, None]

    def __call__(self, layer: int, queries: Tensor) -> Tensor:
        """See Attention."""
        keys, values = self._pool.gather_slots(layer, self._slots)
        query = queries.narrow(0, self._row, self._rows).view(
            self._rows, self._pool.kv_heads, -1, queries.shape[-1]
        )
        mask = self._mask.expand(-1, 1, query.shape[2], -1)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask).reshape(self._rows, -1)


def causal_mask(rows: int, start: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[rows, start + rows]: 0 where the row at position ``start + row`` may look, minus infinity after it."""
    mask = torch.full((rows, start + rows), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(start + 1)


def plan_attention(
    plan: StepPlan, pool: KVPool, *, device: torch.device, dtype: torch.dtype, batch_decodes: bool
) -> list[Attention]:
    """What to call, in the order of the step's rows; the outputs concatenated are the step's."""
    calls: list[Attention] = []
    decodes = plan.spans[: plan.decodes]
    if batch_decodes and len(decodes) > 1:
        calls.append(BatchedDecodeAttention(pool, decodes, device, dtype))
    else:
        calls.extend(DecodeAttention(pool, span, device) for span in decodes)
    calls.extend(PrefillAttention(pool, span, device, dtype) for span in plan.spans[plan.decodes :])
    return calls
