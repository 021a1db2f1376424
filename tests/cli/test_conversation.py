"""What typed lines mean, and what a conversation remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cli.conversation import Command, Conversation, LineReader, Say, read_entry


def entries(*lines: str) -> list[str]:
    reader = LineReader()
    found = [text for line in lines if (text := reader.feed(line)) is not None]
    last = reader.end()
    assert not reader.pending
    return found if last is None else [*found, last]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a", "b"], ["a", "b"]),
        (["a\\", "b"], ["a\nb"]),
        (["a\\", "b\\", "c", "d"], ["a\nb\nc", "d"]),
        (['"""', "a\\", "", "  b", '"""', "c"], ["a\\\n\n  b", "c"]),
        (['"""a', 'b"""'], ["a\nb"]),
        (['"""one line"""'], ["one line"]),
        (["a\\"], ["a"]),
        (['"""', "a"], ["a"]),
        (['say """x""" now'], ['say """x""" now']),
        ([""], [""]),
    ],
)
def test_lines_become_entries(lines: list[str], expected: list[str]) -> None:
    assert entries(*lines) == expected


LINE = st.text("ab /\té💡", max_size=10)


@given(st.lists(LINE, min_size=1, max_size=5))
def test_text_in_quotes_comes_out_as_it_went_in(lines: list[str]) -> None:
    assert entries('"""', *lines, '"""') == ["\n".join(lines)]
    continued = [*(f"{line}\\" for line in lines[:-1]), lines[-1]]
    assert entries(*continued) == ["\n".join(lines)]


def test_a_dropped_entry_leaves_nothing() -> None:
    reader = LineReader()
    for line in ('"""', "a"):
        assert reader.feed(line) is None
    reader.reset()
    assert reader.feed("b") == "b"


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("  ", None),
        ("hello", Say("hello")),
        (" hello ", Say(" hello ")),
        ("/reset", Command("reset", "")),
        ("/system  Be brief. ", Command("system", "Be brief.")),
        ("//etc is a folder", Say("/etc is a folder")),
        ("/two\nlines", Say("/two\nlines")),
    ],
)
def test_entries_mean(text: str, meaning: object) -> None:
    assert read_entry(text) == meaning


def test_a_conversation_remembers_what_was_answered() -> None:
    talk = Conversation("Be brief.")
    assert talk.ask("a") == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}]
    talk.answered("b")
    talk.ask("lost")
    talk.answered("")
    assert [turn["content"] for turn in talk.ask("c")] == ["Be brief.", "a", "b", "c"]
    talk.reset()
    assert talk.messages() == [{"role": "system", "content": "Be brief."}]
    talk.ask("x")
    talk.set_system("Other.")
    assert talk.messages() == [{"role": "system", "content": "Other."}]
