"""Messages and their streams: byte by byte as they are meant, and as the official client's own models read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from anthropic._models import construct_type
from anthropic._streaming import SSEDecoder
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent

from stretto.conversation import (
    Done,
    Event,
    Finish,
    Reasoning,
    ReasoningDelta,
    Request,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from stretto.dialects.anthropic import MESSAGES, MessagesRenderer, error_reply
from stretto.errors import (
    AuthenticationError,
    ContextLengthExceeded,
    EngineError,
    Forbidden,
    InvalidRequest,
    NotFound,
    QueueFull,
    RequestCancelled,
    StrettoError,
    Unavailable,
)

USAGE = Usage(prompt_tokens=40, completion_tokens=6, cached_tokens=16, reasoning_tokens=2, stored_tokens=16)
TEXT: list[Event] = [TextDelta(0, 'Say "hé"'), TextDelta(0, "\n\u2028😀"), Finish(0, "stop"), Done(USAGE)]
CALLS: list[Event] = [
    ReasoningDelta(0, "Let me "),
    ReasoningDelta(0, "see."),
    TextDelta(0, "Looking."),
    ToolCallStart(0, 0, "toolu_1", "look_up"),
    ToolCallDelta(0, 0, '{"q": "a'),
    ToolCallDelta(0, 0, '"}'),
    ToolCallStart(0, 1, "toolu_2", "now"),
    Finish(0, "tool_calls"),
    Done(USAGE),
]
CUT_CALL: list[Event] = [
    ToolCallStart(0, 0, "toolu_1", "look_up"),
    ToolCallDelta(0, 0, '{"q": ["a", "b'),
    Finish(0, "length"),
    Done(Usage(40, 9)),
]
BETWEEN: list[Event] = [
    TextDelta(0, "one"),
    ToolCallStart(0, 0, "toolu_1", "f"),
    ToolCallDelta(0, 0, "{}"),
    TextDelta(0, ""),
    TextDelta(0, "two"),
    ReasoningDelta(0, "hm"),
    TextDelta(0, "three"),
    Finish(0, "tool_calls"),
    Done(USAGE),
]
EMPTY: list[Event] = [Finish(0, "stop"), Done(Usage(40, 1))]


def renderer(**more: Any) -> MessagesRenderer:
    request = Request(id="msg_7", model="asked", messages=(), **{"max_tokens": 9, **more})
    return MessagesRenderer(request, 1700000000, "smollm2")


def stream(events: Sequence[Event], **more: Any) -> bytes:
    render = renderer(stream=True, **more)
    return render.start(40) + b"".join(map(render.event, events)) + render.end()


def whole(events: Sequence[Event], **more: Any) -> Any:
    return json.loads(renderer(**more).json(events))


def read(data: bytes) -> list[Any]:
    """The events as the official client's decoder cuts them; each is named as its type says."""
    found = []
    for event in SSEDecoder().iter_bytes(iter([data])):
        body = json.loads(event.data)
        assert event.event == body["type"]
        found.append(body)
    return found


def accumulated(data: bytes) -> Any:
    """The message that the official client puts together from a stream."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for body in read(data):
        event = construct_type(type_=RawMessageStreamEvent, value=body)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)  # type: ignore[arg-type]
    return snapshot.to_dict()


START = (
    'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_7","type":"message","role":"assistant",'
    '"model":"smollm2","content":[],"stop_reason":null,"stop_sequence":null,"stop_details":null,"usage":{"input_tokens":40,'
    '"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0,'
    '"output_tokens_details":{"thinking_tokens":0},"service_tier":"standard"}}}\n\n'
)
USAGE_JSON = (
    '{"input_tokens":8,"cache_creation_input_tokens":16,"cache_read_input_tokens":16,"output_tokens":6,'
    '"output_tokens_details":{"thinking_tokens":2}}'
)
STOP = 'event: message_stop\ndata: {"type":"message_stop"}\n\n'


def block_start(index: int, block: str) -> str:
    return (
        'event: content_block_start\ndata: {"type":"content_block_start","index":'
        f'{index},"content_block":{block}}}\n\n'
    )


def delta(index: int, text: str) -> str:
    return (
        'event: content_block_delta\ndata: {"type":"content_block_delta","index":'
        f'{index},"delta":{text}}}\n\n'
    )


def block_stop(index: int) -> str:
    return f'event: content_block_stop\ndata: {{"type":"content_block_stop","index":{index}}}\n\n'


def ending(reason: str, stop: str = "null") -> str:
    return (
        'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":'
        f'"{reason}","stop_sequence":{stop},"stop_details":null}},"usage":{USAGE_JSON}}}\n\n'
    )


def test_the_stream_of_a_text() -> None:
    golden = (
        START
        + block_start(0, '{"type":"text","text":""}')
        + delta(0, '{"type":"text_delta","text":"Say \\"hé\\""}')
        + delta(0, '{"type":"text_delta","text":"\\n\\u2028😀"}')
        + block_stop(0)
        + ending("end_turn")
        + STOP
    )
    assert stream(TEXT).decode() == golden


def test_the_stream_of_thinking_and_calls() -> None:
    golden = (
        START
        + block_start(0, '{"type":"thinking","thinking":"","signature":""}')
        + delta(0, '{"type":"thinking_delta","thinking":"Let me "}')
        + delta(0, '{"type":"thinking_delta","thinking":"see."}')
        + delta(0, '{"type":"signature_delta","signature":"Hln5aOTPkhGBvhBDSDAzV9s2N/LBqAz2sbxuhLuViUE="}')
        + block_stop(0)
        + block_start(1, '{"type":"text","text":""}')
        + delta(1, '{"type":"text_delta","text":"Looking."}')
        + block_stop(1)
        + block_start(2, '{"type":"tool_use","id":"toolu_1","name":"look_up","input":{}}')
        + delta(2, '{"type":"input_json_delta","partial_json":"{\\"q\\": \\"a"}')
        + delta(2, '{"type":"input_json_delta","partial_json":"\\"}"}')
        + block_stop(2)
        + block_start(3, '{"type":"tool_use","id":"toolu_2","name":"now","input":{}}')
        + block_stop(3)
        + ending("tool_use")
        + STOP
    )
    assert stream(CALLS).decode() == golden


def test_the_stream_that_fails() -> None:
    render = renderer(stream=True)
    data = render.start(40) + render.event(TextDelta(0, "a"))
    data += render.error(EngineError("The step failed.")) + render.end()
    golden = (
        START
        + block_start(0, '{"type":"text","text":""}')
        + delta(0, '{"type":"text_delta","text":"a"}')
        + 'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"The step failed.",'
        '"code":"engine_error","param":null},"request_id":"msg_7"}\n\n'
    )
    assert data.decode() == golden


def test_the_whole_reply() -> None:
    assert whole(CALLS) == {
        "id": "msg_7",
        "type": "message",
        "role": "assistant",
        "model": "smollm2",
        "content": [
            {
                "type": "thinking",
                "thinking": "Let me see.",
                "signature": "Hln5aOTPkhGBvhBDSDAzV9s2N/LBqAz2sbxuhLuViUE=",
            },
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"q": "a"}},
            {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {**json.loads(USAGE_JSON), "service_tier": "standard"},
    }


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("events", [TEXT, CALLS, CUT_CALL, BETWEEN, EMPTY])
def test_stream_and_whole_agree_field_by_field(events: list[Event], hidden: bool) -> None:
    more = {"reasoning": Reasoning(True, hidden=hidden)}
    reply = whole(events, **more)
    assert accumulated(stream(events, **more)) == reply
    # And the official model finds nothing in it that it does not know.
    parsed = Message.model_validate(reply)
    assert parsed.model_extra == {}
    assert parsed.to_dict(exclude_unset=True) == reply


def test_hidden_thinking_keeps_its_signature() -> None:
    shown = whole(CALLS)["content"][0]
    hidden = whole(CALLS, reasoning=Reasoning(True, hidden=True))["content"][0]
    assert hidden == {**shown, "thinking": ""}
    assert b"Let me" not in stream(CALLS, reasoning=Reasoning(True, hidden=True))


def test_a_call_that_was_cut_off_has_what_was_whole_of_it() -> None:
    reply = whole(CUT_CALL)
    assert reply["stop_reason"] == "max_tokens"
    assert reply["content"] == [
        {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"q": ["a"]}}
    ]


@pytest.mark.parametrize(
    ("finish", "usage", "reason", "stop"),
    [
        (Finish(0, "stop"), USAGE, "end_turn", None),
        (Finish(0, "stop", "END"), USAGE, "stop_sequence", "END"),
        (Finish(0, "length"), Usage(40, 9), "max_tokens", None),
        (Finish(0, "length"), Usage(40, 8), "model_context_window_exceeded", None),
        (Finish(0, "content_filter"), USAGE, "refusal", None),
    ],
)
def test_stop_reasons(finish: Finish, usage: Usage, reason: str, stop: str | None) -> None:
    events: list[Event] = [TextDelta(0, "a"), finish, Done(usage)]
    reply = whole(events)
    assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, stop)
    (last,) = [event for event in read(stream(events)) if event["type"] == "message_delta"]
    assert last["delta"] == {"stop_reason": reason, "stop_sequence": stop, "stop_details": None}


def test_a_named_call_that_ends_with_stop_is_tool_use() -> None:
    call: list[Event] = [ToolCallStart(0, 0, "toolu_1", "f"), Finish(0, "stop"), Done(USAGE)]
    assert whole(call)["stop_reason"] == "tool_use"


def test_an_answer_without_end_is_none() -> None:
    with pytest.raises(ValueError, match="complete"):
        renderer().json(TEXT[:-1])
    with pytest.raises(ValueError, match="complete"):
        renderer().json(TEXT[:2])


def test_the_ping_is_an_event_that_clients_skip() -> None:
    assert read(MESSAGES.ping) == [{"type": "ping"}]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("m", param="p", remedy="r"), 400, "invalid_request_error"),
        (AuthenticationError("m"), 401, "authentication_error"),
        (StrettoError("m", code="x", status=402), 402, "billing_error"),
        (Forbidden("m"), 403, "permission_error"),
        (NotFound("m"), 404, "not_found_error"),
        (StrettoError("m", code="x", status=405), 405, "invalid_request_error"),
        (StrettoError("m", code="x", status=409), 409, "conflict_error"),
        (StrettoError("m", code="x", status=413), 413, "request_too_large"),
        (StrettoError("m", code="x", status=415), 415, "invalid_request_error"),
        (StrettoError("m", code="x", status=422), 422, "invalid_request_error"),
        (QueueFull("m"), 429, "rate_limit_error"),
        (RequestCancelled("m"), 499, "invalid_request_error"),
        (EngineError("m"), 500, "api_error"),
        (Unavailable("m"), 529, "overloaded_error"),
        (StrettoError("m", code="x", status=504), 504, "timeout_error"),
    ],
)
def test_the_error_envelope(error: StrettoError, status: int, kind: str) -> None:
    found, body = error_reply(error, "req-1")
    assert found == status
    remedy = {} if error.remedy is None else {"remedy": error.remedy}
    assert json.loads(body) == {
        "type": "error",
        "error": {"type": kind, "message": "m", "code": error.code, "param": error.param, **remedy},
        "request_id": "req-1",
    }


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_know() -> None:
    too_long = ContextLengthExceeded("m", limit_tokens=100, prompt_tokens=100)
    _, body = error_reply(too_long, "r")
    assert json.loads(body)["error"]["message"] == "prompt is too long: 100 tokens > 99 maximum"
    _, body = error_reply(ContextLengthExceeded("m", limit_tokens=100, prompt_tokens=60), "r")
    assert json.loads(body)["error"]["message"] == "m"
