"""Completions byte by byte as they are meant, and as the official client's own models read them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from openai._streaming import SSEDecoder
from openai.types import Completion

from stretto.conversation import (
    Done,
    Echo,
    Event,
    Finish,
    RawPrompt,
    Request,
    TextDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from stretto.dialects.openai_completion_render import CompletionRenderer
from stretto.errors import EngineError

USAGE = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=0)
PROMPT = RawPrompt("Zoë ", echo=True)
SMILE = "😀".encode()
ECHO = Echo(
    0,
    "Zoë ",
    (
        TokenLogprob("<s>", None, b""),
        TokenLogprob("Zo", -1.5, b"Zo", (TopLogprob("Z", -0.5, b"Z"),)),
        TokenLogprob("\ufffd", -2.0, b"\xc3"),
        TokenLogprob("\ufffd", -0.25, b"\xab "),
    ),
)
EVENTS: list[Event] = [
    ECHO,
    TextDelta(0, "is ", (TokenLogprob("is ", -0.5, b"is ", (TopLogprob("is ", -0.5, b"is "),)),)),
    TextDelta(0, "😀", (TokenLogprob("\ufffd", -1.0, SMILE[:2]), TokenLogprob("\ufffd", -9999.0, SMILE[2:]))),
    TextDelta(0, "", (TokenLogprob("<eos>", -0.125, b""),)),
    Finish(0, "stop"),
    Done(USAGE),
]
HEAD = '{"id":"cmpl-7","object":"text_completion","created":1700000000,"model":"smollm2","choices":['
USAGE_JSON = (
    '{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0},'
    '"completion_tokens_details":{"reasoning_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}'
)


def renderer(prompts: int = 1, **more: Any) -> CompletionRenderer:
    request = Request(id="cmpl-7", model="asked", messages=(), prompts=(PROMPT,) * prompts, **more)
    return CompletionRenderer(request, 1700000000, "smollm2")


def stream(events: Iterable[Event], **more: Any) -> bytes:
    render = renderer(stream=True, **more)
    return render.start(3) + b"".join(map(render.event, events)) + render.end()


def frames(data: bytes) -> list[Any]:
    found = [event.data for event in SSEDecoder().iter_bytes(iter([data]))]
    assert found[-1] == "[DONE]"
    return [json.loads(text) for text in found[:-1]]


def test_a_stream_byte_by_byte() -> None:
    assert stream(EVENTS).decode() == (
        f'data: {HEAD}{{"text":"Zoë ","index":0,"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {HEAD}{{"text":"is ","index":0,"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {HEAD}{{"text":"😀","index":0,"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {HEAD}{{"text":"","index":0,"logprobs":null,"finish_reason":null}}]}}\n\n'
        f'data: {HEAD}{{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}}]}}\n\n'
        "data: [DONE]\n\n"
    )


def test_a_stream_with_usage_and_logprobs_byte_by_byte() -> None:
    assert stream(EVENTS[1:2] + EVENTS[4:], include_usage=True, logprobs=1).decode() == (
        f'data: {HEAD}{{"text":"is ","index":0,"logprobs":{{"tokens":["is "],"token_logprobs":[-0.5],'
        '"top_logprobs":[{"is ":-0.5}],"text_offset":[0]},"finish_reason":null}],"usage":null}\n\n'
        f'data: {HEAD}{{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}}],"usage":null}}\n\n'
        f'data: {HEAD}],"usage":{USAGE_JSON}}}\n\n'
        "data: [DONE]\n\n"
    )


def test_a_reply_byte_by_byte() -> None:
    assert renderer(logprobs=1).json(EVENTS).decode() == (
        f'{HEAD}{{"text":"Zoë is 😀","index":0,"logprobs":{{'
        '"tokens":["<s>","Zo","bytes:\\\\xc3","bytes:\\\\xab\\\\x20","is ","bytes:\\\\xf0\\\\x9f","bytes:\\\\x98\\\\x80","<eos>"],'
        '"token_logprobs":[null,-1.5,-2.0,-0.25,-0.5,-1.0,-9999.0,-0.125],'
        '"top_logprobs":[null,{"Z":-0.5,"Zo":-1.5},{"bytes:\\\\xc3":-2.0},{"bytes:\\\\xab\\\\x20":-0.25},{"is ":-0.5},'
        '{"bytes:\\\\xf0\\\\x9f":-1.0},{"bytes:\\\\x98\\\\x80":-9999.0},{"<eos>":-0.125}],'
        '"text_offset":[0,0,2,2,4,7,7,8]},"finish_reason":"stop"}],'
        f'"usage":{USAGE_JSON}}}'
    )


def test_both_forms_say_the_same() -> None:
    reply = json.loads(renderer(logprobs=1).json(EVENTS))
    chunks = frames(stream(EVENTS, logprobs=1, include_usage=True))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == reply["usage"]
    parts = [chunk["choices"][0] for chunk in chunks[:-1]]
    (whole,) = reply["choices"]
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == [whole["finish_reason"]]
    for name, values in whole["logprobs"].items():
        joined = [value for part in parts if part["logprobs"] is not None for value in part["logprobs"][name]]
        assert joined == values


def test_the_official_client_reads_the_reply() -> None:
    """As its types say it; they do not know that an echoed prompt's first token has null for its log-probability."""
    answer = EVENTS[1:]
    reply = Completion.model_validate_json(renderer(logprobs=1).json(answer), strict=True)
    assert reply.choices[0].text == "is 😀"
    assert reply.choices[0].logprobs is not None
    assert reply.choices[0].logprobs.text_offset == [0, 3, 3, 4]
    assert reply.usage is not None
    assert not any(
        model.model_extra for model in (reply, reply.choices[0], reply.choices[0].logprobs, reply.usage)
    )


