"""From tokens to events of all channels: ids, order, stop strings, log-probabilities and what is counted."""

from __future__ import annotations

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.conversation import (
    Event,
    Finish,
    ReasoningDelta,
    TextAssembler,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from support.conversation_calls import EXAMPLES, Example, cut, reader_of
from support.conversation_tokens import GivenToken, PieceTokenizer

CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'


def assembler(
    pieces: list[bytes], *, stop: tuple[str, ...] = (), logprobs: bool = False, dialect: str = "hermes"
) -> tuple[TextAssembler, list[GivenToken]]:
    tokenizer = PieceTokenizer(pieces)
    ids = map("call_{}".format, itertools.count())
    return (
        TextAssembler(
            tokenizer,  # type: ignore[arg-type]  # the part of one that assembly needs
            index=0,
            stop=stop,
            logprobs=logprobs,
            channels=reader_of(dialect),
            new_id=lambda: next(ids),
        ),
        tokenizer.tokens(logprobs=logprobs),
    )


def events_of(
    pieces: list[bytes], *, at_once: bool = False, reason: str = "stop", **options: object
) -> tuple[list[Event], TextAssembler]:
    made, tokens = assembler(pieces, **options)  # type: ignore[arg-type]
    events: list[Event] = []
    for some in [tokens] if at_once else [[token] for token in tokens]:
        events += made.push(some)
    return [*events, *made.close(reason)], made  # type: ignore[arg-type]


def joined(events: list[Event]) -> list[Event]:
    """Neighbouring deltas of a kind as one, without log-probabilities."""
    result: list[Event] = []
    for event in events:
        last = result[-1] if result else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            result[-1] = TextDelta(0, last.text + event.text)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            result[-1] = ReasoningDelta(0, last.text + event.text)
        elif isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta):
            result[-1] = ToolCallDelta(0, last.call, last.arguments + event.arguments)
        elif isinstance(event, TextDelta):
            result.append(TextDelta(0, event.text))
        else:
            result.append(event)
    return result


def characters(text: str) -> list[bytes]:
    return [character.encode() for character in text]


