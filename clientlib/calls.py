"""Every call of the daemon, as data: its request and how its reply is read. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict
from urllib.parse import quote

from clientlib.exchange import Call
from clientlib.http1 import Head
from clientlib.replies import (
    Health,
    JsonObject,
    Model,
    Reply,
    parse_health,
    parse_models,
    parse_object,
    parse_reply,
    parse_request_list,
)

Messages = Sequence[Mapping[str, Any]]
"""Chat messages of the OpenAI shape: ``{"role": "user", "content": "…"}``."""


Priority = Literal["high", "normal", "background"]
"""How urgent a request is. ``background`` yields to everything that somebody waits for."""

_PRIORITIES = ("high", "normal", "background")


class Sampling(TypedDict, total=False):
    """How tokens are chosen, beyond what generate() and stream() name themselves. Absent or None: the daemon's default."""

    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None


class ChatOptions(Sampling, total=False):
    """Everything about a chat completion but its model and messages. Absent or None: the daemon's default."""

    max_tokens: int | None
    temperature: float | None
    stop: str | Sequence[str] | None
    seed: int | None
    n: int | None
    logprobs: bool | None
    top_logprobs: int | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    reasoning_effort: str | None
    thinking_budget: int | None
    response_format: Mapping[str, Any] | None
    chat_template_kwargs: Mapping[str, Any] | None
    user: str | None


_OURS = frozenset({"messages", "model", "stream", "stream_options"})


def prompt_messages(prompt: str, system: str | None) -> Messages:
    """A conversation of one question. Raises TypeError."""
    if not isinstance(prompt, str):
        raise TypeError(f"prompt must be a str, not {type(prompt).__name__}; a conversation goes to chat()")
    user: Mapping[str, Any] = {"role": "user", "content": prompt}
    return [user] if system is None else [{"role": "system", "content": system}, user]


def encode_chat(messages: Messages, options: Mapping[str, Any], *, stream: bool) -> bytes:
    """The JSON members of a chat completion without its model. Options that are None are left out; unknown ones go along.

    Raises:
        TypeError: an option that is not the caller's to set, or a value that is not JSON.
        ValueError: a float that JSON cannot carry, or text that is not Unicode (lone surrogates).
    """
    if isinstance(messages, str | bytes | Mapping):
        raise TypeError("messages must be a list of messages; a single prompt goes to generate() or stream()")
    if taken := _OURS & options.keys():
        raise TypeError(
            f"{', '.join(sorted(taken))}: clientlib sets this itself; stream with stream() or chat_stream()"
        )
    body: dict[str, Any] = {"messages": list(messages)}
    body.update((name, value) for name, value in options.items() if value is not None)
    if stream:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return _json(body)


def check_priority(priority: Priority | None) -> Priority | None:
    """The same. Raises ValueError where it is none."""
    if priority is not None and priority not in _PRIORITIES:
        raise ValueError(f"priority = {priority!r}: it must be one of {', '.join(_PRIORITIES)}")
    return priority


def chat_call(model: str, encoded: bytes, priority: Priority | None = None) -> Call[Reply]:
    """``POST /v1/chat/completions`` with what encode_chat() made; a priority of None leaves it to the daemon."""
    body = _json({"model": model})[:-1] + b"," + encoded[1:]
    # Not idempotent: the daemon may have begun to compute (and to bill) an answer whose connection broke.
    headers = () if priority is None else (("X-Stretto-Priority", priority),)
    return Call("POST", "/v1/chat/completions", parse_reply, body, idempotent=False, headers=headers)


def models_call() -> Call[tuple[Model, ...]]:
    """``GET /v1/models``."""
    return Call("GET", "/v1/models", parse_models)


def health_call() -> Call[Health]:
    """``GET /health``; not being ready is an answer, not an error."""
    return Call("GET", "/health", parse_health, accept=frozenset({200, 503}))


def status_call() -> Call[JsonObject]:
    """``GET /admin/status``."""
    return Call("GET", "/admin/status", parse_object)


def requests_call() -> Call[list[JsonObject]]:
    """``GET /admin/requests``."""
    return Call("GET", "/admin/requests", parse_request_list)


def cancel_call(request_id: str) -> Call[None]:
    """``DELETE /admin/requests/{id}``."""
    if not request_id:
        raise ValueError("request_id is empty; requests() lists the ids")
    return Call("DELETE", f"/admin/requests/{quote(request_id, safe='')}", _nothing, accept=_DONE)


def drain_call() -> Call[JsonObject]:
    """``POST /admin/drain``."""
    return Call("POST", "/admin/drain", _object_or_nothing, accept=_DONE)


def stop_call(grace_s: float | None) -> Call[JsonObject]:
    """``POST /admin/stop``."""
    body = {} if grace_s is None else {"grace_s": grace_s}
    return Call("POST", "/admin/stop", _object_or_nothing, _json(body), idempotent=False, accept=_DONE)


_DONE = frozenset({200, 202, 204})


def _nothing(head: Head, body: bytes) -> None:
    """Success says it all."""


def _object_or_nothing(head: Head, body: bytes) -> JsonObject:
    return parse_object(head, body) if body else {}


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
