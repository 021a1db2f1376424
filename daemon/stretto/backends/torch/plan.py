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
from stretto.backends.chunks import StepLimits, check_step, first_needed

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """One chunk's place in the step, as one layer group sees it.

    Attributes:
        row: its first row in the step's row order.
        rows: how many tokens it runs.
        context_tokens: positions up to its end: what is cached before it, and its own tokens.
        first: the first position that any of its tokens attends to.
        run_start: KV slot of that position when the blocks from there on are consecutive, so that keys and values are one view
            of the pool; None when they must be gathered.
        blocks: int64, the blocks in use from that position on, in the order of positions.
        offset: where that position lies in the first of them.
    """

    row: int
    rows: int
    context_tokens: int
    first: int
    run_start: int | None
    blocks: Int64Array
    offset: int

    @property
    def start(self) -> int:
        """Position of its first token."""
        return self.context_tokens - self.rows

    @property
    def tokens(self) -> int:
        """Positions that it attends to."""
        return self.context_tokens - self.first


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """A step over T tokens as one layer group sees it.

    Attributes:
        window: how far back attention reaches, or None.
        slots: int64 [T], where each token's K and V go: block number * block_tokens + offset.
        slot_run: first slot when ``slots`` ascend by one throughout, else None.
        spans: in the order of the step's rows.
        decodes: how many of the spans, and so of the first rows, are single tokens.
    """

    window: int | None
    slots: Int64Array
    slot_run: int | None
    spans: tuple[Span, ...]
    decodes: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step over T tokens.

    Attributes:
        token_ids: int64 [T]; decodes (one row each) first, then prefill chunks.
        positions: int64 [T], within each token's own sequence.
        groups: one a layer group.
        logit_rows: int64 [R], rows whose logits are wanted, in the order in which the caller gave the chunks.
    """

    token_ids: Int64Array
    positions: Int64Array
    groups: tuple[GroupPlan, ...]
    logit_rows: Int64Array


def plan_step(batch: Sequence[Chunk], limits: StepLimits) -> StepPlan:
    """Check a batch and lay it out.

    Raises:
        BackendFailure: a chunk is malformed; says which and how. Nothing has been computed or written then.
    """
    check_step(batch, limits)
    # Single tokens first: they are neighbours then, whatever the order of the batch.
    order = sorted(range(len(batch)), key=lambda number: len(batch[number].token_ids) > 1)
    chunks = [batch[number] for number in order]
    ends = np.cumsum([len(chunk.token_ids) for chunk in chunks])
    last_rows = dict(zip(order, ends.tolist(), strict=True))
    wanted = [
        np.arange(last_rows[number] - chunk.logit_rows, last_rows[number], dtype=np.int64)
        for number, chunk in enumerate(batch)
    ]
    return StepPlan(
        token_ids=np.concatenate([chunk.token_ids for chunk in chunks]).astype(np.int64),
        positions=np.concatenate(
            [np.arange(chunk.start, chunk.start + len(chunk.token_ids), dtype=np.int64) for chunk in chunks]
        ),
        groups=tuple(
            _plan_group(chunks, group, window, limits.block_tokens)
            for group, window in enumerate(limits.windows)
        ),
        logit_rows=np.concatenate(wanted),
    )


def _plan_group(chunks: Sequence[Chunk], group: int, window: int | None, block_tokens: int) -> GroupPlan:
    spans: list[Span] = []
    slots: list[Int64Array] = []
    row = 0
    for chunk in chunks:
        span, where = _place(chunk, group, window, row, block_tokens)
        spans.append(span)
        slots.append(where)
        row += span.rows
    all_slots = np.concatenate(slots)
    consecutive = bool((np.diff(all_slots) == 1).all())
    return GroupPlan(
        window,
        all_slots,
        int(all_slots[0]) if consecutive else None,
        tuple(spans),
        sum(span.rows == 1 for span in spans),
    )


def _place(
    chunk: Chunk, group: int, window: int | None, row: int, block_tokens: int
) -> tuple[Span, Int64Array]:
    """The span of a chunk, and the slot of each of its tokens."""
    rows = len(chunk.token_ids)
    end = chunk.start + rows
    first = first_needed(chunk.start, window)
    before, offset = divmod(first, block_tokens)
    used = np.asarray(chunk.block_tables[group][before : -(-end // block_tokens)], dtype=np.int64)
    run = bool((np.diff(used) == 1).all())
    positions = np.arange(chunk.start, end, dtype=np.int64) - before * block_tokens
    where = used[positions // block_tokens] * block_tokens + positions % block_tokens
    run_start = int(used[0]) * block_tokens + offset if run else None
    return Span(row, rows, end, first, run_start, used, offset), where
