"""Texts as words, and which of them count."""

from __future__ import annotations

import pytest

from stretto.memory.words import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is the capital of France?", ["capital", "france"]),
        ("Tell me more about it, please!", []),
        ("I don't think so.", []),
        ("PostgreSQL 16.2 on x86_64", ["postgresql", "16", "x86", "64"]),
        ("naïve Café RÉSUMÉ", ["naive", "cafe", "resume"]),
        ("Straße STRASSE", ["strasse", "strasse"]),
        ("ﬁne ＡＢＣ", ["fine", "abc"]),
        ("Где лежит мой паспорт?", ["лежит", "мои", "паспорт"]),
        ("東京都", ["東京", "京都"]),
        ("犬", ["犬"]),
        ("GPU用ドライバ", ["gpu", "用ド", "ドラ", "ライ", "イバ"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("Wie ist das Wetter in München?", ["wetter", "munchen"]),
        ("x" * 41 + " kept", ["kept"]),
        ("a 1 ß", ["ss"]),
        ("", []),
        ("\x00\n\t--- ***", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_the_short_way_for_ascii_finds_what_the_long_way_does() -> None:
    text = "It's 5 o'clock: e-mail bob_smith@example.org about C++ & 3.14 (twice, twice)."
    assert words(text) == words(f"{text} é")  # a single letter is no word


def test_words_of_other_languages_that_mean_something_in_english_are_kept() -> None:
    assert words("the war on drugs may die fast") == ["war", "drugs", "die", "fast"]