def test_reasoning_text_and_calls_in_order() -> None:
    events, made = events_of(characters(f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"))
    assert joined(events) == [
        ReasoningDelta(0, "Hm."),
        TextDelta(0, "I look."),
        ToolCallStart(0, 0, "call_0", "clock"),
        ToolCallDelta(0, 0, "{}"),
        ToolCallStart(0, 1, "call_1", "clock"),
        ToolCallDelta(0, 1, "{}"),
        Finish(0, "tool_calls"),
    ]
    assert made.reasoning_tokens == len("<think>\nHm.\n</think>")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(EXAMPLES), st.lists(st.integers(1, 7), max_size=60))
def test_any_split_into_tokens_gives_the_same_events(example: Example, sizes: list[int]) -> None:
    """Also one that cuts characters."""
    data = example.raw.encode()
    by_bytes, _ = events_of([data[i : i + 1] for i in range(len(data))], dialect=example.dialect)
    pieces = [piece.encode("latin-1") for piece in cut(data.decode("latin-1"), sizes)]
    for at_once in (False, True):
        events, _ = events_of([piece for piece in pieces if piece], at_once=at_once, dialect=example.dialect)
        assert joined(events) == joined(by_bytes)


def test_deltas_of_one_push_are_joined() -> None:
    events, _ = events_of(characters(f"ab{CALL}"), at_once=True)
    assert [type(event).__name__ for event in events] == [
        "TextDelta",
        "ToolCallStart",
        "ToolCallDelta",
        "Finish",
    ]


def test_the_reason_follows_what_is_there() -> None:
    assert events_of(characters("text"))[0][-1] == Finish(0, "stop")
    assert events_of(characters(CALL), reason="length")[0][-1] == Finish(0, "length")
    assert events_of(characters(f"{CALL} and STOP"), stop=("STOP",))[0][-1] == Finish(0, "tool_calls", "STOP")
    events, _ = events_of(characters(CALL[:-14]), reason="length")
    assert joined(events) == [
        ToolCallStart(0, 0, "call_0", "clock"),
        ToolCallDelta(0, 0, "{}"),
        Finish(0, "length"),
    ]


def test_a_stop_string_is_one_of_the_text_alone() -> None:
    raw = '<think>STOP</think>a ST<tool_call>\n{"name": "get_weather", "arguments": {"city": "STOP"}}\n</tool_call>OP b STOP c'
    events, made = events_of(characters(raw), stop=("STOP",))
    assert joined(events) == [
        ReasoningDelta(0, "STOP"),
        TextDelta(0, "a ST"),
        ToolCallStart(0, 0, "call_0", "get_weather"),
        ToolCallDelta(0, 0, '{"city": "STOP"}'),
        TextDelta(0, "OP b "),
        Finish(0, "tool_calls", "STOP"),
    ]
    assert made.counted_tokens == raw.index("STOP c") + 4


def test_what_is_held_for_a_mark_does_not_move_the_count() -> None:
    """``<to`` may begin a mark, so the stop string is seen one token late; it is counted where it was."""
    made, tokens = assembler([b"a", b"<to", b"ys>", b"more"], stop=("<to",))
    assert made.push(tokens) == [TextDelta(0, "a")]
    assert (made.stopped, made.counted_tokens) == ("<to", 2)


def test_logprobs_are_those_of_the_text() -> None:
    pieces = [
        b"<think>",
        b"hm",
        b"</think>",
        b"\n",
        b"So",
        b" ",
        CALL.encode(),
        b"\n",
        b"it ",
        b"is <",
        b"b>",
    ]
    events, _ = events_of(pieces, logprobs=True)
    entries = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
    assert [entry.data for entry in entries] == [b"So", b"\n", b"it ", b"is <", b"b>"]
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "So\nit is <b>"
    events, _ = events_of([b"plain <", b"b", b"\xf0\x9f"], logprobs=True)
    entries = [entry for event in events if isinstance(event, TextDelta) for entry in event.logprobs]
    assert [entry.data for entry in entries] == [b"plain <", b"b", b"\xf0\x9f"]


def test_control_tokens_that_are_marks() -> None:
    pieces = [b"", b'{"name": "clock", "arguments": {}}', b"", b""]
    made = TextAssembler(
        PieceTokenizer(pieces),  # type: ignore[arg-type]
        index=0,
        stop=(),
        logprobs=False,
        channels=reader_of("hermes"),
        marks={0: "<tool_call>", 2: "</tool_call>"},
        new_id=lambda: "call_x",
    )
    events = [*made.push([GivenToken(i) for i in range(4)]), *made.close("stop")]
    assert events == [
        ToolCallStart(0, 0, "call_x", "clock"),
        ToolCallDelta(0, 0, "{}"),
        Finish(0, "tool_calls"),
    ]


def test_ids_are_made_once_and_differ() -> None:
    tokenizer = PieceTokenizer(characters(f"{CALL}{CALL}"))
    made = TextAssembler(
        tokenizer,  # type: ignore[arg-type]
        index=0,
        stop=(),
        logprobs=False,
        channels=reader_of("hermes"),
    )
    starts = [event for event in made.push(tokenizer.tokens()) if isinstance(event, ToolCallStart)]
    assert len({start.id for start in starts}) == 2
    assert all(len(start.id) == 29 and start.id.startswith("call_") for start in starts)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(EXAMPLES), st.integers(0, 400))
def test_cut_off_in_the_middle_of_a_character(example: Example, end: int) -> None:
    data = example.raw.encode()[:end]
    events, _ = events_of(
        [data[i : i + 1] for i in range(len(data))], dialect=example.dialect, reason="length"
    )
    assert events[-1] == Finish(0, "length")
    assert "\ufffd" not in json.dumps([str(event) for event in events], ensure_ascii=False)
