"""The gate between embedding and judge: what two questions must have in common before the one's answer may do for the other.

Neighbours in an embedding space share a topic, and a weak judge believes them. So everything that turns an answer round is compared word by
word, and whatever is not known to mean the same does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stretto.cache.reading import Reading, read_question

_ORDERED_WORDS = 24
"""Texts of more content words than this must have them in the same order."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two questions are not taken for the same: a short stable word."""

    reason: str


def compare(first: str, second: str) -> Refusal | None:
    """Why the answer to ``first`` must not be given to ``second``, or None when nothing speaks against it. Symmetric."""
    return compare_readings(read_question(first), read_question(second))


def compare_readings(first: Reading, second: Reading) -> Refusal | None:
    """``compare`` for texts that have been read."""
    for reason, differ in _RULES.items():
        if differ(first, second):
            return Refusal(reason)
    return None


def _content(first: Reading, second: Reading) -> bool:
    """Whether the words differ. Texts without any word that counts are the same only if they have figures or quotes."""
    return set(first.content) != set(second.content) or not (first.content or first.figures or first.quoted)


def _order(first: Reading, second: Reading) -> bool:
    """Whether what is said of whom may have changed, unless one of the two texts says it in the passive.

    Two words that change places are a matter of style (a list in Python, a Python list); three are subject and object
    (dog bites man). Where the answer is yes or no (is a dog an animal), where only one of the two puts its verb behind the
    subject (who loves whom, whom does who love), and in a long text, two are enough.
    """
    if len(first.content) > _ORDERED_WORDS:
        return first.content != second.content
    if first.passive != second.passive:
        return False
    if first.content != second.content and (
        "whether" in first.kinds or (first.inverted != second.inverted and first.kinds & {"who", "what"})
    ):
        return True
    position = {word: index for index, word in enumerate(first.content)}
    return _longest_fall([position[word] for word in second.content]) >= 3


def _longest_fall(values: Sequence[int]) -> int:
    """Length of the longest decreasing subsequence."""
    lengths: list[int] = []
    for index, value in enumerate(values):
        lengths.append(1 + max((lengths[at] for at in range(index) if values[at] > value), default=0))
    return max(lengths, default=0)


def _aims(first: Reading, second: Reading) -> bool:
    """Whether both say ``to`` (from, for, of, not, …) something, and none of it is the same."""
    return any(
        aimed != second.aims[direction] and not aimed & second.aims[direction]
        for direction, aimed in first.aims.items()
        if direction in second.aims
    )


def _persons(first: Reading, second: Reading) -> bool:
    """Whether the one speaks of me and the other of you; a way of doing something is everybody's."""
    if not first.persons or not second.persons:
        return False
    if len(set(first.persons)) == len(set(second.persons)) == 1:
        return first.kinds != {"how"} and first.persons != second.persons
    return first.persons != second.persons


def _modality(first: Reading, second: Reading) -> bool:
    """Whether the one asks what can be, the other what should or must be. That one can is not said where no more is asked."""
    if first.kinds == {"how"}:
        return False
    if "whether" in first.kinds:
        return first.modality != second.modality
    return first.modality - {"possible"} != second.modality - {"possible"}


def _tense(first: Reading, second: Reading) -> bool:
    return (first.past and not first.present and second.present and not second.past) or (
        second.past and not second.present and first.present and not first.past
    )


_RULES: Mapping[str, Callable[[Reading, Reading], bool]] = {
    "figures": lambda first, second: first.figures != second.figures,
    "negation": lambda first, second: first.negations != second.negations,
    "quoted": lambda first, second: first.quoted != second.quoted,
    "content": _content,
    "particles": lambda first, second: first.particles != second.particles,
    "kind": lambda first, second: first.kinds != second.kinds,
    "direction": _aims,
    "order": _order,
    "person": _persons,
    "modality": _modality,
    "tense": _tense,
}
"""In the order in which they are looked at; the first that speaks against it is the reason."""
