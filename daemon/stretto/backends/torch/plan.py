"""How one step is laid out: all tokens of all chunks in one row order, and what each sequence attends to.

Pure and without tensors, so that every rule about block tables is checked before anything reaches the device, where a
wrong index could end the whole process (CUDA device assertions) instead of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stretto.backends.base import Chunk
from stretto.backends.chunks import StepLimits, check_step

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk's place in the step.

    Attributes:
        row: its first row in the step's row order.
        rows: how many tokens it runs.
        context_tokens: positions it attends to: what is cached before it, and its own tokens.
        run_start: first KV slot when the blocks in use are consecutive, so that keys and values are one view of the
            pool; None when they must be gathered.
        blocks: int64, the blocks in use, in the order of positions.
    """

    row: int
    rows: int
    context_tokens: int
    run_start: int | None
    blocks: Int64Array

    @property
    def start(self) -> int:
        """Position of its first token."""
        return self.context_tokens - self.rows


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step over T tokens.

    Attributes:
        token_ids: int64 [T].
        positions: int64 [T], within each token's own sequence.
        slots: int64 [T], where each token's K and V go: block number * block_tokens + offset.
        slot_run: first slot when ``slots`` ascend by one throughout, else None.
        spans: decodes (one row each) first, then prefill chunks; the rows are in this order.
        decodes: how many of the spans, and so of the first rows, are single tokens.
        logit_rows: int64 [R], rows whose logits are wanted, in the order in which the caller gave the chunks.
    """

    token_ids: Int64Array
    positions: Int64Array
    slots: Int64Array
    slot_run: int | None
    spans: tuple[Span, ...]
    decodes: int
    logit_rows: Int64Array


def plan_step(
    batch: Sequence[Chunk], *, block_tokens: int, blocks: int, vocab_size: int, context_tokens: int
) -> StepPlan:
    """Check a batch and lay it out.

    Args:
        batch: at least one chunk, each with one block table.
        block_tokens: tokens a block.
        blocks: blocks in the pool.
        vocab_size: token ids are below it.
        context_tokens: positions are below it.

    Raises:
        BackendFailure: a chunk is malformed; says which and how. Nothing has been computed or written then.
    """
    check_step(batch, StepLimits(block_tokens, (blocks,), (None,), vocab_size, context_tokens))
    # Single tokens first: they are neighbours then, whatever the order of the batch.
    order = sorted(range(len(batch)), key=lambda number: len(batch[number].token_ids) > 1)
    spans: list[Span] = []
    slots: list[Int64Array] = []
    first_rows = [0] * len(batch)
    row = 0
    for number in order:
        chunk = batch[number]
        rows = len(chunk.token_ids)
        span, where = _place(chunk, row, rows, block_tokens)
        spans.append(span)
        slots.append(where)
        first_rows[number] = row
        row += rows
    wanted = [
        np.arange(end - chunk.logit_rows, end, dtype=np.int64)
        for chunk, first in zip(batch, first_rows, strict=True)
        for end in (first + len(chunk.token_ids),)
    ]
    all_slots = np.concatenate(slots)
    consecutive = bool((np.diff(all_slots) == 1).all())
    return StepPlan(
        token_ids=np.concatenate([batch[number].token_ids for number in order]).astype(np.int64),
        positions=np.concatenate(
            [np.arange(span.start, span.context_tokens, dtype=np.int64) for span in spans]
        ),
        slots=all_slots,
        slot_run=int(all_slots[0]) if consecutive else None,
        spans=tuple(spans),
        decodes=sum(span.rows == 1 for span in spans),
        logit_rows=np.concatenate(wanted),
    )


def _place(chunk: Chunk, row: int, rows: int, block_tokens: int) -> tuple[Span, Int64Array]:
    """The span of a chunk, and the slot of each of its tokens."""
    end = chunk.start + rows
    used = np.asarray(chunk.block_tables[0][: -(-end // block_tokens)], dtype=np.int64)
    run = bool((np.diff(used) == 1).all())
    positions = np.arange(chunk.start, end, dtype=np.int64)
    where = used[positions // block_tokens] * block_tokens + positions % block_tokens
    return Span(row, rows, end, int(used[0]) * block_tokens if run else None, used), where
