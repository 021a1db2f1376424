"""Whether a chunk may reach a device, where a wrong index could end the whole process instead of one step. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stretto.backends.base import BackendFailure, Chunk, Int32Array


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What the chunks of a step must keep to.

    Attributes:
        block_tokens: tokens a block.
        blocks: blocks in the pool of each layer group.
        windows: how far back each layer group's attention reaches; None for full attention.
        vocab_size: token ids are below it.
        context_tokens: positions are below it.
    """

    block_tokens: int
    blocks: tuple[int, ...]
    windows: tuple[int | None, ...]
    vocab_size: int
    context_tokens: int


def check_step(batch: Sequence[Chunk], limits: StepLimits) -> None:
    """Refuse what would index outside of the tables.

    Raises:
        BackendFailure: the step is empty or a chunk is malformed; says which and how.
    """
    if not batch:
        raise BackendFailure("the step is empty: forward needs at least one chunk")
    for number, chunk in enumerate(batch):
        _check_chunk(number, chunk, limits)


def first_needed(start: int, window: int | None) -> int:
    """The first position that a token at ``start`` attends to, in a layer group with that window."""
    return 0 if window is None else max(0, start + 1 - window)


def _check_chunk(number: int, chunk: Chunk, limits: StepLimits) -> None:
    rows = len(chunk.token_ids)

    def fault(what: str) -> BackendFailure:
        return BackendFailure(f"chunk {number} of the step: {what}")

    if rows < 1:
        raise fault("token_ids is empty")
    if not 0 <= chunk.logit_rows <= rows:
        raise fault(f"logit_rows is {chunk.logit_rows}, with {rows} tokens")
    end = chunk.start + rows
    if chunk.start < 0 or end > limits.context_tokens:
        raise fault(
            f"positions {chunk.start} to {end - 1} are not within the context of {limits.context_tokens} tokens"
        )
    groups = len(limits.blocks)
    if len(chunk.block_tables) != groups:
        has = "one layer group" if groups == 1 else f"{groups} layer groups"
        raise fault(f"{len(chunk.block_tables)} block tables; this model has {has}")
    _in_range(chunk.token_ids, limits.vocab_size, fault, "token id", "the vocabulary")
    size = limits.block_tokens
    for table, blocks, window in zip(chunk.block_tables, limits.blocks, limits.windows, strict=True):
        used = table[: -(-end // size)]
        if len(used) * size < end:
            raise fault(
                f"its block table holds {len(used)} blocks of {size} tokens, {end} positions need more"
            )
        _in_range(used[first_needed(chunk.start, window) // size :], blocks, fault, "block", "the pool")


def _in_range(
    values: Int32Array, limit: int, fault: Callable[[str], BackendFailure], name: str, of: str
) -> None:
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= limit:
        raise fault(f"{name} {low if low < 0 else high} is not in 0 to {limit - 1}, the range of {of}")
