"""Replies and streams: byte by byte as they are meant, and as the official client's own models read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from openai import APIError
from openai._streaming import SSEDecoder
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from stretto.conversation import (
    Done,
    Event,
    Finish,
    Request,
    TextDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from stretto.dialects.openai_chat import ChatRenderer, error_body
from stretto.errors import (
    AuthenticationError,
    EngineError,
    InvalidRequest,
    QueueFull,
    StrettoError,
    Unavailable,
)

USAGE = Usage(prompt_tokens=9, completion_tokens=4, cached_tokens=8, reasoning_tokens=0)
EVENTS: list[Event] = [
    TextDelta(0, 'Say "hé"'),
    TextDelta(0, "\n\u2028😀"),
    Finish(0, "stop", "END"),
    Done(USAGE),
]
LOGPROB_EVENTS: list[Event] = [
    TextDelta(
        0,
        "a😀",
        (
            TokenLogprob("a", -0.25, b"a", (TopLogprob("a", -0.25, b"a"), TopLogprob("<eos>", -2.0, b""))),
            TokenLogprob("\ufffd", -1.0, b"\xf0\x9f"),
            TokenLogprob("\ufffd", -0.5, b"\x98\x80"),
        ),
    ),
    TextDelta(0, "", (TokenLogprob("\ufffd", -9999.0, b"\xc3"),)),
    Finish(0, "length"),
    Done(USAGE),
]


def renderer(**more: Any) -> ChatRenderer:
    return ChatRenderer(Request(id="chatcmpl-7", model="asked", messages=(), **more), 1700000000, "smollm2")


def stream(events: Iterable[Event], **more: Any) -> bytes:
    render = renderer(stream=True, **more)
    return render.start(7) + b"".join(map(render.event, events)) + render.end()


def frames(data: bytes) -> list[Any]:
    """The stream's data as the official client's own decoder cuts it; it must end with [DONE]."""
    found = [event.data for event in SSEDecoder().iter_bytes(iter([data]))]
    assert found[-1] == "[DONE]"
    return [json.loads(text) for text in found[:-1]]


HEAD = (
    '{"id":"chatcmpl-7","object":"chat.completion.chunk","created":1700000000,"model":"smollm2","choices":['
)
USAGE_JSON = (
    '{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{"cached_tokens":8},'
    '"completion_tokens_details":{"reasoning_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}'
)
GOLDEN_STREAM = (
    f'data: {HEAD}{{"index":0,"delta":{{"role":"assistant","content":"","refusal":null}},"logprobs":null,"finish_reason":null}}]}}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"content":"Say \\"hé\\""}},"logprobs":null,"finish_reason":null}}]}}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{"content":"\\n\\u2028😀"}},"logprobs":null,"finish_reason":null}}]}}\n\n'
    f'data: {HEAD}{{"index":0,"delta":{{}},"logprobs":null,"finish_reason":"stop"}}]}}\n\n'
    "data: [DONE]\n\n"
)
GOLDEN_REPLY = (
    '{"id":"chatcmpl-7","object":"chat.completion","created":1700000000,"model":"smollm2","choices":[{"index":0,"message":'
    '{"role":"assistant","content":"Say \\"hé\\"\\n\\u2028😀","refusal":null},"logprobs":null,"finish_reason":"stop"}],'
    f'"usage":{USAGE_JSON}}}'
)


def test_a_stream_byte_by_byte() -> None:
    assert stream(EVENTS).decode() == GOLDEN_STREAM


def test_a_stream_with_usage_byte_by_byte() -> None:
    expected = GOLDEN_STREAM.replace("]}\n\n", '],"usage":null}\n\n').replace(
        "data: [DONE]", f'data: {HEAD}],"usage":{USAGE_JSON}}}\n\ndata: [DONE]'
    )
    assert stream(EVENTS, include_usage=True).decode() == expected


def test_a_reply_byte_by_byte() -> None:
    assert renderer().json(EVENTS).decode() == GOLDEN_REPLY


@pytest.mark.parametrize("usage", [False, True])
def test_the_official_client_reads_every_chunk(usage: bool) -> None:
    chunks = [
        ChatCompletionChunk.model_validate(frame, strict=True)
        for frame in frames(stream(EVENTS, include_usage=usage))
    ]
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == 'Say "hé"\n\u2028😀'
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert [reason for reason in reasons if reason] == ["stop"]
    if usage:
        last = chunks[-1]
        assert last.choices == []
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (9, 4, 13)
        assert last.usage.prompt_tokens_details is not None
        assert last.usage.prompt_tokens_details.cached_tokens == 8
        assert all(chunk.usage is None for chunk in chunks[:-1])
    else:
        assert all(chunk.usage is None for chunk in chunks)


def test_the_official_client_reads_the_reply() -> None:
    reply = ChatCompletion.model_validate_json(renderer().json(EVENTS), strict=True)
    assert reply.id == "chatcmpl-7"
    assert reply.choices[0].message.content == 'Say "hé"\n\u2028😀'
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == 13
    # Nothing in it that the client has no name for.
    assert not any(
        model.model_extra for model in (reply, reply.choices[0], reply.choices[0].message, reply.usage)
    )


def test_no_line_of_a_stream_can_be_cut_wrongly() -> None:
    """Some clients split lines as Unicode does, at U+0085, U+2028 and U+2029 too."""
    data = stream([TextDelta(0, "a\u0085b\u2028c\u2029d\x0be\rf"), Finish(0, "stop"), Done(USAGE)]).decode()
    assert data.splitlines() == data.split("\n")[:-1]
    assert frames(data.encode())[1]["choices"][0]["delta"]["content"] == "a\u0085b\u2028c\u2029d\x0be\rf"


def test_logprobs_byte_by_byte() -> None:
    frame = renderer(logprobs=2).event(LOGPROB_EVENTS[1]).decode()
    assert frame == (
        f'data: {HEAD}{{"index":0,"delta":{{"content":""}},"logprobs":{{"content":[{{"token":"\ufffd","logprob":-9999.0,'
        '"bytes":[195],"top_logprobs":[]}],"refusal":null},"finish_reason":null}]}\n\n'
    )


def test_logprobs_are_the_same_in_both_forms() -> None:
    reply = ChatCompletion.model_validate_json(renderer(logprobs=2).json(LOGPROB_EVENTS), strict=True)
    chunks = [ChatCompletionChunk.model_validate(frame, strict=True) for frame in frames(stream(LOGPROB_EVENTS, logprobs=2))]  # fmt: skip
    whole = reply.choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    parts = [
        entry for chunk in chunks for lp in [chunk.choices[0].logprobs] if lp for entry in lp.content or ()
    ]
    assert parts == whole.content
    assert bytes(byte for entry in parts for byte in entry.bytes or ()) == "a😀".encode() + b"\xc3"
    assert whole.content[0].top_logprobs[1].token == "<eos>"
    assert whole.content[0].top_logprobs[1].bytes is None


def test_no_logprobs_unless_asked_for() -> None:
    assert ChatCompletion.model_validate_json(renderer().json(LOGPROB_EVENTS)).choices[0].logprobs is None
    assert all(frame["choices"][0]["logprobs"] is None for frame in frames(stream(LOGPROB_EVENTS)))


def test_choices_are_kept_apart() -> None:
    events: list[Event] = [
        TextDelta(1, "B"),
        TextDelta(0, "A"),
        Finish(1, "length"),
        TextDelta(0, "a"),
        Finish(0, "stop"),
        Done(USAGE),
    ]
    reply = ChatCompletion.model_validate_json(renderer(n=2).json(events), strict=True)
    assert [(c.index, c.message.content, c.finish_reason) for c in reply.choices] == [(0, "Aa", "stop"), (1, "B", "length")]  # fmt: skip
    chunks = [ChatCompletionChunk.model_validate(frame, strict=True) for frame in frames(stream(events, n=2))]
    assert [chunk.choices[0].index for chunk in chunks] == [0, 1, 1, 0, 1, 0, 0]
    assert all(chunk.choices[0].delta.role == "assistant" for chunk in chunks[:2])


def test_an_answer_that_is_not_complete_is_not_rendered() -> None:
    for events in ([Finish(0, "stop")], [Done(USAGE)], []):
        with pytest.raises(ValueError, match="complete"):
            renderer().json(events)


def test_ids_and_models_are_escaped() -> None:
    render = ChatRenderer(Request(id='"1', model="", messages=()), 1, 'a"\u2028b')
    frame = json.loads(render.start(7).decode().removeprefix("data: "))
    assert (frame["id"], frame["model"]) == ('"1', 'a"\u2028b')


ERRORS: list[tuple[StrettoError, dict[str, Any]]] = [
    (
        InvalidRequest("'n' is 0.", param="n", remedy="Ask for one."),
        {"message": "'n' is 0.", "type": "invalid_request_error", "param": "n", "code": "invalid_value", "remedy": "Ask for one."},
    ),
    (AuthenticationError("No key."), {"message": "No key.", "type": "authentication_error", "param": None, "code": "invalid_api_key"}),
    (QueueFull("Full.", retry_after_s=3), {"message": "Full.", "type": "rate_limit_error", "param": None, "code": "queue_full"}),
    (EngineError("It failed."), {"message": "It failed.", "type": "server_error", "param": None, "code": "engine_error"}),
    (Unavailable("Soon.", code="draining"), {"message": "Soon.", "type": "server_error", "param": None, "code": "draining"}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "fields"), ERRORS)
def test_the_error_envelope(error: StrettoError, fields: dict[str, Any]) -> None:
    assert json.loads(error_body(error)) == {"error": fields}


def test_an_error_in_a_stream_is_one_frame_and_the_end() -> None:
    render = renderer()
    data = render.error(EngineError("A step\nfailed.")) + render.end()
    assert data == (
        b'data: {"error":{"message":"A step\\nfailed.","type":"server_error","param":null,"code":"engine_error"}}\n\n'
        b"data: [DONE]\n\n"
    )


def test_the_official_client_raises_an_error_in_a_stream() -> None:
    import httpx2
    from openai import OpenAI

    render = renderer(stream=True)
    data = render.start(7) + render.event(EVENTS[0]) + render.error(EngineError("It failed.")) + render.end()

    def reply(request: object) -> httpx2.Response:
        return httpx2.Response(200, content=data, headers={"content-type": "text/event-stream"})

    client = OpenAI(
        api_key="k", base_url="http://localhost/v1", http_client=httpx2.Client(transport=httpx2.MockTransport(reply))
    )  # fmt: skip
    seen = []
    with client:
        chunks = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], stream=True
        )
        with pytest.raises(APIError, match="It failed"):
            seen.extend(chunk.choices[0].delta.content for chunk in chunks)
    assert seen == ["", 'Say "hé"']
