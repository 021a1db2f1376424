"""What comes back, as plain data: replies, pieces of streams, models, health. Parsing only, no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clientlib.errors import ProtocolError
from clientlib.http1 import Head

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position: its text, natural-log probability, and bytes (a token may be half a character)."""

    token: str
    logprob: float
    data: bytes | None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token at a position, and its alternatives, most likely first."""

    token: str
    logprob: float
    data: bytes | None
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, counted by the daemon. ``cached_tokens`` of the prompt were not computed again, ``reasoning_tokens`` of the answer are
    reasoning. ``cost`` is in US dollars, where requests are billed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model calls. ``arguments`` is the JSON text as it wrote it; of an answer that was cut off, its beginning."""

    id: str
    name: str
    arguments: str

    @property
    def input(self) -> JsonObject:
        """The arguments, read.

        Raises:
            ValueError: they are not the JSON text of an object, because the answer was cut off.
        """
        value = json.loads(self.arguments) if self.arguments.strip() else {}
        if not isinstance(value, dict):
            raise ValueError(f"the arguments of {self.name} are not a JSON object: {self.arguments[:100]!r}")
        return value

    def as_message(self) -> JsonObject:
        """As it stands among the ``tool_calls`` of the assistant's message, when that is sent back."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. ``finish_reason`` is ``stop``, ``length``, ``tool_calls`` or ``content_filter``; ``reasoning`` is what a model that
    thinks thought before it."""

    index: int
    text: str
    finish_reason: str | None
    logprobs: tuple[TokenLogprob, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""

    @property
    def message(self) -> JsonObject:
        """The assistant's message, to be sent back as part of the conversation."""
        message: JsonObject = {"role": "assistant", "content": self.text or None}
        if self.tool_calls:
            message["tool_calls"] = [call.as_message() for call in self.tool_calls]
        elif not self.text:
            message["content"] = ""
        return message


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. ``text`` and ``finish_reason`` are the first choice's; ``raw`` is the reply as it came ({} for a stream)."""

    id: str
    model: str
    created: int
    choices: tuple[Choice, ...]
    usage: Usage | None
    request_id: str | None = None
    raw: JsonObject = field(default_factory=dict, repr=False, compare=False)

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The first choice's logprobs; empty when none were asked for."""
        return self.choices[0].logprobs

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The functions that the first choice calls."""
        return self.choices[0].tool_calls

    @property
    def reasoning(self) -> str:
        """What the model thought before the first choice; empty for models that do not."""
        return self.choices[0].reasoning

    @property
    def message(self) -> JsonObject:
        """The first choice as a message, to be sent back as part of the conversation."""
        return self.choices[0].message


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of choice ``index``: of its text or of its ``reasoning``. The piece that ends a choice has its ``finish_reason``;
    ``raw`` is the choice as it came, pieces of calls among it."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    raw: JsonObject = field(default_factory=dict, repr=False, compare=False)
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the daemon serves; ``raw`` has all that it says about it."""

    id: str
    created: int
    owned_by: str
    raw: JsonObject = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Health:
    """``ready``: the daemon takes work. ``state`` is its own word for how it is; ``raw`` has the rest."""

    ready: bool
    state: str
    raw: JsonObject = field(default_factory=dict, repr=False, compare=False)


def parse_object(head: Head, body: bytes) -> JsonObject:
    """A reply that is a JSON object. Raises ProtocolError."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(
            f"The reply is not JSON: {body[:100]!r}.",
            code="invalid_reply",
            request_id=head.header("x-request-id"),
        ) from error
    return as_object(document, "the reply")


def parse_reply(head: Head, body: bytes) -> Reply:
    """``POST /v1/chat/completions`` without streaming. Raises ProtocolError."""
    raw = parse_object(head, body)
    choices = tuple(_choice(as_object(item, "choices[]")) for item in as_list(raw.get("choices"), "choices"))
    if not choices:
        raise invalid("choices", [])
    return Reply(
        id=as_str(raw.get("id"), "id"),
        model=as_str(raw.get("model"), "model"),
        created=as_int(raw.get("created", 0), "created"),
        choices=tuple(sorted(choices, key=lambda choice: choice.index)),
        usage=parse_usage(raw.get("usage")),
        request_id=head.header("x-request-id"),
        raw=raw,
    )


def parse_models(head: Head, body: bytes) -> tuple[Model, ...]:
    """``GET /v1/models``. Raises ProtocolError."""
    return tuple(
        _model(as_object(item, "data[]")) for item in as_list(parse_object(head, body).get("data"), "data")
    )


def parse_health(head: Head, body: bytes) -> Health:
    """``GET /health``: 200 when ready, 503 when not. Raises ProtocolError."""
    raw = parse_object(head, body)
    ready = head.status == 200
    error = raw.get("error")
    refusal = error.get("code") if isinstance(error, dict) else None
    state = raw.get("state") or raw.get("status") or refusal or ("ready" if ready else "not ready")
    return Health(ready, str(state), raw)


def parse_request_list(head: Head, body: bytes) -> list[JsonObject]:
    """``GET /admin/requests``: an object with the list under ``requests`` or ``data``. Raises ProtocolError."""
    raw = parse_object(head, body)
    listed = raw.get("requests", raw.get("data"))
    return [as_object(item, "requests[]") for item in as_list(listed, "requests")]


def parse_usage(raw: Any) -> Usage | None:
    """A ``usage`` member; None for null. Raises ProtocolError."""
    if raw is None:
        return None
    usage = as_object(raw, "usage")
    prompt = as_int(usage.get("prompt_tokens"), "usage.prompt_tokens")
    completion = as_int(usage.get("completion_tokens"), "usage.completion_tokens")
    details = as_object(usage.get("prompt_tokens_details") or {}, "usage.prompt_tokens_details")
    spent = as_object(usage.get("completion_tokens_details") or {}, "usage.completion_tokens_details")
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=as_int(usage.get("total_tokens", prompt + completion), "usage.total_tokens"),
        cached_tokens=as_int(details.get("cached_tokens") or 0, "usage.prompt_tokens_details.cached_tokens"),
        reasoning_tokens=as_int(
            spent.get("reasoning_tokens") or 0, "usage.completion_tokens_details.reasoning_tokens"
        ),
        cost=_cost(usage.get("cost")),
    )


def _cost(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid("usage.cost", value)
    return float(value)


def parse_logprobs(raw: Any) -> tuple[TokenLogprob, ...]:
    """A choice's ``logprobs`` member; empty for null. Raises ProtocolError."""
    if raw is None:
        return ()
    found = []
    for item in as_list(as_object(raw, "logprobs").get("content") or [], "logprobs.content"):
        entry = as_object(item, "logprobs.content[]")
        alternatives = as_list(entry.get("top_logprobs") or [], "top_logprobs")
        top = tuple(TopLogprob(*_token(as_object(each, "top_logprobs[]"))) for each in alternatives)
        found.append(TokenLogprob(*_token(entry), top))
    return tuple(found)


def _token(entry: Mapping[str, Any]) -> tuple[str, float, bytes | None]:
    logprob, data = entry.get("logprob"), entry.get("bytes")
    if not isinstance(logprob, int | float):
        raise invalid("logprob", logprob)
    try:
        return as_str(entry.get("token"), "token"), float(logprob), None if data is None else bytes(data)
    except (TypeError, ValueError):
        raise invalid("bytes", data) from None


def _choice(raw: JsonObject) -> Choice:
    message = as_object(raw.get("message"), "message")
    return Choice(
        index=as_int(raw.get("index", 0), "index"),
        text=as_str(message.get("content") or "", "message.content"),
        finish_reason=optional_str(raw.get("finish_reason"), "finish_reason"),
        logprobs=parse_logprobs(raw.get("logprobs")),
        tool_calls=tuple(
            parse_tool_call(as_object(call, "tool_calls[]"))
            for call in as_list(message.get("tool_calls") or [], "tool_calls")
        ),
        reasoning=as_str(message.get("reasoning_content") or "", "message.reasoning_content"),
    )


def parse_tool_call(raw: JsonObject) -> ToolCall:
    """One of a message's ``tool_calls``. Raises ProtocolError."""
    function = as_object(raw.get("function"), "tool_calls[].function")
    return ToolCall(
        as_str(raw.get("id"), "tool_calls[].id"),
        as_str(function.get("name"), "tool_calls[].function.name"),
        as_str(function.get("arguments") or "", "tool_calls[].function.arguments"),
    )


def _model(raw: JsonObject) -> Model:
    return Model(
        id=as_str(raw.get("id"), "id"),
        created=as_int(raw.get("created", 0), "created"),
        owned_by=as_str(raw.get("owned_by", ""), "owned_by"),
        raw=raw,
    )


def invalid(name: str, value: object) -> ProtocolError:
    """The error for a member that is not what the wire format says."""
    return ProtocolError(
        f"The reply's {name} is not what it should be: {value!r:.100}.", code="invalid_reply"
    )


def as_object(value: Any, name: str) -> JsonObject:
    """``value``, if it is a JSON object. Raises ProtocolError."""
    if not isinstance(value, dict):
        raise invalid(name, value)
    return value


def as_list(value: Any, name: str) -> list[Any]:
    """``value``, if it is a JSON array. Raises ProtocolError."""
    if not isinstance(value, list):
        raise invalid(name, value)
    return value


def as_str(value: Any, name: str) -> str:
    """``value``, if it is a string. Raises ProtocolError."""
    if not isinstance(value, str):
        raise invalid(name, value)
    return value


def optional_str(value: Any, name: str) -> str | None:
    """``value``, if it is a string or null. Raises ProtocolError."""
    return None if value is None else as_str(value, name)


def as_int(value: Any, name: str) -> int:
    """``value``, if it is an integer. Raises ProtocolError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise invalid(name, value)
    return value
