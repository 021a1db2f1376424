"""Asking for one answer in each dialect, and reading what came back: whole or streamed, the same five things."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from stretto.conversation import Request
from stretto.dialects.anthropic import MESSAGES
from stretto.dialects.dialect import Dialect
from stretto.dialects.openai_chat import CHAT
from stretto.dialects.openai_completion import COMPLETION
from stretto.dialects.openai_responses import RESPONSES

Json = dict[str, Any]

_BY_TIME = ("accepted_prediction_tokens", "rejected_prediction_tokens")

_REASONS = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls", "max_output_tokens": "length",
}  # fmt: skip


@dataclass
class WireAnswer:
    """What a client got.

    Attributes:
        reason: in the words of chat completions.
        tokens: of the answer, by its usage.
        calls: their arguments.
    """

    reason: str | None = None
    tokens: int | None = None
    thought: str = ""
    text: str = ""
    calls: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wire:
    """A dialect.

    Attributes:
        dialect: ours.
        body: a request's, from the limit and what else is asked for (``tools``, ``schema``, ``stop``).
        whole, streamed: read a reply, and the JSON of a stream's frames.
    """

    dialect: Dialect
    body: Callable[..., Json]
    whole: Callable[[Json], WireAnswer]
    streamed: Callable[[Iterator[Json]], WireAnswer]


def wire_request(wire: Wire, limit: int, *, stream: bool, **fields: Any) -> Request:
    """A request as the dialect reads it."""
    body = wire.body(limit, **fields)
    if stream:
        body["stream"] = True
    else:
        body.pop("stream_options", None)
    return wire.dialect.parse(json.dumps(body).encode(), request_id=f"{wire.dialect.id_prefix}{limit}")


def frames(data: bytes) -> Iterator[Json]:
    """The JSON of a stream's frames."""
    for line in data.decode().split("\n"):
        if line.startswith("data: {"):
            yield json.loads(line[6:])


# Chat completions --------------------------------------------------------------------------------------------------


def _chat_body(
    limit: int, *, tools: Json | None = None, schema: Json | None = None, stop: str | None = None
) -> Json:
    body: Json = {
        "model": "echo", "messages": [{"role": "user", "content": "Go."}], "max_tokens": limit, "temperature": 0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    if tools is not None:
        body["tools"] = [{"type": "function", "function": {"name": "f", "parameters": tools}}]
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    if stop is not None:
        body["stop"] = [stop]
    return body


def _chat_whole(reply: Json) -> WireAnswer:
    [choice] = reply["choices"]
    message = choice["message"]
    return WireAnswer(
        choice["finish_reason"],
        reply["usage"]["completion_tokens"],
        message.get("reasoning_content") or "",
        message["content"] or "",
        [call["function"]["arguments"] for call in message.get("tool_calls") or ()],
    )


def _chat_streamed(chunks: Iterator[Json]) -> WireAnswer:
    answer = WireAnswer()
    for chunk in chunks:
        if chunk["usage"] is not None:
            answer.tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            delta = choice["delta"]
            answer.reason = choice["finish_reason"] or answer.reason
            answer.thought += delta.get("reasoning_content") or ""
            answer.text += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    answer.calls.append("")
                answer.calls[call["index"]] += call["function"].get("arguments", "")
    return answer


# Completions -------------------------------------------------------------------------------------------------------


def _completion_body(limit: int, *, stop: str | None = None) -> Json:
    prompt = "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    body: Json = {
        "model": "echo", "prompt": prompt, "max_tokens": limit, "temperature": 0, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return body if stop is None else {**body, "stop": stop}


def _completion_whole(reply: Json) -> WireAnswer:
    [choice] = reply["choices"]
    return WireAnswer(choice["finish_reason"], reply["usage"]["completion_tokens"], "", choice["text"])


def _completion_streamed(chunks: Iterator[Json]) -> WireAnswer:
    answer = WireAnswer()
    for chunk in chunks:
        if chunk["usage"] is not None:
            answer.tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk["choices"]:
            answer.reason = choice["finish_reason"] or answer.reason
            answer.text += choice["text"]
    return answer


# Messages ----------------------------------------------------------------------------------------------------------


def _message_body(
    limit: int, *, tools: Json | None = None, schema: Json | None = None, stop: str | None = None
) -> Json:
    body: Json = {
        "model": "echo", "messages": [{"role": "user", "content": "Go."}], "max_tokens": limit, "temperature": 0,
        "thinking": {"type": "adaptive"},
    }  # fmt: skip
    if tools is not None:
        body["tools"] = [{"name": "f", "input_schema": tools}]
    if schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    if stop is not None:
        body["stop_sequences"] = [stop]
    return body


def _message_whole(reply: Json) -> WireAnswer:
    answer = WireAnswer(_REASONS[reply["stop_reason"]], reply["usage"]["output_tokens"])
    for block in reply["content"]:
        if block["type"] == "thinking":
            answer.thought += block["thinking"]
        elif block["type"] == "text":
            answer.text += block["text"]
        else:
            # A whole reply has the arguments as an object; of a call that was cut off, as much as there is.
            answer.calls.append(json.dumps(block["input"], ensure_ascii=False))
    return answer


def _message_streamed(events: Iterator[Json]) -> WireAnswer:
    answer = WireAnswer()
    for event in events:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            answer.calls.append("")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            answer.thought += delta.get("thinking", "")
            answer.text += delta.get("text", "")
            if "partial_json" in delta:
                answer.calls[-1] += delta["partial_json"]
        elif event["type"] == "message_delta":
            answer.reason = _REASONS[event["delta"]["stop_reason"]]
            answer.tokens = event["usage"]["output_tokens"]
    return answer


# Responses ---------------------------------------------------------------------------------------------------------


def _response_body(limit: int, *, tools: Json | None = None, schema: Json | None = None) -> Json:
    body: Json = {"model": "echo", "input": "Go.", "max_output_tokens": limit, "temperature": 0}
    if tools is not None:
        body["tools"] = [{"type": "function", "name": "f", "parameters": tools, "strict": False}]
    if schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "s", "schema": schema}}
    return body


