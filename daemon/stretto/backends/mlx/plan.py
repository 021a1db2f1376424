"""How one step becomes passes of the model over rows of equal length. Pure, and without arrays of MLX.

The models of mlx-lm take a rectangle of tokens, one row a sequence, and give logits for all of it. So each chunk is cut in two:
the tokens whose logits are wanted (of a prompt the last one, of an answer its only one), and those before them, whose logits are
never computed. Rows that are nearly as long as each other, and whose contexts are, share a pass; the shorter ones are padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.backends.base import Chunk

SLACK_TOKENS = 4096
"""Padded context that is not worth a pass of its own."""


@dataclass(frozen=True, slots=True)
class Row:
    """A part of one chunk.

    Attributes:
        chunk: its number in the batch.
        first: the part's first token within the chunk.
        tokens: how many.
        start: position of the first in its sequence.
    """

    chunk: int
    first: int
    tokens: int
    start: int

    @property
    def end(self) -> int:
        """The position after its last token, and so how many it attends to."""
        return self.start + self.tokens


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows that are computed together; ``logits`` of all of their tokens, or of none."""

    rows: tuple[Row, ...]
    logits: bool

    @property
    def length(self) -> int:
        """Tokens of the longest row."""
        return max(row.tokens for row in self.rows)


def plan_passes(batch: Sequence[Chunk], *, together: bool) -> list[Pass]:
    """Passes in an order in which each chunk's tokens come one after the other.

    Args:
        batch: checked chunks.
        together: whether the model computes rows of several sequences in one pass.
    """
    silent, telling = [], []
    for number, chunk in enumerate(batch):
        unseen = len(chunk.token_ids) - chunk.logit_rows
        if unseen:
            silent.append(Row(number, 0, unseen, chunk.start))
        if chunk.logit_rows:
            telling.append(Row(number, unseen, chunk.logit_rows, chunk.start + unseen))
    passes = [Pass(rows, False) for rows in _shared(silent, together, 3)]
    return passes + [Pass(rows, True) for rows in _shared(telling, together, 4)]


def _shared(rows: Sequence[Row], together: bool, least_quarters: int) -> list[tuple[Row, ...]]:
    """Rows by pass: none shorter than so many quarters of its longest, and contexts not padded to more than double in all."""
    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (-row.tokens, -row.end, row.chunk)):
        group = groups[-1] if groups and together else None
        if group is not None and row.tokens * 4 >= group[0].tokens * least_quarters and _fits(group, row):
            group.append(row)
        else:
            groups.append([row])
    return [tuple(group) for group in groups]


def _fits(group: Sequence[Row], row: Row) -> bool:
    ends = [other.end for other in group] + [row.end]
    return len(ends) * max(ends) <= 2 * sum(ends) + SLACK_TOKENS
