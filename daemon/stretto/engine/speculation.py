"""How many tokens of which drafts a step computes, so that answers come sooner and never later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.backends.base import Int32Array
from stretto.engine.drafts import Drafter
from stretto.engine.live import LiveSequence

_DECAY = 0.95
_SLOPE_PRIOR = (
    0.2  # of a step of one row, what each further row costs, until steps of different sizes were seen
)
_PRIOR_WEIGHT = 0.05
_LEAST_RATE = 0.1


class StepCost:
    """What a step without prompts in it costs: a time of its own and a time for each row, by least squares over recent steps.

    Until rows have varied, a further row is taken to cost a fifth of the first.
    """

    __slots__ = ("_rows", "_rows_squared", "_rows_time", "_time_s", "_weight")

    def __init__(self) -> None:
        self._weight = self._rows = self._rows_squared = self._time_s = self._rows_time = 0.0

    def observe(self, rows: int, step_s: float) -> None:
        """Learn from a step of so many rows."""
        self._weight = self._weight * _DECAY + 1
        self._rows = self._rows * _DECAY + rows
        self._rows_squared = self._rows_squared * _DECAY + rows * rows
        self._time_s = self._time_s * _DECAY + step_s
        self._rows_time = self._rows_time * _DECAY + rows * step_s

    @property
    def row_s(self) -> float:
        """Seconds of one more row; 0 until measured."""
        if not self._weight:
            return 0.0
        rows, time_s = self._rows / self._weight, self._time_s / self._weight
        prior = time_s * _SLOPE_PRIOR / (1 + (rows - 1) * _SLOPE_PRIOR)
        variance = self._rows_squared / self._weight - rows * rows
        covariance = self._rows_time / self._weight - rows * time_s
        slope = (max(0.0, covariance) + _PRIOR_WEIGHT * prior) / (max(0.0, variance) + _PRIOR_WEIGHT)
        return min(slope, time_s / rows)

    def step_s(self, rows: int) -> float:
        """Seconds of a step of so many rows; 0 until measured."""
        if not self._weight:
            return 0.0
        mean_rows, time_s = self._rows / self._weight, self._time_s / self._weight
        return time_s + (rows - mean_rows) * self.row_s


def draft_lengths(
    drafts: Sequence[tuple[int, float]], *, rows: int, cost: StepCost, most_s: float
) -> list[int]:
    """For each draft, how many of its tokens a step should compute.

    A token of a draft is worth the chance that it and all before it are right. It is taken if that brings more tokens a second than
    the step would give without it, the likeliest first.

    Args:
        drafts: of each sequence that decodes, the draft's length in tokens and the chance that a token of it is right.
        rows: sequences that decode, with a draft or without: each gives at least one token.
        cost: of steps so far.
        most_s: how long a step may take.
    """
    lengths = [0] * len(drafts)
    choices = sorted(
        (
            (-(rate**depth), number)
            for number, (length, rate) in enumerate(drafts)
            for depth in range(1, length + 1)
            if rate**depth >= _LEAST_RATE
        ),
    )
    row_s, step_s, tokens = cost.row_s, cost.step_s(rows), float(rows)
    for negative_chance, number in choices:
        chance = -negative_chance
        if chance * step_s < row_s * tokens or step_s + row_s > most_s:
            break
        lengths[number] += 1
        tokens += chance
        step_s += row_s
    return lengths


class Speculation:
    """Asks each sequence's drafter, and spends on its guesses what they are worth.

    Args:
        most_rows: tokens that one sequence may have in a step.
        stall_target_s: how long a step may take.
    """

    def __init__(self, *, most_rows: int, stall_target_s: float) -> None:
        self._most_rows = most_rows
        self._stall_target_s = stall_target_s
        self._cost = StepCost()
        self.accepted_tokens = 0
        self.rejected_tokens = 0

    def drafts(self, decoding: Sequence[LiveSequence]) -> list[Int32Array]:
        """A draft, maybe empty, for each of the sequences that decode in the next step."""
        guesses = [self._guess(sequence) for sequence in decoding]
        lengths = draft_lengths(
            [(guess.size, rate) for guess, rate in guesses],
            rows=len(decoding),
            cost=self._cost,
            most_s=self._stall_target_s,
        )
        return [guess[:length] for (guess, _), length in zip(guesses, lengths, strict=True)]

    def observe(self, *, rows: int, step_s: float) -> None:
        """Learn from a step without prompts, of so many tokens of answers and drafts."""
        self._cost.observe(rows, step_s)

    def count(self, sequence: LiveSequence, drafted: int, accepted: int) -> None:
        """Note how many of a draft's tokens the model drew itself."""
        sequence.accepted_tokens += accepted
        sequence.rejected_tokens += drafted - accepted
        self.accepted_tokens += accepted
        self.rejected_tokens += drafted - accepted

    def _guess(self, sequence: LiveSequence) -> tuple[Int32Array, float]:
        """What the answer may say next, no more than it may say before its last token, which needs no draft; and see ``Drafter.rate``."""
        drafter = sequence.drafter
        if drafter is None:
            predicted = np.asarray(sequence.request.predicted_ids, dtype=np.int32)
            drafter = sequence.drafter = Drafter(sequence.prompt, predicted)
        most = min(self._most_rows, sequence.request.max_tokens - len(sequence.tokens)) - 1
        return drafter.propose(sequence.tokens)[: max(0, most)], drafter.rate
