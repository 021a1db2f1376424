"""Responses and their streams: byte by byte as they are meant, and as the official client's own models read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx2
import pytest
from openai import OpenAI
from openai._streaming import SSEDecoder
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from stretto.conversation import (
    Done,
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    Request,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    TopLogprob,
    Usage,
)
from stretto.dialects.openai_responses import ResponsesRenderer, error_reply, parse_responses
from stretto.errors import EngineError, InvalidRequest, QueueFull, RequestCancelled

STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
USAGE = Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=8, reasoning_tokens=2, stored_tokens=1)
FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}  # fmt: skip
TEXT: list[Event] = [TextDelta(0, 'Say "hé"'), TextDelta(0, "\n\u2028😀"), Finish(0, "stop"), Done(USAGE)]
ALL: list[Event] = [
    ReasoningDelta(0, "Hm"),
    ReasoningDelta(0, "."),
    TextDelta(0, "I look."),
    ToolCallStart(0, 0, "call_1", "f"),
    ToolCallDelta(0, 0, '{"a":'),
    ToolCallDelta(0, 0, "1}"),
    ToolCallStart(0, 1, "call_2", "f"),
    ToolCallDelta(0, 1, "{}"),
    Finish(0, "tool_calls"),
    Done(USAGE),
]
LOGPROBS: list[Event] = [
    TextDelta(0, "a", (TokenLogprob("a", -0.25, b"a", (TopLogprob("b", -0.5, b"b"), TopLogprob("<eos>", -2.0, b""))),)),
    TextDelta(0, "😀", (TokenLogprob("\ufffd", -1.0, b"\xf0\x9f"), TokenLogprob("\ufffd", -0.5, b"\x98\x80"))),
    Finish(0, "stop"),
    Done(USAGE),
]  # fmt: skip


def renderer(**fields: Any) -> ResponsesRenderer:
    body = json.dumps({"model": "asked", "input": "Hi", **fields}).encode()
    return ResponsesRenderer(parse_responses(body, request_id="resp_7"), 1700000000, "smollm2")


def stream(events: Iterable[Event], **fields: Any) -> bytes:
    render = renderer(stream=True, **fields)
    return render.start(9) + b"".join(map(render.event, events)) + render.end()


def events_of(data: bytes) -> list[Any]:
    """The stream's events as the official client's own decoder cuts it, checked against its own types."""
    found = []
    for number, frame in enumerate(SSEDecoder().iter_bytes(iter([data]))):
        document = json.loads(frame.data)
        assert frame.event == document["type"]
        assert document["sequence_number"] == number
        STREAM_EVENT.validate_python(document, strict=True)
        found.append(document)
    return found


def item_events(data: bytes) -> list[Any]:
    """Those between the first two and the last, without their numbers."""
    events = events_of(data)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    return [
        {key: value for key, value in event.items() if key != "sequence_number"} for event in events[2:-1]
    ]


FIELDS = (
    '"instructions":null,"max_output_tokens":null,"metadata":{},"parallel_tool_calls":true,"previous_response_id":null,'
    '"reasoning":{"effort":null,"summary":null},"store":false,"temperature":1.0,"text":{"format":{"type":"text"}},'
    '"tool_choice":"auto","tools":[],"top_logprobs":0,"top_p":1.0,"truncation":"disabled","user":null'
)
USAGE_JSON = (
    '{"input_tokens":9,"input_tokens_details":{"cached_tokens":8,"cache_write_tokens":1},"output_tokens":4,'
    '"output_tokens_details":{"reasoning_tokens":2},"total_tokens":13}'
)


def response(status: str, output: str = "", usage: str = "null", why: str = "null", error: str = "null") -> str:  # fmt: skip
    return (
        f'{{"id":"resp_7","object":"response","created_at":1700000000,"status":"{status}","background":false,"error":{error},'
        f'"incomplete_details":{why},"model":"smollm2","output":[{output}],{FIELDS},"usage":{usage}}}'
    )


def framed(*events: tuple[str, str]) -> str:
    return "".join(
        f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{number},{rest}}}\n\n'
        for number, (kind, rest) in enumerate(events)
    )


SAID = 'Say \\"hé\\"\\n\\u2028😀'
PART = '{"type":"output_text","text":"%s","annotations":[],"logprobs":[]}'
MESSAGE = '{"type":"message","id":"msg_700","status":"%s","role":"assistant","content":[%s]}'
PLACE = '"item_id":"msg_700","output_index":0,"content_index":0'


def test_a_stream_byte_by_byte() -> None:
    done = MESSAGE % ("completed", PART % SAID)
    assert stream(TEXT).decode() == framed(
        ("response.created", f'"response":{response("in_progress")}'),
        ("response.in_progress", f'"response":{response("in_progress")}'),
        ("response.output_item.added", f'"output_index":0,"item":{MESSAGE % ("in_progress", "")}'),
        ("response.content_part.added", f'{PLACE},"part":{PART % ""}'),
        ("response.output_text.delta", f'{PLACE},"delta":"Say \\"hé\\"","logprobs":[]'),
        ("response.output_text.delta", f'{PLACE},"delta":"\\n\\u2028😀","logprobs":[]'),
        ("response.output_text.done", f'{PLACE},"text":"{SAID}","logprobs":[]'),
        ("response.content_part.done", f'{PLACE},"part":{PART % SAID}'),
        ("response.output_item.done", f'"output_index":0,"item":{done}'),
        ("response.completed", f'"response":{response("completed", done, USAGE_JSON)}'),
    )


def test_a_reply_byte_by_byte() -> None:
    output = MESSAGE % ("completed", PART % SAID)
    assert renderer().json(TEXT).decode() == response("completed", output, USAGE_JSON)


def test_reasoning_text_and_calls_one_after_the_other() -> None:
    reasoning = {"type": "reasoning", "id": "rs_700", "summary": [], "content": [], "status": "in_progress"}
    thought = {"type": "reasoning_text", "text": "Hm."}
    message = {"type": "message", "id": "msg_701", "status": "in_progress", "role": "assistant", "content": []}  # fmt: skip
    said = {"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}
    call = {"type": "function_call", "id": "fc_702", "call_id": "call_1", "name": "f", "arguments": "", "status": "in_progress"}  # fmt: skip
    second = {**call, "id": "fc_703", "call_id": "call_2"}
    rs = {"item_id": "rs_700", "output_index": 0}
    msg = {"item_id": "msg_701", "output_index": 1, "content_index": 0}
    fc, fd = {"item_id": "fc_702", "output_index": 2}, {"item_id": "fc_703", "output_index": 3}
    assert item_events(stream(ALL, tools=[FUNCTION])) == [
        {"type": "response.output_item.added", "output_index": 0, "item": reasoning},
        {"type": "response.content_part.added", **rs, "content_index": 0, "part": {"type": "reasoning_text", "text": ""}},
        {"type": "response.reasoning_text.delta", **rs, "content_index": 0, "delta": "Hm"},
        {"type": "response.reasoning_text.delta", **rs, "content_index": 0, "delta": "."},
        {"type": "response.reasoning_text.done", **rs, "content_index": 0, "text": "Hm."},
        {"type": "response.content_part.done", **rs, "content_index": 0, "part": thought},
        {"type": "response.output_item.done", "output_index": 0, "item": {**reasoning, "content": [thought], "status": "completed"}},
        {"type": "response.output_item.added", "output_index": 1, "item": message},
        {"type": "response.content_part.added", **msg, "part": {**said, "text": ""}},
        {"type": "response.output_text.delta", **msg, "delta": "I look.", "logprobs": []},
        {"type": "response.output_text.done", **msg, "text": "I look.", "logprobs": []},
        {"type": "response.content_part.done", **msg, "part": said},
        {"type": "response.output_item.done", "output_index": 1, "item": {**message, "content": [said], "status": "completed"}},
        {"type": "response.output_item.added", "output_index": 2, "item": call},
        {"type": "response.function_call_arguments.delta", **fc, "delta": '{"a":'},
        {"type": "response.function_call_arguments.delta", **fc, "delta": "1}"},
        {"type": "response.function_call_arguments.done", **fc, "name": "f", "arguments": '{"a":1}'},
        {"type": "response.output_item.done", "output_index": 2, "item": {**call, "arguments": '{"a":1}', "status": "completed"}},
        {"type": "response.output_item.added", "output_index": 3, "item": second},
        {"type": "response.function_call_arguments.delta", **fd, "delta": "{}"},
        {"type": "response.function_call_arguments.done", **fd, "name": "f", "arguments": "{}"},
        {"type": "response.output_item.done", "output_index": 3, "item": {**second, "arguments": "{}", "status": "completed"}},
    ]  # fmt: skip


def test_reasoning_as_a_summary() -> None:
    item = {"type": "reasoning", "id": "rs_700", "summary": [], "content": [], "status": "in_progress"}
    at = {"item_id": "rs_700", "output_index": 0, "summary_index": 0}
    part = {"type": "summary_text", "text": "Hm."}
    events = item_events(stream(ALL[:2] + ALL[-2:], reasoning={"summary": "auto"}))
    assert events == [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.reasoning_summary_part.added", **at, "part": {"type": "summary_text", "text": ""}},
        {"type": "response.reasoning_summary_text.delta", **at, "delta": "Hm"},
        {"type": "response.reasoning_summary_text.delta", **at, "delta": "."},
        {"type": "response.reasoning_summary_text.done", **at, "text": "Hm."},
        {"type": "response.reasoning_summary_part.done", **at, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": {**item, "summary": [part], "status": "completed"}},
    ]  # fmt: skip


def test_sealed_reasoning_comes_back_as_it_was() -> None:
    reply = json.loads(renderer(include=["reasoning.encrypted_content"]).json(ALL))
    reasoning, message = reply["output"][:2]
    assert "Hm" not in reasoning["encrypted_content"]
    del reasoning["content"]  # as clients do that keep nothing but what they are told to
    body = json.dumps({"model": "m", "input": [reasoning, message]}).encode()
    (read,) = parse_responses(body, request_id="resp_8").messages
    assert (read.reasoning, read.text) == ("Hm.", "I look.")


def test_an_output_can_be_sent_back_as_input() -> None:
    reply = json.loads(renderer(tools=[FUNCTION]).json(ALL))
    body = json.dumps({"model": "m", "input": reply["output"], "tools": reply["tools"]}).encode()
    (read,) = parse_responses(body, request_id="resp_8").messages
    assert (read.reasoning, read.text) == ("Hm.", "I look.")
    assert [(call.id, call.name, call.arguments) for call in read.tool_calls] == [
        ("call_1", "f", '{"a":1}'),
        ("call_2", "f", "{}"),
    ]


def test_a_function_of_a_namespace_is_called_by_its_name_on_the_wire() -> None:
    tools = [{"type": "namespace", "name": "n", "description": "", "tools": [FUNCTION]}, FUNCTION]
    events = [ToolCallStart(0, 0, "c", "n__f"), ToolCallStart(0, 1, "d", "f"), Finish(0, "tool_calls"), Done(USAGE)]  # fmt: skip
    output = json.loads(renderer(tools=tools).json(events))["output"]
    assert [(item["name"], item.get("namespace")) for item in output] == [("f", "n"), ("f", None)]


@pytest.mark.parametrize(
    ("events", "reason", "status", "why", "items"),
    [
        (ALL[:1], "length", "incomplete", "max_output_tokens", [("reasoning", "incomplete")]),
        (ALL[2:3], "length", "incomplete", "max_output_tokens", [("message", "incomplete")]),
        (ALL[3:5], "length", "incomplete", "max_output_tokens", [("function_call", "incomplete")]),
        (ALL[2:7], "length", "incomplete", "max_output_tokens", [("message", "completed"), ("function_call", "completed"), ("function_call", "incomplete")]),
        (ALL[2:3], "content_filter", "incomplete", "content_filter", [("message", "incomplete")]),
        ([], "stop", "completed", None, [("message", "completed")]),
        ([], "length", "incomplete", "max_output_tokens", [("message", "incomplete")]),
    ],
)  # fmt: skip
def test_ends(
    events: list[Event], reason: FinishReason, status: str, why: str | None, items: list[tuple[str, str]]
) -> None:
    ended = [*events, Finish(0, reason), Done(USAGE)]
    reply = json.loads(renderer(tools=[FUNCTION]).json(ended))
    assert reply["status"] == status
    assert reply["incomplete_details"] == (why and {"reason": why})
    assert [(item["type"], item["status"]) for item in reply["output"]] == items
    last = events_of(stream(ended, tools=[FUNCTION]))[-1]
    assert last["type"] == f"response.{status}"
    assert last["response"] == reply


@pytest.mark.parametrize("fields", [{}, {"reasoning": {"summary": "detailed"}}, {"include": ["reasoning.encrypted_content"]}, {"metadata": {"a": "b"}, "instructions": "x", "text": {"format": {"type": "json_schema", "schema": {}}}}])  # fmt: skip
@pytest.mark.parametrize("events", [TEXT, ALL])
def test_both_forms_say_the_same(events: list[Event], fields: dict[str, Any]) -> None:
    reply = json.loads(renderer(tools=[FUNCTION], **fields).json(events))
    read = Response.model_validate(reply, strict=True)
    extra = [model.model_extra for model in (read, read.usage, *read.output) if model and model.model_extra]
    assert extra == [{"store": False}]  # which the API's own responses have, too
    streamed = events_of(stream(events, tools=[FUNCTION], **fields))
    assert streamed[-1]["response"] == reply
    assert [event["item"] for event in streamed if event["type"] == "response.output_item.done"] == reply["output"]  # fmt: skip


def test_what_was_asked_is_said_again() -> None:
    fields: dict[str, Any] = {
        "instructions": "Be brief.", "max_output_tokens": 7, "metadata": {"a": "b"}, "parallel_tool_calls": False,
        "reasoning": {"effort": "low", "summary": "auto"}, "temperature": 0.5, "tool_choice": "required", "tools": [FUNCTION],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}, "top_p": 0.5,
        "top_logprobs": 2, "truncation": "disabled", "user": "u",
    }  # fmt: skip
    reply = json.loads(renderer(**fields).json(TEXT))
    assert {name: reply[name] for name in fields} == fields


def test_log_probabilities() -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = json.loads(renderer(**fields).json(LOGPROBS))["output"][0]["content"][0]["logprobs"]
    assert whole == [
        {"token": "a", "bytes": [97], "logprob": -0.25, "top_logprobs": [
            {"token": "b", "bytes": [98], "logprob": -0.5}, {"token": "<eos>", "bytes": [], "logprob": -2.0}]},
        {"token": "\ufffd", "bytes": [0xF0, 0x9F], "logprob": -1.0, "top_logprobs": []},
        {"token": "\ufffd", "bytes": [0x98, 0x80], "logprob": -0.5, "top_logprobs": []},
    ]  # fmt: skip
    events = events_of(stream(LOGPROBS, **fields))
    deltas = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]  # fmt: skip
    (done,) = [event["logprobs"] for event in events if event["type"].endswith("text.done")]
    assert deltas == done
    assert [(entry["token"], entry["logprob"]) for entry in deltas] == [("a", -0.25), ("\ufffd", -1.0), ("\ufffd", -0.5)]  # fmt: skip
    assert deltas[0]["top_logprobs"] == [{"token": "b", "logprob": -0.5}, {"token": "<eos>", "logprob": -2.0}]


def test_an_error_in_a_stream_byte_by_byte() -> None:
    render = renderer()
    render.start(9)
    render.event(TEXT[0])
    cut = 'Say \\"hé\\"'
    item = MESSAGE % ("incomplete", PART % cut)
    failed = response("failed", item, error='{"code":"server_error","message":"It failed. Try again."}')
    wanted = framed(
        *[("", "")] * 5,
        ("response.output_text.done", f'{PLACE},"text":"{cut}","logprobs":[]'),
        ("response.content_part.done", f'{PLACE},"part":{PART % cut}'),
        ("response.output_item.done", f'"output_index":0,"item":{item}'),
        ("error", '"code":"engine_error","message":"It failed. Try again.","param":null'),
        ("response.failed", f'"response":{failed}'),
    )
    data = render.error(EngineError("It failed.", remedy="Try again.")) + render.end()
    assert data.decode() == wanted[wanted.index("event: response.output_text.done") :]


@pytest.mark.parametrize(
    ("error", "code"),
    [(EngineError("x"), "server_error"), (QueueFull("x"), "rate_limit_exceeded"), (RequestCancelled("x"), "invalid_prompt")],
)  # fmt: skip
def test_failures_in_the_api_s_own_words(error: Any, code: str) -> None:
    render = renderer()
    *_, failed = events_of(render.start(9) + render.error(error))
    assert failed["response"]["error"] == {"code": code, "message": "x"}
    assert failed["response"]["output"] == []


@pytest.mark.parametrize(
    ("error", "param"),
    [
        (InvalidRequest("x", param="messages"), "input"),
        (InvalidRequest("x", param="max_tokens"), "max_output_tokens"),
        (InvalidRequest("x", param="text.format"), "text.format"),
        (InvalidRequest("x", param="messages", code="unknown_parameter"), "messages"),
        (EngineError("x"), None),
    ],
)
def test_error_replies_name_the_fields_of_this_dialect(error: Any, param: str | None) -> None:
    status, body = error_reply(error, "resp_1")
    assert status == error.status
    assert json.loads(body)["error"]["param"] == param


def client_of(data: bytes) -> OpenAI:
    def reply(request: object) -> httpx2.Response:
        return httpx2.Response(200, content=data, headers={"content-type": "text/event-stream"})

    return OpenAI(
        api_key="k", base_url="http://localhost/v1", http_client=httpx2.Client(transport=httpx2.MockTransport(reply))
    )  # fmt: skip


@pytest.mark.parametrize("events", [TEXT, ALL])
def test_the_official_client_puts_the_stream_together(events: list[Event]) -> None:
    with client_of(stream(events)) as client, client.responses.stream(model="m", input="x") as streamed:
        seen = [event.type for event in streamed]
        final = streamed.get_final_response()
    assert seen[-1] == "response.completed"
    whole = Response.model_validate_json(renderer().json(events))
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]


def test_the_official_client_hears_of_an_error_and_of_the_failure() -> None:
    render = renderer()
    data = render.start(9) + render.event(TEXT[0]) + render.error(EngineError("It failed.")) + render.end()
    with client_of(data) as client:
        events = list(client.responses.create(model="m", input="x", stream=True))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.message == "It failed."


def test_an_answer_that_is_not_complete_is_not_rendered() -> None:
    for events in ([Finish(0, "stop")], [Done(USAGE)], []):
        with pytest.raises(ValueError, match="complete"):
            renderer().json(events)
    with pytest.raises(ValueError, match="before its start"):
        renderer().event(ToolCallDelta(0, 0, "{}"))


def test_a_request_of_another_dialect_cannot_be_rendered() -> None:
    with pytest.raises(TypeError, match="this dialect"):
        ResponsesRenderer(Request(id="resp_1", model="m", messages=()), 1, "m")
