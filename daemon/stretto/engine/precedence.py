"""Whose turn it is: who waits starts by rank, and a step's prompt tokens are divided by rank. Pure.

A sequence's rank is the place of its priority in ``PRIORITIES``: 0 goes first. Nothing that runs ever ends or stops for another's sake, and
no rank starves: where others keep one from starting, its eldest rises, and of the tokens of a step each rank gets some.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stretto.conversation.priority import PRIORITIES
from stretto.engine.live import LiveSequence

RISE_S = 30.0
"""Once none of a rank has started for so long while more urgent ones wait too, its eldest counts as of the rank above."""

LOWER_SHARE = 8
"""While prompts of a higher rank are read, those below get one in so many of a step's tokens, and what is left over."""

BACKGROUND = PRIORITIES.index("background")


class Rising:
    """Lets those who wait rise, one of a rank in ``RISE_S``, so that a backlog never becomes urgent as a whole."""

    def __init__(self) -> None:
        self._turn_at = [-math.inf] * len(PRIORITIES)
        self.raised = 0
        """How many have risen so far."""

    def had_turn(self, rank: int, now: float) -> None:
        """One of a rank has started, or it has so many running that it cannot complain."""
        self._turn_at[rank] = now

    def raise_some(self, queue: Iterable[LiveSequence], now: float) -> None:
        """Raise the eldest of each rank that has waited long enough behind others.

        Args:
            queue: those who wait, in order of arrival.
        """
        eldest: dict[int, LiveSequence] = {}
        for sequence in queue:
            eldest.setdefault(sequence.rank, sequence)
        for rank in sorted(eldest)[1:]:  # nobody waits before the first of them
            sequence = eldest[rank]
            if now - max(sequence.submitted_at, self._turn_at[rank]) >= RISE_S:
                sequence.rank -= 1
                self._turn_at[rank] = now
                self.raised += 1


def share_by_rank(unread: Sequence[int], ranks: Sequence[int], budget: int) -> list[int]:
    """Divide a step's prompt tokens among prompts of several ranks, given by what is unread of each, those of a rank in order of age.

    The first rank gets all but one in ``LOWER_SHARE``, which those below divide in the same way; what one cannot use goes to the next. Within a
    rank it is as in ``share_prefill``.
    """
    shares = [0] * len(unread)
    left = budget
    for rank in sorted(set(ranks)):
        members = [index for index, its in enumerate(ranks) if its == rank]
        below = sum(count for count, its in zip(unread, ranks, strict=True) if its > rank)
        kept = min(below, max(1, left // LOWER_SHARE)) if left > 1 else 0
        given = share_prefill([unread[index] for index in members], left - kept)
        for index, count in zip(members, given, strict=True):
            shares[index] = count
            left -= count
    return shares


def share_prefill(unread: Sequence[int], budget: int) -> list[int]:
    """Divide a step's prompt tokens among prompts of one rank, given in order of age by what is unread of each.

    Half goes to the oldest, the other half to the one that is nearest to its end, and what is left to the others by age. So a
    short prompt is read at once beside a long one, the long one never gets less than half, and each becomes the oldest in time.
    """
    shares = [0] * len(unread)
    left = budget

    def give(index: int, most: int) -> None:
        nonlocal left
        count = min(most, left, unread[index] - shares[index])
        shares[index] += count
        left -= count

    if unread:
        give(0, -(-budget // 2))
        give(min(range(len(unread)), key=lambda index: (unread[index], index)), left)
        for index in range(len(unread)):
            give(index, left)
    return shares
