"""A streamed answer, put together: event data in, pieces out, the whole reply at the end. No I/O."""

from __future__ import annotations

import json

from clientlib.errors import ProtocolError, error_from_frame
from clientlib.replies import (
    Choice,
    Delta,
    JsonObject,
    Reply,
    TokenLogprob,
    Usage,
    as_int,
    as_list,
    as_object,
    as_str,
    invalid,
    optional_str,
    parse_logprobs,
    parse_tool_call,
    parse_usage,
)

_DONE = "[DONE]"


class _Growing:
    """A choice that is being received."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.reasoning: list[str] = []
        self.finish_reason: str | None = None
        self.logprobs: list[TokenLogprob] = []
        self.tool_calls: dict[int, JsonObject] = {}


class ChatAssembler:
    """Reads the data of ``chat.completion.chunk`` events. ``done`` is set by ``[DONE]``; what follows it is ignored."""

    def __init__(self, request_id: str | None) -> None:
        self.request_id = request_id
        self.id = ""
        self.model = ""
        self.created = 0
        self.usage: Usage | None = None
        self.done = False
        self._choices: dict[int, _Growing] = {}

    def feed(self, data: str) -> list[Delta]:
        """The pieces in one event's data; none for what carries no news (roles, usage).

        Raises:
            ClientError: the event is an error frame; which class, its code and status tell.
            ProtocolError: the event is not a chunk.
        """
        if self.done:
            return []
        if data.strip() == _DONE:
            self.done = True
            return []
        try:
            chunk = as_object(json.loads(data), "chunk")
        except (ValueError, RecursionError) as error:
            raise ProtocolError(
                f"The stream holds an event that is not JSON: {data[:100]!r}.",
                code="invalid_reply",
                request_id=self.request_id,
                text=self.text,
            ) from error
        if chunk.get("error") is not None:
            failure = chunk["error"]
            frame = failure if isinstance(failure, dict) else {"message": str(failure)}
            raise error_from_frame(frame, request_id=self.request_id, text=self.text)
        return self._chunk(chunk)

    @property
    def text(self) -> str:
        """The first choice's text so far."""
        return self.text_of(0)

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended; None while it has not."""
        first = self._choices.get(0)
        return first.finish_reason if first else None

    def text_of(self, index: int) -> str:
        """A choice's text so far."""
        choice = self._choices.get(index)
        return "".join(choice.pieces) if choice else ""

    def reply(self) -> Reply:
        """All that has come, as a Reply; a choice that has not ended has ``finish_reason`` None."""
        choices = tuple(
            Choice(
                index,
                "".join(growing.pieces),
                growing.finish_reason,
                tuple(growing.logprobs),
                tuple(parse_tool_call(call) for _, call in sorted(growing.tool_calls.items())),
                "".join(growing.reasoning),
            )
            for index, growing in sorted(self._choices.items())
        )
        return Reply(
            self.id, self.model, self.created, choices or (Choice(0, "", None),), self.usage, self.request_id
        )

    def _chunk(self, chunk: JsonObject) -> list[Delta]:
        self.id = as_str(chunk.get("id", self.id), "id")
        self.model = as_str(chunk.get("model", self.model), "model")
        self.created = as_int(chunk.get("created", self.created), "created")
        if chunk.get("usage") is not None:
            self.usage = parse_usage(chunk["usage"])
        found = (
            self._choice(as_object(item, "choices[]")) for item in as_list(chunk.get("choices"), "choices")
        )
        return [delta for delta in found if delta is not None]

    def _choice(self, raw: JsonObject) -> Delta | None:
        index = as_int(raw.get("index", 0), "index")
        body = as_object(raw.get("delta") or {}, "delta")
        text = as_str(body.get("content") or "", "delta.content")
        reasoning = as_str(body.get("reasoning_content") or "", "delta.reasoning_content")
        finish_reason = optional_str(raw.get("finish_reason"), "finish_reason")
        logprobs = parse_logprobs(raw.get("logprobs"))
        growing = self._choices.setdefault(index, _Growing())
        if text:
            growing.pieces.append(text)
        if reasoning:
            growing.reasoning.append(reasoning)
        growing.logprobs += logprobs
        growing.finish_reason = finish_reason or growing.finish_reason
        for call in as_list(body.get("tool_calls") or [], "tool_calls"):
            _merge_tool_call(growing.tool_calls, as_object(call, "tool_calls[]"))
        news = (
            text
            or finish_reason
            or logprobs
            or any(value for key, value in body.items() if key not in ("role", "content"))
        )
        return Delta(index, text, finish_reason, logprobs, raw, reasoning) if news else None


def _merge_tool_call(calls: dict[int, JsonObject], piece: JsonObject) -> None:
    """Grow the call that ``piece`` belongs to: its arguments come in pieces, the rest once."""
    index = as_int(piece.get("index"), "tool_calls[].index")
    call = calls.setdefault(index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call["id"] = piece.get("id") or call["id"]
    function = as_object(piece.get("function") or {}, "tool_calls[].function")
    for name in ("name", "arguments"):
        value = function.get(name)
        if value is not None and not isinstance(value, str):
            raise invalid(f"tool_calls[].function.{name}", value)
        call["function"][name] += value or ""
