"""Reasoning, text and calls are told apart the same way however the text arrives, and nothing of it is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.conversation.channels import ChannelReader, Words
from stretto.conversation.reasoning import choose_reasoning
from stretto.conversation.tool_dialects import TOOL_DIALECTS
from support.conversation_calls import EXAMPLES, THINK, TOOLS, Example, cut, read, reader_of

NAMES = sorted(TOOL_DIALECTS)
_FRAGMENTS = sorted(
    {
        "<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[", "]", "{", "}", '"', "\\", ",", ":",
        '{"name": "clock", "arguments": {}}', '{"name": "get_weather", "parameters": {"city": "x"}}', '"name"', '"arguments": ',
        "clock", "get_weather", "<function=", "<function=clock>", "<parameter=city>", "</parameter>", "</function>", "call:clock{",
        '<|"|>', "<|tool_call>", "<tool_call|>", "<|python_tag|>", "; ", " ", "\n", "x", "é", "😀", "null", "12", "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "```json\n", "```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "city:", "[CALL_ID]",
    }
)  # fmt: skip
SCRIPTS = st.lists(
    st.one_of(st.sampled_from(_FRAGMENTS), st.sampled_from([example.raw for example in EXAMPLES])),
    max_size=12,
).map("".join)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.dialect}-{EXAMPLES.index(e)}")
def test_examples_whole_and_by_the_character(example: Example) -> None:
    for pieces in ([example.raw], list(example.raw)):
        found = read(reader_of(example.dialect), pieces)
        assert found.text == example.text
        assert found.thought == example.thought
        assert [(name, json.loads(arguments)) for name, arguments in found.calls] == list(example.calls)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), SCRIPTS, st.lists(st.integers(1, 9), max_size=60), st.booleans())
def test_how_the_text_is_cut_makes_no_difference(
    dialect: str, text: str, sizes: list[int], opened: bool
) -> None:
    whole = read(reader_of(dialect, opened=opened), [text])
    assert read(reader_of(dialect, opened=opened), cut(text, sizes)) == whole


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(NAMES), SCRIPTS, st.booleans())
def test_what_is_no_call_is_text_exactly_once(dialect: str, text: str, opened: bool) -> None:
    """Words are stretches of what was read, in order; where nothing was called or thought, they are all of it."""
    reader = reader_of(dialect, opened=opened)
    pieces = [*reader.feed(text), *reader.finish()]
    end = 0
    for piece in pieces:
        if isinstance(piece, Words):
            assert piece.start >= end
            assert text[piece.start : piece.start + len(piece.text)] == piece.text
            end = piece.start + len(piece.text)
    found = read(reader_of(dialect, opened=opened), [text])
    if not found.calls and "think>" not in text and not opened:
        assert found.text == text


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: f"{e.dialect}-{EXAMPLES.index(e)}")
def test_cut_off_anywhere_the_arguments_are_a_beginning(example: Example) -> None:
    whole = read(reader_of(example.dialect), [example.raw])
    for end in range(len(example.raw)):
        found = read(reader_of(example.dialect), [example.raw[:end]])
        assert len(found.calls) <= len(whole.calls)
        for (name, arguments), (whole_name, whole_arguments) in zip(found.calls, whole.calls, strict=False):
            assert name == whole_name
            # A value whose kind is decided at its end may not be there yet; nothing is there that does not stay.
            assert whole_arguments.startswith(arguments)


def test_arguments_come_as_they_are_written() -> None:
    reader = reader_of("hermes")
    assert reader.feed('<tool_call>\n{"name": "get_weather", ') == []
    seen = [reader.feed(piece) for piece in ('"arguments": {"ci', 'ty": "Lon', "don")]
    assert ["".join(getattr(piece, "text", "") for piece in pieces) for pieces in seen] == [
        '{"ci',
        'ty": "Lon',
        "don",
    ]


def test_text_is_held_back_only_while_it_may_begin_a_mark() -> None:
    reader = reader_of("hermes")
    assert [piece for text in ("Hi", " <", "b>") for piece in reader.feed(text)] == [
        Words(0, "Hi"),
        Words(2, " <b>"),
    ]


@pytest.mark.parametrize(
    ("sign", "raw", "thought", "text"),
    [
        ("</think>", "<think>a</think>b", "a", "b"),
        ("[THINK]", "[THINK]a[/THINK]b", "a", "b"),
        ("<|channel>", "<|channel>thought\na<channel|>b", "a", "b"),
        ("<|channel>", "<|channel>final\nb", "", "b"),
        ("<seed:think>", "<seed:think>a</seed:think>b", "a", "b"),
        (
            "<|channel|>analysis",
            "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
            "a",
            "b",
        ),
        ("<|channel|>analysis", "<|channel|>final<|message|>b", "", "b"),
    ],
)
def test_every_format_of_reasoning(sign: str, raw: str, thought: str, text: str) -> None:
    for pieces in ([raw], list(raw)):
        found = read(reader_of(None, reasoning=choose_reasoning(sign)), pieces)
        assert (found.thought, found.text) == (thought, text)


def test_reasoning_that_the_prompt_began_and_that_never_ends() -> None:
    found = read(reader_of("hermes", opened=True), ["\nstill ", "thinking "])
    assert (found.thought, found.text) == ("still thinking ", "")
    reader = reader_of("hermes", opened=True)
    reader.feed("ab</think>\ncd")
    assert [reader.is_reasoning(place) for place in (0, 1, 9, 10, 11)] == [True, True, True, False, False]


def test_no_tools_no_calls() -> None:
    raw = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    assert read(reader_of("hermes", tools=()), [raw]).text == raw


def test_calls_in_reasoning_can_be_left_alone() -> None:
    raw = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    reader = ChannelReader(
        reasoning=THINK, dialect=TOOL_DIALECTS["hermes"], tools=TOOLS, calls_in_reasoning=False
    )
    found = read(reader, [f"<think>{raw}</think>{raw}"])
    assert (found.thought, len(found.calls)) == (raw, 1)


def test_a_beginning_that_goes_on_for_ever_is_text() -> None:
    endless: Any = '<tool_call>{"id": "' + "x" * 70_000
    assert read(reader_of("hermes"), [endless]).text == endless
    assert read(reader_of("hermes"), cut(endless, [1000] * 60)).text == endless
