"""Calls and reasoning on the wire: byte by byte, the same whole and streamed, and as the official client reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from stretto.conversation import (
    Done,
    Event,
    Finish,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    ToolChoice,
    ToolSpec,
    Usage,
)
from stretto.dialects.openai_chat import ChatRenderer

TOOLS = (ToolSpec("f"), ToolSpec("g"))
USAGE = Usage(9, 4, 8, 2)
EVENTS: list[Event] = [
    ReasoningDelta(0, "Hm"),
    ReasoningDelta(0, "…"),
    TextDelta(0, "Let me "),
    TextDelta(0, "look."),
    ToolCallStart(0, 0, "call_1", "f"),
    ToolCallDelta(0, 0, '{"a": "é'),
    ToolCallDelta(0, 0, '"}'),
    ToolCallStart(0, 1, "call_2", "g"),
    ToolCallDelta(0, 1, "{}"),
    Finish(0, "tool_calls"),
    Done(USAGE),
]
ONLY_CALLS = [*EVENTS[4:]]

HEAD = '{"id":"chatcmpl-7","object":"chat.completion.chunk","created":1700000000,"model":"m1","choices":['
CHOICE = '"logprobs":null,"finish_reason":null}]}'
GOLDEN_STREAM = (
    f'data: {HEAD}{{"index":0,"delta":{{"role":"assistant","content":null,"refusal":null}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"reasoning_content":"Hm"}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"reasoning_content":"…"}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"content":"Let me "}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"content":"look."}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"call_1","type":"function","function":{{"name":"f","arguments":""}}}}]}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"tool_calls":[{{"index":0,"function":{{"arguments":"{{\\"a\\": \\"é"}}}}]}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"tool_calls":[{{"index":0,"function":{{"arguments":"\\"}}"}}}}]}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"tool_calls":[{{"index":1,"id":"call_2","type":"function","function":{{"name":"g","arguments":""}}}}]}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"tool_calls":[{{"index":1,"function":{{"arguments":"{{}}"}}}}]}},{CHOICE}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"tool_calls"}}]}}\n\n'
    "data: [DONE]\n\n"
)
GOLDEN_REPLY = (
    '{"id":"chatcmpl-7","object":"chat.completion","created":1700000000,"model":"m1","choices":[{"index":0,"message":'
    '{"role":"assistant","content":"Let me look.","refusal":null,"reasoning_content":"Hm…","tool_calls":['
    '{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\\"a\\": \\"é\\"}"}},'
    '{"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"}],'
    '"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8},'
    '"completion_tokens_details":{"reasoning_tokens":2,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}'
)


def renderer(**more: Any) -> ChatRenderer:
    request = Request(id="chatcmpl-7", model="m", messages=(), **{"tools": TOOLS, **more})
    return ChatRenderer(request, 1700000000, "m1")


def stream(events: list[Event], **more: Any) -> bytes:
    render = renderer(stream=True, **more)
    return render.start(7) + b"".join(map(render.event, events)) + render.end()


def test_a_stream_byte_by_byte() -> None:
    assert stream(EVENTS).decode() == GOLDEN_STREAM


def test_a_reply_byte_by_byte() -> None:
    assert renderer().json(EVENTS).decode() == GOLDEN_REPLY


@pytest.mark.parametrize(
    ("events", "content"),
    [(EVENTS, "Let me look."), (ONLY_CALLS, None), ([Finish(0, "stop"), Done(USAGE)], None)],
)
def test_the_official_client_puts_the_stream_together_to_the_reply(
    events: list[Event], content: str | None
) -> None:
    import httpx2

    def reply(request: object) -> httpx2.Response:
        return httpx2.Response(200, content=stream(events), headers={"content-type": "text/event-stream"})

    whole = ChatCompletion.model_validate_json(renderer().json(events), strict=True)
    with (
        OpenAI(
            api_key="k",
            base_url="http://localhost/v1",
            http_client=httpx2.Client(transport=httpx2.MockTransport(reply)),
        ) as client,
        client.chat.completions.stream(model="m", messages=[{"role": "user", "content": "x"}]) as chunks,
    ):
        streamed = chunks.get_final_completion()
    ours, theirs = whole.choices[0], streamed.choices[0]
    assert ours.message.content == content
    assert theirs.message.content == content
    assert theirs.finish_reason == ours.finish_reason
    assert (theirs.message.tool_calls or []) == [] or [
        (call.id, call.type, call.function.name, call.function.arguments)
        for call in theirs.message.tool_calls or []
    ] == [
        (call.id, call.type, call.function.name, call.function.arguments)
        for call in ours.message.tool_calls or []
        if call.type == "function"
    ]
    assert len(theirs.message.tool_calls or []) == len(ours.message.tool_calls or [])


def test_names_and_ids_come_once() -> None:
    frames = [
        json.loads(line[6:]) for line in stream(EVENTS).decode().splitlines() if line.startswith("data: {")
    ]
    chunks = [ChatCompletionChunk.model_validate(frame, strict=True) for frame in frames]
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
    assert [(call.index, call.id) for call in calls if call.id] == [(0, "call_1"), (1, "call_2")]
    assert [call.function.name for call in calls if call.function and call.function.name] == ["f", "g"]


def test_without_functions_content_is_a_text() -> None:
    events: list[Event] = [ReasoningDelta(0, "a"), Finish(0, "length"), Done(USAGE)]
    for more in ({"tools": ()}, {"tool_choice": ToolChoice("none")}):
        message = json.loads(renderer(**more).json(events))["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "", "refusal": None, "reasoning_content": "a"}
        assert b'"content":""' in renderer(**more).start(1)
