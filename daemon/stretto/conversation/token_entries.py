"""Tokens as the engine gives them, and their entries where log-probabilities were asked for."""

from __future__ import annotations

import math
from typing import Protocol

from stretto.conversation.events import TokenLogprob, TopLogprob
from stretto.conversation.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON cannot write."""


class GeneratedToken(Protocol):
    """A token as the engine gives it."""

    @property
    def id(self) -> int:
        """Its id."""
        ...

    @property
    def logprob(self) -> float | None:
        """Natural logarithm of its probability, if asked for."""
        ...

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The most likely tokens at its place (id, logprob), if asked for."""
        ...


def token_entry(tokenizer: Tokenizer, token: GeneratedToken, data: bytes) -> TokenLogprob:
    """The entry of a token that adds ``data`` to the text."""
    top = tuple(
        TopLogprob(_text(tokenizer, id_, alternative), _finite(value), alternative)
        for id_, value in token.top
        for alternative in (tokenizer.token_bytes(id_),)
    )
    logprob = None if token.logprob is None else _finite(token.logprob)
    return TokenLogprob(_text(tokenizer, token.id, data), logprob, data, top)


def _text(tokenizer: Tokenizer, token_id: int, data: bytes) -> str:
    return data.decode("utf-8", "replace") if data else tokenizer.token_text(token_id)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB
