"""Attention of a ragged step against the paged pool.

Every sequence attends to its own cache only, and is computed from nothing but its own rows; what runs beside it can
change the kernels that are chosen and so the last bits, never more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from stretto.backends.torch.kv import KVPool, Pool
from stretto.backends.torch.plan import GroupPlan, Span


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """How scores come from products of queries and keys.

    Attributes:
        scale: what products are multiplied by; None for 1 / sqrt(head size).
        cap: scores are held below it by a hyperbolic tangent, or None.
    """

    scale: float | None = None
    cap: float | None = None


class Attention(Protocol):
    """Attention of some consecutive rows of a step, for any layer of a group."""

    def __call__(self, layer: int, queries: Tensor, rule: ScoreRule) -> Tensor:
        """From all of the step's queries [T, heads, head_size], these rows' outputs [rows, heads * head_size]."""
        ...


class _Cache:
    """Keys and values of one sequence: views of the pool where its blocks are one run, else gathered a layer at a time."""

    def __init__(self, pool: Pool, span: Span, device: torch.device) -> None:
        self._tokens, self._offset = span.tokens, span.offset
        self._pool = pool
        self._views = None if span.run_start is None else pool.run(span.run_start, span.tokens)
        self._blocks = torch.from_numpy(span.blocks).to(device) if self._views is None else None

    def __call__(self, layer: int) -> tuple[Tensor, Tensor]:
        """K and V, each [1, kv_heads, positions, head_size]."""
        if self._blocks is not None:
            return self._pool.gather(layer, self._blocks, self._offset, self._tokens)
        assert self._views is not None
        return self._views[0][layer], self._views[1][layer]


class DecodeAttention:
    """One token of one sequence."""

    def __init__(self, pool: Pool, span: Span, device: torch.device) -> None:
        self._cache = _Cache(pool, span, device)
        self._row = span.row
        self._kv_heads = pool.kv_heads

    def __call__(self, layer: int, queries: Tensor, rule: ScoreRule) -> Tensor:
        """See Attention."""
        keys, values = self._cache(layer)
        # The query heads that share a KV head become the query rows of that head: no copy of K or V, and no mask.
        query = queries[self._row].view(1, self._kv_heads, -1, queries.shape[-1])
        return scored(query, keys, values, rule).reshape(1, -1)


class PrefillAttention:
    """Several tokens of one sequence, causal among themselves, after what is cached before them."""

    def __init__(
        self, pool: Pool, span: Span, window: int | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._cache = _Cache(pool, span, device)
        self._row, self._rows = span.row, span.rows
        self._kv_heads = pool.kv_heads
        plain = span.start == 0 and (window is None or span.rows <= window)
        self._mask = None if plain else causal_mask(span, window, device, dtype)

    def __call__(self, layer: int, queries: Tensor, rule: ScoreRule) -> Tensor:
        """See Attention."""
        keys, values = self._cache(layer)
        rows = queries.narrow(0, self._row, self._rows)
        # KV heads as the batch, the query heads of each as its heads: K and V are expanded without a copy.
        query = rows.view(self._rows, self._kv_heads, -1, rows.shape[-1]).permute(1, 2, 0, 3)
        shape = (self._kv_heads, query.shape[1], *keys.shape[2:])
        keys, values = keys.transpose(0, 1).expand(shape), values.transpose(0, 1).expand(shape)
        out = scored(query, keys, values, rule, self._mask, causal=self._mask is None)
        return out.permute(2, 0, 1, 3).reshape(self._rows, -1)


class BatchedDecodeAttention:
    """One token of each of several sequences in one call, their caches gathered and padded to the longest.

    For devices where the number of calls costs more than the copies: measured on CPU it loses to one call a sequence
    at every length, since there a call is cheap and memory is not.
    """

    def __init__(self, pool: KVPool, spans: Sequence[Span], device: torch.device, dtype: torch.dtype) -> None:
        self._pool = pool
        self._row, self._rows = spans[0].row, len(spans)
        lengths = np.array([span.tokens for span in spans])
        positions = np.arange(int(lengths.max()))
        # Padding repeats a sequence's own last position: whatever else lies in the pool, a NaN too, is never read.
        slots = np.stack(
            [
                span.blocks[capped // pool.block_tokens] * pool.block_tokens + capped % pool.block_tokens
                for span in spans
                for capped in (np.minimum(positions, span.tokens - 1) + span.offset,)
            ]
        )
        self._slots = torch.from_numpy(slots).to(device)
        padding = torch.from_numpy(positions[None] >= lengths[:, None]).to(device)
        self._mask = torch.zeros(padding.shape, dtype=dtype, device=device).masked_fill_(
            padding, float("-inf")
        )[:, None, None]

    def __call__(self, layer: int, queries: Tensor, rule: ScoreRule) -> Tensor:
        """See Attention."""
        keys, values = self._pool.gather_slots(layer, self._slots)
        query = queries.narrow(0, self._row, self._rows).view(
            self._rows, self._pool.kv_heads, -1, queries.shape[-1]
        )
        mask = self._mask.expand(-1, 1, query.shape[2], -1)
        return scored(query, keys, values, rule, mask).reshape(self._rows, -1)


def scored(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rule: ScoreRule,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
) -> Tensor:
    """Attention proper; the softmax is accumulated in float32 either way.

    Args:
        query: [batch, heads, rows, head_size]; keys, values: [batch, heads, positions, head_size].
        mask: added to the scores, or None.
        causal: instead of a mask, a row sees as many positions as there are rows up to it.
    """
    if rule.cap is None:
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=causal, scale=rule.scale
        )
    scale = query.shape[-1] ** -0.5 if rule.scale is None else rule.scale
    scores = torch.matmul(query, keys.transpose(-1, -2)).float().mul_(scale / rule.cap).tanh_().mul_(rule.cap)
    if causal:
        rows = query.shape[-2]
        mask = torch.full((rows, rows), float("-inf"), device=query.device).triu_(1)
    if mask is not None:
        scores = scores + mask
    return torch.matmul(scores.softmax(-1).to(values.dtype), values)


def causal_mask(span: Span, window: int | None, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[rows, positions]: 0 where a row may look, minus infinity after its own position and before its window."""
    mask = torch.full((span.rows, span.tokens), float("-inf"), dtype=dtype, device=device)
    # Row r is at column start - first + r.
    column = span.start - span.first
    if window is None:
        return mask.triu_(column + 1)
    return mask.triu(column + 1) + mask.tril_(column - window)


def plan_attention(
    plan: GroupPlan, pool: Pool, *, device: torch.device, dtype: torch.dtype, batch_decodes: bool
) -> list[Attention]:
    """What to call, in the order of the step's rows; the outputs concatenated are the step's."""
    calls: list[Attention] = []
    decodes = plan.spans[: plan.decodes]
    if batch_decodes and len(decodes) > 1:
        assert isinstance(pool, KVPool), "where decodes are batched, PyTorch has the KV memory"
        calls.append(BatchedDecodeAttention(pool, decodes, device, dtype))
    else:
        calls.extend(DecodeAttention(pool, span, device) for span in decodes)
    calls.extend(
        PrefillAttention(pool, span, plan.window, device, dtype) for span in plan.spans[plan.decodes :]
    )
    return calls
