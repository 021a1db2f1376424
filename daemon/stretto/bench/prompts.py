"""Prompts for measuring: English-like text of a wanted number of tokens, the same for every server and every run."""

from __future__ import annotations

import random

_SUBJECTS = (
    "The engineer",
    "A careful reader",
    "Our neighbour",
    "The old library",
    "Every student",
    "The captain",
    "A small team",
)
_VERBS = ("describes", "repairs", "remembers", "questions", "measures", "carries", "explains", "protects")
_OBJECTS = (
    "the bridge",
    "a long letter",
    "the weather",
    "an unusual map",
    "the garden wall",
    "two rivers",
    "a broken clock",
)
_ENDINGS = (
    "before noon",
    "without any help",
    "because nobody else would",
    "in the quiet town",
    "as if it were new",
    "with great patience",
)

_WORDS_OF_A_TRIAL = 400


class Prompts:
    """Makes prompts. Two with different names share no beginning, so that no prefix cache helps where none is meant to.

    Args:
        tokens_per_word: of this text, for the model in question (see ``trial`` and ``calibrated``).
        overhead_tokens: what the chat template adds to a message.
    """

    def __init__(self, *, tokens_per_word: float = 1.3, overhead_tokens: int = 30) -> None:
        self._tokens_per_word = tokens_per_word
        self._overhead_tokens = overhead_tokens

    def text(self, name: str, tokens: int) -> str:
        """About so many tokens, template included. ``name`` decides the text."""
        words = max(4, round((tokens - self._overhead_tokens) / self._tokens_per_word))
        return _words(name, words)

    @staticmethod
    def trial() -> tuple[str, str]:
        """A short and a long text whose token counts tell the two parameters."""
        return _words("trial", 4), _words("trial", 4 + _WORDS_OF_A_TRIAL)

    @classmethod
    def calibrated(cls, short_tokens: int, long_tokens: int) -> Prompts:
        """For a model that counted so many tokens in the two texts of ``trial``, template included."""
        per_word = (long_tokens - short_tokens) / _WORDS_OF_A_TRIAL
        return cls(tokens_per_word=per_word, overhead_tokens=round(short_tokens - 4 * per_word))


def _words(name: str, count: int) -> str:
    chance = random.Random(name)
    words = ["Case", f"{chance.randrange(10**6)}:"]
    while len(words) < count:
        parts = (chance.choice(kind) for kind in (_SUBJECTS, _VERBS, _OBJECTS, _ENDINGS))
        words += f"{' '.join(parts)}.".split()
    return " ".join(words[:count])
