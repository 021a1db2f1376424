"""An answer with everything in it, cut off at every place: nothing crashes, nothing is lost or torn, and every token is counted."""

from __future__ import annotations

import json
from functools import partial

import pytest

from stretto.backends.echo import EchoTokenizer
from stretto.conversation import (
    Constraint,
    Done,
    Event,
    Finish,
    Message,
    ReasoningDelta,
    Request,
    SamplingParams,
    TextAssembler,
    TextDelta,
    TextPart,
    ToolCallDelta,
    ToolCallStart,
    ToolSpec,
)
from stretto.conversation.channels import ChannelReader
from stretto.conversation.reasoning import choose_reasoning
from stretto.conversation.tool_dialects import TOOL_DIALECTS
from support.conversation_tokens import GivenToken
from support.pipeline_cut import answers_of, pipeline_of

TOOLS = (ToolSpec("look", None, {"type": "object", "properties": {"at": {"type": "string"}}}),)
CALLS = {
    "hermes": '<tool_call>\n{"name": "look", "arguments": {"at": "é😀"}}\n</tool_call>',
    "llama3": '<|python_tag|>{"name": "look", "parameters": {"at": "é😀"}}',
    "mistral": '[TOOL_CALLS][{"name": "look", "arguments": {"at": "é😀"}}]',
    "mistral-args": '[TOOL_CALLS]look[ARGS]{"at": "é😀"}',
    "gemma4": '<|tool_call>call:look{at:<|"|>é😀<|"|>}<tool_call|>',
    "qwen3-coder": "<tool_call>\n<function=look>\n<parameter=at>\né😀\n</parameter>\n</function>\n</tool_call>",
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{"at": "é😀"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek-v31": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": "é😀"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "json": '<tool_call>\n{"name": "look", "arguments": {"at": "é😀"}}\n</tool_call>',
}


def asked(limit: int, **more: object) -> Request:
    return Request(
        str(limit),
        "echo",
        (Message("user", (TextPart("Go."),)),),
        sampling=SamplingParams(temperature=0),
        max_tokens=limit,
        **more,  # type: ignore[arg-type]
    )


def parts(events: list[Event]) -> tuple[str, str, list[str]]:
    """Reasoning, text, and the arguments of the calls."""
    thought = text = ""
    calls: list[str] = []
    for event in events:
        if isinstance(event, ReasoningDelta):
            thought += event.text
        elif isinstance(event, TextDelta):
            text += event.text
        elif isinstance(event, ToolCallStart):
            calls.append("")
        elif isinstance(event, ToolCallDelta):
            calls[event.call] += event.arguments
    return thought, text, calls


def ending(events: list[Event]) -> tuple[str, int, int]:
    """The reason, and the tokens of all and of the reasoning."""
    finish, done = events[-2:]
    assert isinstance(finish, Finish)
    assert isinstance(done, Done)
    return finish.reason, done.usage.completion_tokens, done.usage.reasoning_tokens


def whole(data: bytes) -> str:
    """The text of bytes, without a character that is cut off at the end."""
    return data.decode("utf-8", "ignore")


def check(
    found: tuple[str, str, list[str]], full: tuple[str, str, list[str]], data: bytes, limit: int
) -> None:
    """What an answer of so many bytes has, by what the whole one has."""
    thought, text, calls = found
    assert "\ufffd" not in thought + text + "".join(calls)
    end = data.index(b"</think>") + 8
    if limit < end:
        begun = whole(data[:limit])
        assert thought == (begun.removeprefix("<think>") if limit >= 7 else "")
        assert text == ("" if limit >= 7 else begun)
        return
    assert thought == full[0]
    if calls:
        assert full[2][0].startswith(calls[0])
        assert text == full[1]
    else:
        # Not known to be a call yet, so it is text: all of it, once.
        assert text == whole(data[end:limit]).lstrip()


@pytest.mark.parametrize("dialect", sorted(CALLS))
def test_every_dialect_cut_off_after_every_byte(dialect: str) -> None:
    assert set(CALLS) == set(TOOL_DIALECTS)
    data = f"<think>Hm 😀</think>\n\nOk é.\n{CALLS[dialect]}".encode()
    tokenizer = EchoTokenizer()

    def events_of(limit: int) -> list[Event]:
        reader = ChannelReader(
            reasoning=choose_reasoning("</think>"), dialect=TOOL_DIALECTS[dialect], tools=TOOLS
        )
        made = TextAssembler(tokenizer, index=0, stop=(), logprobs=False, channels=reader)
        events = [event for byte in data[:limit] for event in made.push([GivenToken(byte)])]
        return [*events, *made.close("length")]

    full = parts(events_of(len(data)))
    assert (full[0], full[1], json.loads(full[2][0])) == ("Hm 😀", "Ok é.", {"at": "é😀"})
    for limit in range(1, len(data) + 1):
        check(parts(events_of(limit)), full, data, limit)


async def test_reasoning_emoji_and_a_call_over_the_engine() -> None:
    says = f"<think>Hm 😀</think>\n\nOk é.\n{CALLS['hermes']}"
    data = says.encode()
    limits = [*range(1, 41), *range(44, len(data), 6), len(data), len(data) + 1]
    async with pipeline_of(says, "hermes") as pipeline:
        answers = await answers_of(pipeline, limits, partial(asked, tools=TOOLS))
        full = parts(answers[len(data) + 1])
        for limit, events in answers.items():
            check(parts(events), full, data, min(limit, len(data)))
            reason, tokens, reasoning = ending(events)
            assert tokens == limit
            assert reason == ("tool_calls" if limit > len(data) else "length")
            end = data.index(b"</think>") + 8
            assert reasoning == (min(limit, end) if limit >= 7 else 0)


async def test_json_and_a_stop_string_over_tokens() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = Constraint("json_schema", json.dumps(schema), "response_format")
    says = '{"a": "é😀 STOP it \\" on"}'
    data = says.encode()
    async with pipeline_of(says, "auto") as pipeline:
        for limit, events in (
            await answers_of(pipeline, range(1, 41), partial(asked, constraint=form))
        ).items():
            reason, tokens, _ = ending(events)
            assert parts(events)[1] == whole(data[:limit])
            assert tokens == min(limit, len(data) + 1)
            assert reason == ("stop" if limit > len(data) else "length")
        answers = await answers_of(pipeline, range(1, 41), partial(asked, constraint=form, stop=("STOP",)))
        for limit, stopped in answers.items():
            reason, tokens, _ = ending(stopped)
            stop = data.index(b"STOP")
            assert parts(stopped)[1] == whole(data[: min(limit, stop if limit >= stop + 4 else limit)])
            assert tokens == min(limit, stop + 4)
            assert reason == ("stop" if limit >= stop + 4 else "length")


async def test_a_stop_string_that_may_begin_a_mark() -> None:
    says = "One <tool <tool_box> two"
    async with pipeline_of(says, "hermes") as pipeline:
        answers = await answers_of(
            pipeline, range(1, len(says) + 2), partial(asked, tools=TOOLS, stop=("<tool_b",))
        )
        for limit, events in answers.items():
            reason, tokens, _ = ending(events)
            end = says.index("<tool_b") + 7
            assert parts(events)[1] == (says[: end - 7] if limit >= end else says[:limit])
            assert tokens == min(limit, end)
            assert reason == ("stop" if limit >= end else "length")
