"""What an answer may say next, by prompt lookup: what followed when its last tokens were said before (Saxena 2023).

A draft is a guess and costs no model. The engine lets the model look at all of its tokens in one step and keeps those that it draws
itself: the answer is the one that would have come without, only sooner.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stretto.backends.base import Int32Array

MOST_DRAFT_TOKENS = 15
"""Tokens that a draft has at most: with the token before them a step computes up to 16 rows of one sequence."""

LEAST_MATCH_TOKENS = 2
"""So many of the last tokens must have stood together before."""

LONGEST_MATCH_TOKENS = 6
"""Longer matches are no better."""

_MOST_PLACES = 16  # looked at, the latest ones
_PRIOR = (
    0.3,
    0.5,
    0.6,
    0.7,
    0.8,
)  # that the next token of a draft is right, by the length of the match from the shortest on
_WEIGHT = 0.2
_NOTHING = np.empty(0, dtype=np.int32)


class Drafter:
    """The text of one sequence, drafts out of it, and how good they have been.

    Each draft is compared with what came, whether or not a step has computed it, so how far one can be trusted is known before
    anything is spent on it.

    Args:
        prompt: int32 [n], n >= 1.
        predicted: int32 [m], text that the caller expects the answer to repeat; it is looked through like the prompt.
    """

    __slots__ = ("_ids", "_known", "_length", "_match", "_proposed", "_rates")

    def __init__(self, prompt: Int32Array, predicted: Int32Array = _NOTHING) -> None:
        # -1 parts the two texts: it is no token, so nothing matches across it.
        parts = (predicted, np.array([-1], dtype=np.int32), prompt) if predicted.size else (prompt,)
        text = np.concatenate(parts)
        self._ids = np.concatenate((text, np.empty(max(64, text.size // 4), dtype=np.int32)))
        self._length = text.size
        self._known = 0  # tokens of the answer that are in the text
        self._proposed: Int32Array = _NOTHING
        self._match = 0
        self._rates = list(_PRIOR)

    @property
    def rate(self) -> float:
        """The share of tokens of drafts like the last one that were right, as a moving average; 0 where there was none."""
        return self._rates[self._match - LEAST_MATCH_TOKENS] if self._match else 0.0

    def propose(self, answer: Sequence[int]) -> Int32Array:
        """A draft of what follows the whole answer so far; empty when nothing like its end stood before.

        Returns:
            int32 [k], k <= MOST_DRAFT_TOKENS.
        """
        self._learn(answer[self._known :])
        self._proposed, self._match = self._look_up()
        return self._proposed

    def _learn(self, came: Sequence[int]) -> None:
        if not came:
            return
        if self._proposed.size:
            index = self._match - LEAST_MATCH_TOKENS
            for token, guess in zip(came, self._proposed.tolist(), strict=False):
                right = token == guess
                self._rates[index] += (right - self._rates[index]) * _WEIGHT
                if not right:
                    break
        end = self._length + len(came)
        if end > self._ids.size:
            self._ids = np.concatenate((self._ids[: self._length], np.empty(end, dtype=np.int32)))
        self._ids[self._length : end] = came
        self._length = end
        self._known += len(came)

    def _look_up(self) -> tuple[Int32Array, int]:
        """The draft, and the length of the match that it follows."""
        ids = self._ids[: self._length]
        if ids.size <= LEAST_MATCH_TOKENS:
            return _NOTHING, 0
        # Ends of matches; the end of the text itself is none.
        ends = np.flatnonzero((ids[1:-1] == ids[-1]) & (ids[:-2] == ids[-2])) + 1
        if not ends.size or ids[-2] < 0:
            return _NOTHING, 0
        best, longest = 0, 0
        for end in ends[: -_MOST_PLACES - 1 : -1].tolist():
            length = _common_end(ids, end)
            if length > longest:
                best, longest = end, length
                if length == LONGEST_MATCH_TOKENS:
                    break
        followed = ids[best + 1 :][:MOST_DRAFT_TOKENS]
        stops = np.flatnonzero(followed < 0)
        if stops.size:
            followed = followed[: stops[0]]
        elif followed.size < MOST_DRAFT_TOKENS:
            followed = np.resize(
                followed, MOST_DRAFT_TOKENS
            )  # the text has begun to repeat itself: so may the draft
        return followed.copy(), longest


def _common_end(ids: npt.NDArray[np.int32], end: int) -> int:
    """How many tokens up to ``end`` are the same as the last ones; two are known to be."""
    length, most = LEAST_MATCH_TOKENS, min(LONGEST_MATCH_TOKENS, end + 1)
    while length < most and ids[end - length] == ids[-1 - length]:
        length += 1
    return length
