"""Which tokens spell some bytes, and which go beyond."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from stretto.conversation.tokenizer import Tokenizer
from stretto.grammar.follower import IdArray
from stretto.grammar.vocabulary import Vocabulary


class Spelling:
    """The bytes of a vocabulary's tokens, looked up by how they begin.

    Args:
        vocabulary: all tokens.
        tokenizer: the model's.
        marks: control tokens that count as text, with what they count as.
    """

    def __init__(self, vocabulary: Vocabulary, tokenizer: Tokenizer, marks: Mapping[int, str]) -> None:
        self._vocabulary = vocabulary
        self._tokenizer = tokenizer
        self._marks = {token_id: text.encode() for token_id, text in marks.items()}
        self._mark_ids = {data: token_id for token_id, data in self._marks.items()}
        self.beyond = functools.lru_cache(maxsize=64)(self._beyond)
        """The tokens that begin with some bytes and go on, each with the rest of it."""

    @functools.cached_property
    def going_on(self) -> IdArray:
        """All tokens that do not end an answer; marks do not, whatever else they are."""
        ends = set(self._vocabulary.end_ids) - set(self._marks)
        return np.setdiff1d(np.arange(len(self._vocabulary.tokens)), np.array(sorted(ends), dtype=np.intp))

    def data(self, token_id: int) -> bytes:
        """The bytes that a token counts as; nothing for a control token that is no mark."""
        return self._marks.get(token_id) or self._tokenizer.token_bytes(token_id)

    def beginnings(self, data: bytes) -> list[int]:
        """The tokens that are a beginning of some bytes, or all of them, shortest first. Where a mark is one, only that: models know
        marks as such."""
        marks = [token_id for mark, token_id in self._mark_ids.items() if data.startswith(mark)]
        if marks:
            return marks
        longest = min(self._vocabulary.longest_bytes, len(data))
        known = self._vocabulary.ids
        return [known[data[:size]] for size in range(1, longest + 1) if data[:size] in known]

    def exactly(self, data: bytes) -> int | None:
        """The token that is just these bytes, if there is one."""
        return self._vocabulary.ids.get(data)

    def spell(self, data: bytes) -> Sequence[int] | None:
        """Tokens that join to some bytes: marks where they are, else the longest first; None where the vocabulary lacks a byte."""
        ids: list[int] = []
        position = 0
        while position < len(data):
            here = self.beginnings(data[position:])
            if not here:
                return None
            ids.append(here[-1])
            position += len(self.data(here[-1]))
        return ids

    def _beyond(self, data: bytes) -> tuple[tuple[int, bytes], ...]:
        return tuple(
            (token_id, token[len(data) :])
            for token, token_id in self._vocabulary.ids.items()
            if len(token) > len(data) and token.startswith(data)
        )
