"""Base forms: what is taken for one word, and what is not."""

from __future__ import annotations

import pytest

from stretto.cache.lexicon import FREE, IRREGULAR, NEGATIONS, PARTICLES, PHRASES, SAME
from stretto.cache.words import base_form, stem


@pytest.mark.parametrize(
    "forms",
    [
        "close closes closed closing",
        "ship ships shipped shipping deliver delivery",
        "copy copies copied copying",
        "egg eggs",
        "box boxes",
        "class classes",
        "write wrote written writing author",
        "build built construct",
        "child children kid kids",
        "colour color colours",
        "big large huge",
        "die died dying",
        "stop stopped stopping",
        "fall falls falling autumn",
        "cache caches cached caching",
        "index indices",
    ],
)
def test_forms_of_one_word(forms: str) -> None:
    assert len({base_form(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(
    "words",
    [
        "open close",
        "university universe",
        "large larger largest",
        "new news",
        "organ organic organization",
        "install uninstall",
        "legal illegal",
        "use user",
        "thing think",
        "king kin",
        "string strings str",
        "paris pari",
        "bus bu",
        "analysis analyst",
        "python java",
        "need nee",
        "bed b",
        "mean means mine",
        "anna anne",
        "austria australia",
    ],
)
def test_words_that_stay_apart(words: str) -> None:
    found = [base_form(word) for word in words.split()]
    if words == "string strings str":
        assert found[0] == found[1] != found[2]
    elif words == "mean means mine":
        assert found[0] != found[2]
    else:
        assert len(set(found)) == len(found)


def test_other_languages_are_left_alone() -> None:
    assert base_form("größer") == "größer"
    assert base_form("東京") == "東京"
    assert stem("getuserbyid") == "getuserbyid"


def test_no_word_stands_in_two_groups_of_synonyms() -> None:
    stems = [stem(word) for group in SAME for word in group.split()]
    doubles = {word for word in stems if stems.count(word) > 1}
    # Variants within one group may share a stem; no stem may join two groups.
    for word in doubles:
        assert sum(word in map(stem, group.split()) for group in SAME) == 1


def test_the_tables_do_not_contradict_each_other() -> None:
    assert not FREE & PARTICLES
    assert not FREE & NEGATIONS
    assert not PARTICLES & NEGATIONS
    assert not set(IRREGULAR.values()) & set(IRREGULAR)
    for phrase, instead in PHRASES:
        assert phrase != instead
        assert phrase == phrase.lower()
