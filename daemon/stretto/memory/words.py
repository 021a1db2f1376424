"""Text as words to be found again: lower case, without accents, without what is too common to mean anything."""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Iterator

from stretto.memory.common_words import COMMON_WORDS

_LONGEST_CHARS = 40
_ACCENTS = re.compile("[\u0300-\u036f]")
_WORD = re.compile(r"[^\s]+")
# Scripts that are written without spaces: kana, Han (and its extensions), Thai, Lao, Myanmar, Khmer.
_UNSPACED = re.compile(
    "[\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+"
)
_ASCII_WORD = re.compile("[a-z0-9]+")


def words(text: str) -> list[str]:
    """The words of a text, in order, as often as they occur.

    Letters, digits and the marks on them make words; of scripts that are written without spaces, each two characters that follow each other make
    one. Compatibility forms and case are one (NFKC, casefold), accents are dropped. Left out are ``COMMON_WORDS``, single letters and digits
    of ASCII, and words of more than 40 characters.
    """
    found = _ASCII_WORD.findall(text.lower()) if text.isascii() else _unicode_words(text)
    return [
        word
        for word in found
        if word not in _COMMON and len(word) <= _LONGEST_CHARS and (len(word) > 1 or not word.isascii())
    ]


def _unicode_words(text: str) -> Iterator[str]:
    for word in _WORD.findall(_spaced(_folded(text))):
        last = 0
        for run in _UNSPACED.finditer(word):
            if run.start() > last:
                yield word[last : run.start()]
            characters = run.group()
            if len(characters) == 1:
                yield characters
            for first, second in itertools.pairwise(characters):
                yield first + second
            last = run.end()
        if last < len(word):
            yield word[last:]


def _folded(text: str) -> str:
    apart = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    return unicodedata.normalize("NFC", _ACCENTS.sub("", apart))


def _spaced(text: str) -> str:
    """The text with a space for everything that is no letter, digit or mark."""
    return "".join(
        character if character.isalnum() or unicodedata.category(character)[0] == "M" else " "
        for character in text
    )


_COMMON: frozenset[str] = COMMON_WORDS | frozenset(map(_folded, COMMON_WORDS))