def _response_whole(reply: Json) -> WireAnswer:
    answer = WireAnswer(None, reply["usage"]["output_tokens"])
    for item in reply["output"]:
        if item["type"] == "function_call":
            answer.calls.append(item["arguments"])
        for part in item.get("content") or ():
            if part["type"] == "output_text":
                answer.text += part["text"]
            else:
                answer.thought += part["text"]
    if reply["status"] == "incomplete":
        answer.reason = _REASONS[reply["incomplete_details"]["reason"]]
    else:
        answer.reason = "tool_calls" if answer.calls else "stop"
    return answer


def _response_streamed(events: Iterator[Json]) -> WireAnswer:
    """By the deltas; the last event has the whole response, whose ending counts."""
    answer = WireAnswer()
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added" and event["item"]["type"] == "function_call":
            answer.calls.append("")
        elif kind == "response.function_call_arguments.delta":
            answer.calls[-1] += event["delta"]
        elif kind == "response.output_text.delta":
            answer.text += event["delta"]
        elif kind.startswith("response.reasoning") and kind.endswith(".delta"):
            answer.thought += event["delta"]
        elif kind in ("response.completed", "response.incomplete"):
            ending = _response_whole(event["response"])
            assert (ending.thought, ending.text, ending.calls) == (answer.thought, answer.text, answer.calls)
            answer.reason, answer.tokens = ending.reason, ending.tokens
    return answer


WIRES = {
    "chat": Wire(CHAT, _chat_body, _chat_whole, _chat_streamed),
    "completions": Wire(COMPLETION, _completion_body, _completion_whole, _completion_streamed),
    "messages": Wire(MESSAGES, _message_body, _message_whole, _message_streamed),
    "responses": Wire(RESPONSES, _response_body, _response_whole, _response_streamed),
}


def steady(usage: Json) -> Json:
    """A usage without what depends on the time that steps take: how often it paid to guess the next tokens."""
    details = usage["completion_tokens_details"]
    assert all(details[name] >= 0 for name in _BY_TIME)
    return {**usage, "completion_tokens_details": {k: v for k, v in details.items() if k not in _BY_TIME}}
