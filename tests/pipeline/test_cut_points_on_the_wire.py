"""Answers that ``max_tokens`` ends anywhere, in every dialect, whole and streamed: nothing torn, nothing lost, every token counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import jiter
import pytest

from stretto.conversation import Event
from support.pipeline_cut import answers_of, pipeline_of
from support.wire_answers import WIRES, Wire, WireAnswer, frames, wire_request

# What the model says, a byte a token.
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
CALLS = '<think>é😀</think>Ok 😀!\n<tool_call>\n{"name": "f", "arguments": {"a": "é😀\\n"}}\n</tool_call>'
STOPPED = "<think>é</think>Hi 😀 STOP gone"
DOCUMENT = '{"a": "é😀\\" x 😀 and on"}'
STOP = "STOP"
CHANNELS = ("chat", "messages", "responses")


def rendered(wire: Wire, limit: int, events: Sequence[Event], **fields: Any) -> WireAnswer:
    """The answer as a client gets it, which is the same whole and streamed."""
    render = wire.dialect.renderer(wire_request(wire, limit, stream=True, **fields), 1, "echo")
    stream = b"".join([render.start(9), *map(render.event, events), render.end()])
    render = wire.dialect.renderer(wire_request(wire, limit, stream=False, **fields), 1, "echo")
    reply = render.json(events)
    for data in (stream, reply):
        text = data.decode()
        assert "\ufffd" not in text
        assert "\\ufffd" not in text
    whole, streamed = wire.whole(json.loads(reply)), wire.streamed(frames(stream))
    if wire is WIRES["messages"]:
        # A reply has the arguments as an object: of a call that was cut off, the members that are whole, as its clients read a stream.
        assert [json.loads(call) for call in whole.calls] == [
            jiter.from_json(call.encode(), partial_mode=True) for call in streamed.calls
        ]
        whole.calls = streamed.calls
    assert whole == streamed
    return whole


async def answers(name: str, says: str, limits: Iterable[int], **fields: Any) -> list[tuple[int, WireAnswer]]:
    """Answers with all these limits, by limit."""
    wire = WIRES[name]
    async with pipeline_of(says, "hermes") as pipeline:
        found = await answers_of(
            pipeline, limits, lambda limit: wire_request(wire, limit, stream=True, **fields)
        )
    return [(limit, rendered(wire, limit, events, **fields)) for limit, events in found.items()]


def decoded(data: bytes) -> str:
    """The text of bytes, without a character that is cut off at the end."""
    return data.decode("utf-8", "ignore")


def parts(data: bytes, limit: int) -> tuple[str, str]:
    """What of an answer's first bytes is reasoning, and what is text or the beginning of a call."""
    said = data[:limit]
    if not data.startswith(b"<think>") or limit < 7:
        return "", decoded(said)
    thought, ended, rest = said[7:].partition(b"</think>")
    if not ended:
        return decoded(thought), ""
    return decoded(thought), decoded(rest)


@pytest.mark.parametrize("name", CHANNELS)
async def test_reasoning_text_and_a_call(name: str) -> None:
    data = CALLS.encode()
    end = data.index(b'{"a"')
    limits = [*range(1, 41), *range(43, len(data), 3), len(data), len(data) + 1, len(data) + 9]
    for limit, answer in await answers(name, CALLS, limits, tools=SCHEMA):
        assert answer.tokens == min(limit, len(data) + 1)
        assert answer.reason == ("tool_calls" if limit > len(data) else "length")
        thought, rest = parts(data, limit)
        assert answer.thought == thought
        if limit <= end:  # not known to be a call yet, so it is text: all of it, once
            assert (answer.text, answer.calls) == (rest, [])
        else:
            assert answer.text == "Ok 😀!"
            assert len(answer.calls) == 1
            arguments = '{"a": "é😀\\n"}'
            assert arguments.startswith(answer.calls[0])
            assert answer.calls[0] == decoded(data[end:limit])[: len(arguments)]


@pytest.mark.parametrize("name", ["chat", "messages", "completions"])
async def test_a_stop_string_over_tokens(name: str) -> None:
    data = STOPPED.encode()
    stop = data.index(STOP.encode())
    for limit, answer in await answers(name, STOPPED, range(1, 41), stop=STOP):
        stopped = limit >= stop + len(STOP)
        cut = stop if stopped else limit
        thought, text = ("", decoded(data[:cut])) if name == "completions" else parts(data, cut)
        # Before the reasoning is known to be over, white space and marks are its own.
        assert (answer.thought, answer.text) == (thought, text)
        assert answer.reason == ("stop" if stopped else "length")
        assert answer.tokens == min(limit, stop + len(STOP))


@pytest.mark.parametrize("name", CHANNELS)
async def test_a_document(name: str) -> None:
    data = DOCUMENT.encode()
    for limit, answer in await answers(name, DOCUMENT, range(1, 41), schema=SCHEMA):
        assert (answer.thought, answer.text, answer.calls) == ("", decoded(data[:limit]), [])
        assert answer.reason == ("stop" if limit > len(data) else "length")
        assert answer.tokens == min(limit, len(data) + 1)
        if answer.reason == "stop":
            assert json.loads(answer.text) == {"a": 'é😀" x 😀 and on'}
