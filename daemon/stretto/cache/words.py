"""Words to their base forms: a light stemmer that would rather keep two forms apart than take two words for one."""

from __future__ import annotations

import functools

from stretto.cache.lexicon import IRREGULAR, SAME, UNCHANGED

_VOWELS = frozenset("aeiouy")


@functools.lru_cache(maxsize=65536)
def base_form(word: str) -> str:
    """The base form of a word in lower case, with its spelling variants and exact synonyms brought to one of them.

    Endings of number and tense go (``-s``, ``-ing``, ``-ed``, and a final ``e`` after them), no others: ``university`` and
    ``universe``, ``large`` and ``largest`` stay apart. What is not English, a name or an identifier loses at most its last letters,
    and so does everything that it is compared with.
    """
    return _groups().get(stem(word), stem(word))


def stem(word: str) -> str:
    """``base_form`` without the synonyms."""
    word = IRREGULAR.get(word, word)
    if word in UNCHANGED or not word.isalpha() or not word.isascii():
        return word
    return _without_e(_without_tense(_without_plural(word)))


@functools.cache
def _groups() -> dict[str, str]:
    groups: dict[str, str] = {}
    for group in SAME:
        words = group.split()
        for word in words:
            groups[stem(word)] = stem(words[0])
    return groups


def _without_plural(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    return word[:-1]


def _without_tense(word: str) -> str:
    if word in UNCHANGED:
        return word
    for ending in ("ing", "ed"):
        left = word.removesuffix(ending)
        if left == word or len(left) < 3 or not _VOWELS & set(left) or left.endswith("e"):
            continue
        if left.endswith("i") and ending == "ed":
            return left[:-1] + "y"
        if len(left) > 3 and left[-1] == left[-2] and left[-1] not in "aeioulsz":
            return left[:-1]
        return left
    return word


def _without_e(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
