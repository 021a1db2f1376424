"""What of a question the gate compares: figures, turns of meaning, kind of question, content words and their order."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stretto.cache.lexicon import (
    ADVISABLE,
    AUXILIARIES,
    CONTRACTIONS,
    DEGREES,
    DIRECTIONS,
    DO_SUPPORT,
    FREE,
    HYPHENATED,
    LEADING,
    NECESSARY,
    NEGATIONS,
    NUMBER_WORDS,
    OPERATORS,
    PARTICLES,
    PASSIVE,
    PAST,
    PHRASES,
    POSSIBLE,
    PREAMBLES,
    PRESENT,
    PRONOUNS,
    SCALES,
    STEPPED_OVER,
    TENS,
)
from stretto.cache.words import base_form

_QUOTED = re.compile(r"```.*?```|`[^`]*`|\"[^\"]*\"|“[^”]*”|«[^»]*»|„[^“”]*[“”]", re.DOTALL)
_TOKEN = re.compile(
    r"https?://\S+|\S+@\S+\.\w+"  # addresses
    r"|\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)+(?:[a-z]+)?|\d+(?:st|nd|rd|th)\b|\d+"  # numbers, versions
    r"|[^\W\d](?:[\w’']|[._/-](?=\w))*"  # words, names with dots and hyphens in them
    r"|[^\s\w?!.,;:()\[\]'’]"  # signs
)
_SENTENCE_END = re.compile(r"[?!.;:]+(?=\s|$)|\n+")
_REGULAR = re.compile(r"(\w+)(n't|'re|'ll|'ve|'d|'s|')$")
_REGULAR_WORDS = {
    "n't": " not",
    "'re": " are",
    "'ll": " will",
    "'ve": " have",
    "'d": " would",
    "'s": "",
    "'": "",
}
_SMALL = FREE | PARTICLES | NEGATIONS | frozenset(OPERATORS)
_ORDINAL = re.compile(r"(\d+)(st|nd|rd|th)")


@dataclass(frozen=True, slots=True)
class Reading:
    """One question, read.

    Attributes:
        quoted: what stands in quotation marks or is code, as it is, in order.
        figures: numbers and signs of arithmetic, in order.
        negations: how many.
        particles: of ``PARTICLES``, sorted.
        kinds: ``what``, ``how``, ``who``, ``where``, ``when``, ``why``, ``whether``.
        persons: who is spoken of, in order: ``i``, ``you``, ``he``, ``she``, ``they``.
        modality: what an answer is to say of it: ``possible``, ``advisable``, ``necessary`` or nothing.
        past, present: whether an auxiliary puts it there.
        content: base forms of the content words, in order of their first appearance.
        aims: base forms after each word of ``DIRECTIONS``, and under ``not`` those after negations.
        passive: whether something seems to be done to the subject.
        inverted: whether ``do`` stands before the subject (whom does he love), so that a question without it asks for the other side.
    """

    quoted: tuple[str, ...]
    figures: tuple[str, ...]
    negations: int
    particles: tuple[str, ...]
    kinds: frozenset[str]
    persons: tuple[str, ...]
    modality: frozenset[str]
    past: bool
    present: bool
    content: tuple[str, ...]
    aims: dict[str, frozenset[str]]
    passive: bool
    inverted: bool


def read_question(text: str) -> Reading:
    """Read a text."""
    text = unicodedata.normalize("NFKC", text)
    quoted = tuple(match.group().strip('`"“”«»„ \n') for match in _QUOTED.finditer(text))
    sentences = [_tokens(part) for part in _SENTENCE_END.split(_QUOTED.sub(" ", text))]
    sentences = [sentence for sentence in sentences if sentence]
    words = [word for sentence in sentences for word in sentence]
    marks = _marks(words)
    content = tuple(dict.fromkeys(base for word, base in marks if base is not None))
    kinds = [_kind(sentence) for sentence in sentences]
    asked = frozenset(kind for kind in kinds if kind != "tell")
    return Reading(
        quoted=quoted,
        figures=tuple(_figures(words)),
        negations=sum(word in NEGATIONS for word in words),
        particles=tuple(sorted(word for word in words if word in PARTICLES)),
        kinds=asked or frozenset({"what"}),
        persons=tuple(
            person for person, _ in itertools.groupby(PRONOUNS[word] for word in words if word in PRONOUNS)
        ),
        modality=frozenset(
            name
            for name, group in (("possible", POSSIBLE), ("advisable", ADVISABLE), ("necessary", NECESSARY))
            if group.intersection(words)
        ),
        past=bool(PAST.intersection(words)),
        present=bool(PRESENT.intersection(words)),
        content=content,
        aims=_aims(marks),
        passive=bool(PASSIVE.intersection(words)),
        inverted=bool(DO_SUPPORT.intersection(words)),
    )


def _tokens(sentence: str) -> list[str]:
    """Words in lower case, with contractions written out, turns of phrase replaced and preambles gone."""
    words: list[str] = []
    proper: list[bool] = []
    tokens = _TOKEN.findall(sentence)
    # Where capitals are few they mark names; a small word among them (in May, the US, channel A) is one too.
    marked = sum(token[0].isupper() for token in tokens) * 2 <= len(tokens) + 1
    for index, token in enumerate(tokens):
        lowered = token.replace("’", "'").lower()
        if marked and index and token[0].isupper() and lowered != "i" and lowered[:2] != "i'":
            words.append(token if lowered in _SMALL else lowered)
            proper.append(True)
            continue
        written = _written_out(lowered)
        words += written
        proper += [token[0].isupper()] * len(written)
    words = _replaced(words, proper)
    words = _without_preamble(words)
    if words and words[0] in LEADING:
        words[0] = LEADING[words[0]]
    return words


def _written_out(token: str) -> list[str]:
    if token in CONTRACTIONS:
        return CONTRACTIONS[token].split()
    if "-" in token and token.replace("-", "").isalpha() and token not in HYPHENATED:
        tens, _, ones = token.partition("-")
        return [token] if tens in TENS and ones else token.split("-")
    if "'" not in token:
        return [token]
    return _REGULAR.sub(lambda match: match[1] + _REGULAR_WORDS[match[2]], token).split()


@functools.cache
def _phrases() -> dict[str, list[tuple[list[str], list[str]]]]:
    """Phrases by their first word, the longest first."""
    table: dict[str, list[tuple[list[str], list[str]]]] = {}
    for phrase, instead in sorted(PHRASES, key=lambda pair: -len(pair[0].split())):
        table.setdefault(phrase.split()[0], []).append((phrase.split(), instead.split()))
    return table


def _replaced(words: Sequence[str], proper: Sequence[bool]) -> list[str]:
    """With turns of phrase replaced. One that ends in ``to`` goes before a verb, not before a name or a thing (the way to Rome)."""
    out: list[str] = []
    position = 0
    while position < len(words):
        for phrase, instead in _phrases().get(words[position], ()):
            end = position + len(phrase)
            before_thing = end < len(words) and (
                proper[end] or words[end] in ("the", "a", "an", "my", "your")
            )
            if list(words[position:end]) == phrase and not (phrase[-1] == "to" and before_thing):
                out += instead
                position = end
                break
        else:
            out.append(words[position])
            position += 1
    return out


def _without_preamble(words: list[str]) -> list[str]:
    preambles = sorted((preamble.split() for preamble in PREAMBLES), key=len, reverse=True)
    found = True
    while found:
        found = False
        for preamble in preambles:
            if words[: len(preamble)] == preamble and len(words) > len(preamble):
                words = words[len(preamble) :]
                found = True
                break
    return words


def _kind(sentence: Sequence[str]) -> str:
    if sentence[0] in AUXILIARIES:
        return "whether"
    for position, word in enumerate(sentence):
        if word == "how":
            following = sentence[position + 1] if position + 1 < len(sentence) else ""
            return "what" if following in DEGREES else "how"
        if word in ("what", "which"):
            return "what"
        if word in ("who", "whom", "whose"):
            return "who"
        if word in ("where", "when", "why"):
            return word
    return "tell"


def _marks(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """Each word with its base form, None for one that is no content."""
    return [(word, _content(words, position)) for position, word in enumerate(words)]


def _content(words: Sequence[str], position: int) -> str | None:
    word = words[position]
    if word in FREE or word in PARTICLES or word in NEGATIONS or _value(words, position) is not None:
        return None
    if _operator(words, position) is not None:
        return None
    return base_form(word)


def _figures(words: Sequence[str]) -> Iterator[str]:
    """Numbers, in one form, and the signs between them. ``twenty-one`` is 21, ``two hundred`` is 200."""
    pending: float | None = None
    for position in range(len(words)):
        value = _value(words, position)
        if isinstance(value, float):
            if words[position] in SCALES and pending is not None:
                pending *= value
                continue
            if (
                pending is not None
                and pending >= 20
                and pending % 10 == 0
                and 0 < value < 10
                and words[position - 1] in TENS
            ):
                pending += value
                continue
            if pending is not None:
                yield f"{pending:.12g}"
            pending = value
            continue
        if pending is not None:
            yield f"{pending:.12g}"
            pending = None
        if value is not None:
            yield value
        elif (sign := _operator(words, position)) is not None:
            yield sign
    if pending is not None:
        yield f"{pending:.12g}"


def _value(words: Sequence[str], position: int) -> float | str | None:
    """The number that a word is; text for one that only looks like it (a version); None for other words."""
    word = words[position]
    if word[0].isdigit():
        if (ordinal := _ORDINAL.fullmatch(word)) is not None:
            return float(ordinal[1])
        try:
            return float(word.replace(",", ""))
        except ValueError:
            return word
    if word in SCALES:
        return float(SCALES[word])
    if word in TENS:
        return float(TENS[word])
    if "-" in word:
        tens, _, ones = word.partition("-")
        if tens in TENS and (ones in NUMBER_WORDS or ones in ("one", "first")):
            return float(TENS[tens] + NUMBER_WORDS.get(ones, 1))
    return float(NUMBER_WORDS[word]) if word in NUMBER_WORDS else None


def _operator(words: Sequence[str], position: int) -> str | None:
    """The sign that a word is; words are signs only beside a number."""
    sign = OPERATORS.get(words[position])
    if sign is None or not words[position].isalpha():
        return sign
    beside = [neighbour for neighbour in (position - 1, position + 1) if 0 <= neighbour < len(words)]
    return sign if any(_value(words, neighbour) is not None for neighbour in beside) else None


def _aims(marks: Sequence[tuple[str, str | None]]) -> dict[str, frozenset[str]]:
    aims: dict[str, set[str]] = {}
    directions: list[str] = []
    waiting = False
    for word, base in marks:
        if word in DIRECTIONS or word in NEGATIONS:
            if not waiting:  # else two stand together (not in), and what follows belongs to both
                directions.clear()
            directions.append("not" if word in NEGATIONS else word)
            aims.setdefault(directions[-1], set())
            waiting = True
        elif base is not None:
            for direction in directions:
                aims[direction].add(base)
            waiting = False
        elif word not in STEPPED_OVER:
            directions.clear()
            waiting = False
    return {direction: frozenset(bases) for direction, bases in aims.items()}
