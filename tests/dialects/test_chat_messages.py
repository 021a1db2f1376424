"""Messages: what is wrong with one is named by its path, and what is right is kept whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stretto.conversation import Message, TextPart, ToolCall
from support.conversation_requests import CALL, CALLING, USER, body, parse, refusal

TOOL: dict[str, Any] = {"role": "tool", "tool_call_id": "c1", "content": "ok"}


def call(**more: Any) -> dict[str, Any]:
    return {**CALLING, "tool_calls": [{**CALL, **more}]}


def with_arguments(text: Any) -> dict[str, Any]:
    return call(function={"name": "f", "arguments": text})


BROKEN: list[tuple[list[Any], str, str]] = [
    (["Hi"], "invalid_message", "messages[0]"),
    ([USER, None], "invalid_message", "messages[1]"),
    ([{"content": "x"}], "invalid_message", "messages[0].role"),
    ([{"role": "function", "content": "x", "name": "f"}], "invalid_message", "messages[0].role"),
    ([{"role": "user"}], "invalid_message", "messages[0].content"),
    ([{"role": "user", "content": None}], "invalid_message", "messages[0].content"),
    ([{"role": "system"}], "invalid_message", "messages[0].content"),
    ([{"role": "user", "content": 7}], "invalid_message", "messages[0].content"),
    ([{"role": "user", "content": {"type": "text"}}], "invalid_message", "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "invalid_message", "messages[0].content[0]"),
    ([{"role": "user", "content": [{"text": "x"}]}], "invalid_message", "messages[0].content[0].type"),
    ([{"role": "user", "content": [{"type": "text"}]}], "invalid_message", "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "invalid_message", "messages[0].content[0].text"),
    (
        [USER, {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]}],
        "unsupported_content",
        "messages[1].content[1].type",
    ),
    ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "unsupported_content", "messages[0].content[0].type"),
    ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], "unsupported_content", "messages[0].content[0].type"),
    ([{"role": "user", "content": "x", "name": 7}], "invalid_message", "messages[0].name"),
    ([{"role": "assistant"}], "invalid_message", "messages[0].content"),
    ([{"role": "assistant", "content": None, "tool_calls": []}], "invalid_message", "messages[0].content"),
    ([{"role": "assistant", "content": "", "tool_calls": {}}], "invalid_message", "messages[0].tool_calls"),
    ([{"role": "assistant", "content": "", "reasoning_content": 7}], "invalid_message", "messages[0].reasoning_content"),
    ([call(id="")], "invalid_message", "messages[0].tool_calls[0].id"),
    ([call(id=7)], "invalid_message", "messages[0].tool_calls[0].id"),
    ([call(type="custom")], "unsupported_value", "messages[0].tool_calls[0].type"),
    ([call(function=None)], "invalid_message", "messages[0].tool_calls[0].function"),
    ([call(function={"arguments": "{}"})], "invalid_message", "messages[0].tool_calls[0].function.name"),
    ([call(function={"name": "", "arguments": "{}"})], "invalid_message", "messages[0].tool_calls[0].function.name"),
    ([call(function={"name": "f"})], "invalid_message", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments({"a": 1})], "invalid_message", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments("{a: 1}")], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments('{"a": truth')], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments('{"a": 1} {')], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments("[1")], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments("[1]")], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments('{"a": NaN}')], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments('{"a": ' + "[" * 99 + "]" * 99 + "}")], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([with_arguments('{"a": "\\ud800"}')], "invalid_tool_arguments", "messages[0].tool_calls[0].function.arguments"),
    ([{**CALLING, "tool_calls": [CALL, CALL]}], "invalid_message", "messages[0].tool_calls[1].id"),
    ([CALLING, USER, CALLING], "invalid_message", "messages[2].tool_calls[0].id"),
    ([TOOL], "invalid_tool_result", "messages[0].tool_call_id"),
    ([CALLING, {**TOOL, "tool_call_id": "c2"}], "invalid_tool_result", "messages[1].tool_call_id"),
    ([CALLING, TOOL, TOOL], "invalid_tool_result", "messages[2].tool_call_id"),
    ([TOOL, CALLING], "invalid_tool_result", "messages[0].tool_call_id"),
    ([CALLING, {"role": "tool", "content": "ok"}], "invalid_message", "messages[1].tool_call_id"),
    ([CALLING, {**TOOL, "tool_call_id": None}], "invalid_message", "messages[1].tool_call_id"),
    ([CALLING, {"role": "tool", "tool_call_id": "c1"}], "invalid_message", "messages[1].content"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "code", "param"), BROKEN)
def test_what_is_wrong_is_named(messages: list[Any], code: str, param: str) -> None:
    error = refusal(body(messages=messages))
    assert (error.code, error.param) == (code, param)
    assert param in error.message


SOUND: list[tuple[list[Any], list[Message]]] = [
    ([USER], [Message("user", (TextPart("Hi"),))]),
    ([{"role": "developer", "content": "Be brief"}], [Message("system", (TextPart("Be brief"),))]),
    ([{"role": "user", "content": ""}], [Message("user", (TextPart(""),))]),
    ([{"role": "user", "content": []}], [Message("user")]),
    (
        [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]}],
        [Message("user", (TextPart("a"), TextPart("b")))],
    ),
    ([{"role": "user", "content": "x", "name": "ann"}], [Message("user", (TextPart("x"),), name="ann")]),
    (
        [USER, {"role": "system", "content": "late"}],
        [Message("user", (TextPart("Hi"),)), Message("system", (TextPart("late"),))],
    ),
    (
        [{"role": "assistant", "content": "x", "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None}],
        [Message("assistant", (TextPart("x"),))],
    ),
    (
        [{"role": "assistant", "content": "x", "reasoning_content": "hm", "name": None}],
        [Message("assistant", (TextPart("x"),), reasoning="hm")],
    ),
    ([{"role": "user", "content": "x", "reasoning_content": "hm"}], [Message("user", (TextPart("x"),))]),
    (
        [CALLING, TOOL],
        [
            Message("assistant", tool_calls=(ToolCall("c1", "f", '{"a": 1}'),)),
            Message("tool", (TextPart("ok"),), tool_call_id="c1"),
        ],
    ),
    # Calls that a limit cut off come back as they were.
    *(
        ([with_arguments(cut)], [Message("assistant", tool_calls=(ToolCall("c1", "f", cut),))])
        for cut in (
            "{", '{"a', '{"a": ', '{"a": tr', '{"a": 1, "b": "é', '{"a": "x\\u00', '{"a": {"b": [1, "x", "y', '{"a": "x\\', '{"a": -',
        )
    ),
    ([with_arguments("")], [Message("assistant", tool_calls=(ToolCall("c1", "f", ""),))]),
    ([with_arguments(' {"b":  2} ')], [Message("assistant", tool_calls=(ToolCall("c1", "f", ' {"b":  2} '),))]),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "parsed"), SOUND)
def test_what_is_right_is_kept(messages: list[Any], parsed: list[Message]) -> None:
    assert list(parse(messages=messages).messages) == parsed


def test_ids_may_come_again_once_answered() -> None:
    messages = parse(messages=[USER, CALLING, TOOL, CALLING, TOOL]).messages
    assert [m.role for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]


def test_results_may_come_in_any_order_and_calls_stay_unanswered() -> None:
    second = {**CALL, "id": "c2"}
    both = {**CALLING, "tool_calls": [CALL, second]}
    parse(messages=[both, {**TOOL, "tool_call_id": "c2"}, TOOL])
    parse(messages=[both, {**TOOL, "tool_call_id": "c2"}, USER])


def test_what_the_client_library_gives_back_can_be_sent_again() -> None:
    """An assistant message as the official client dumps it, with all its nulls."""
    from openai.types.chat import ChatCompletionMessage

    message = ChatCompletionMessage.model_validate({"role": "assistant", "content": "Hi", "refusal": None})
    parse(messages=[USER, message.model_dump(), USER])
    calling = ChatCompletionMessage.model_validate(json.loads(json.dumps(CALLING)))
    parse(messages=[USER, calling.model_dump(), TOOL])