def test_choices_of_several_prompts() -> None:
    events: list[Event] = [
        Echo(3, "Zoë ", ECHO.logprobs),
        TextDelta(3, "d", (TokenLogprob("d", -1.0, b"d"),)),
        *(TextDelta(index, "abc"[index]) for index in (2, 0, 1)),
        *(Finish(index, "length") for index in (1, 3, 0, 2)),
        Done(USAGE),
    ]
    choices = json.loads(renderer(2, n=2, logprobs=1).json(events))["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"] for choice in choices] == ["a", "b", "c", "Zoë d"]
    assert [choice["logprobs"]["text_offset"] for choice in choices] == [[], [], [], [0, 0, 2, 2, 4]]


def test_no_offset_of_the_prompt_lies_beyond_it() -> None:
    """A tokenizer that changes text (Unicode normalisation) makes tokens that are longer than what was sent."""
    echo = Echo(0, "é", (TokenLogprob("e", None, b"e"), TokenLogprob("́", -1.0, "́".encode()), TokenLogprob("x", -1.0, b"x")))  # fmt: skip
    after = TextDelta(0, "y", (TokenLogprob("y", -1.0, b"y"),))
    reply = json.loads(renderer(logprobs=0).json([echo, after, Finish(0, "stop"), Done(USAGE)]))
    assert reply["choices"][0]["logprobs"]["text_offset"] == [0, 1, 1, 1]


def test_an_answer_without_a_token_has_empty_lists() -> None:
    reply = json.loads(renderer(logprobs=0).json([Finish(0, "length"), Done(USAGE)]))
    assert reply["choices"][0]["logprobs"] == {
        "tokens": [],
        "token_logprobs": [],
        "top_logprobs": [],
        "text_offset": [],
    }


def test_an_answer_that_is_not_complete_is_not_rendered() -> None:
    for events in ([Finish(0, "stop")], [Done(USAGE)], []):
        with pytest.raises(ValueError, match="complete"):
            renderer().json(events)


def test_an_error_in_a_stream_is_one_frame_and_the_end() -> None:
    render = renderer()
    assert render.error(EngineError("It failed.")) + render.end() == (
        b'data: {"error":{"message":"It failed.","type":"server_error","param":null,"code":"engine_error"}}\n\n'
        b"data: [DONE]\n\n"
    )
