"""Rendering answers as Anthropic's Messages: one JSON object, or named server-sent events."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable

from stretto.conversation.events import (
    Done,
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from stretto.conversation.messages import Request
from stretto.dialects.anthropic_errors import error_object
from stretto.dialects.json_text import dumps
from stretto.dialects.partial_json import load_object
from stretto.errors import StrettoError

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessagesRenderer:
    """Renders one request's answer, which has one choice.

    A stream and a whole reply are told by the same steps, so that they cannot differ: pieces open a block, go on with it or close it.

    Args:
        request: what was asked.
        created: Unix seconds; this dialect does not tell them.
        model: the id of the model that answers.
    """

    def __init__(self, request: Request, created: int, model: str) -> None:
        self._request = request
        self._model = model
        self._frame: Callable[..., bytes] = _frame
        self._blocks: list[dict[str, object]] = []
        self._pieces: list[str] = []
        self._open = False
        self._finish: Finish | None = None
        self._failed = False

    def json(self, events: Iterable[Event]) -> bytes:
        """The whole reply, from all the events of an answer."""
        self._frame = _no_frame
        usage: Usage | None = None
        for event in events:
            self.event(event)
            if isinstance(event, Done):
                usage = event.usage
        if usage is None or self._finish is None:
            raise ValueError("an answer is complete only with a Finish and Done")
        return dumps(
            {
                **self._message(self._blocks, _usage_object(usage) | {"service_tier": "standard"}),
                **self._ending(usage),
            }
        ).encode()

    def start(self, prompt_tokens: int) -> bytes:
        """``message_start``. What of the prompt is cached is not known yet, so it counts as new until the end says better."""
        usage = _usage_object(Usage(prompt_tokens, 0)) | {"service_tier": "standard"}
        return self._frame({"type": "message_start", "message": self._message([], usage)})

    def event(self, event: Event) -> bytes:
        """The frames for an event; empty when it has none."""
        if isinstance(event, TextDelta):
            return self._go_on("text", event.text, {"type": "text", "text": ""}) if event.text else b""
        if isinstance(event, ReasoningDelta):
            return self._go_on("thinking", event.text, {"type": "thinking", "thinking": "", "signature": ""})
        if isinstance(event, ToolCallStart):
            return self._begin({"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
        if isinstance(event, ToolCallDelta):
            return self._add("tool_use", event.arguments)
        if isinstance(event, Finish):
            self._finish = event
            return self._close()
        if isinstance(event, Done):
            delta = self._ending(event.usage)
            return self._frame({"type": "message_delta", "delta": delta, "usage": _usage_object(event.usage)})
        return b""

    def error(self, error: StrettoError) -> bytes:
        """The event for an error after the first byte. It is the last one: clients take it as the stream's end."""
        self._failed = True
        return self._frame(error_object(error, self._request.id), "error")

    def end(self) -> bytes:
        """``message_stop``; nothing after an error."""
        return b"" if self._failed else self._frame({"type": "message_stop"})

    # Blocks ----------------------------------------------------------------------------------------------------------

    def _go_on(self, kind: str, text: str, fresh: dict[str, object]) -> bytes:
        """Text for the open block if it is of that kind, else for a fresh one."""
        if self._open and self._blocks[-1]["type"] == kind:
            return self._add(kind, text)
        return self._begin(fresh) + self._add(kind, text)

    def _begin(self, block: dict[str, object]) -> bytes:
        closed = self._close()
        self._blocks.append(block)
        self._open = True
        index = len(self._blocks) - 1
        return closed + self._frame({"type": "content_block_start", "index": index, "content_block": block})

    def _add(self, kind: str, text: str) -> bytes:
        self._pieces.append(text)
        if kind == "thinking" and self._request.reasoning.hidden:
            return b""
        return self._delta(*_DELTAS[kind], text)

    def _close(self) -> bytes:
        """End the open block: what it holds is complete now."""
        if not self._open:
            return b""
        block, text, signed = self._blocks[-1], "".join(self._pieces), b""
        if block["type"] == "tool_use":
            block["input"] = load_object(text)
        elif block["type"] == "text":
            block["text"] = text
        else:
            block["thinking"] = "" if self._request.reasoning.hidden else text
            block["signature"] = signature = _signature(text)
            signed = self._delta("signature_delta", "signature", signature)
        self._open = False
        self._pieces.clear()
        return signed + self._frame({"type": "content_block_stop", "index": len(self._blocks) - 1})

    def _delta(self, kind: str, field: str, text: str) -> bytes:
        return self._frame(
            {
                "type": "content_block_delta",
                "index": len(self._blocks) - 1,
                "delta": {"type": kind, field: text},
            }
        )

    # The message -----------------------------------------------------------------------------------------------------

    def _message(self, content: list[dict[str, object]], usage: dict[str, object]) -> dict[str, object]:
        return {
            "id": self._request.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "stop_details": None,
            "usage": usage,
        }

    def _ending(self, usage: Usage) -> dict[str, object]:
        """Why the answer ended; it follows what the answer is made of."""
        assert self._finish is not None
        reason, stop_string = self._finish.reason, self._finish.stop_string
        if reason == "length":
            within = (
                self._request.max_tokens is not None and usage.completion_tokens < self._request.max_tokens
            )
            stop = "model_context_window_exceeded" if within else "max_tokens"
        elif reason == "content_filter":
            stop = "refusal"
        elif stop_string is not None:
            stop = "stop_sequence"
        elif any(block["type"] == "tool_use" for block in self._blocks):
            stop = "tool_use"
        else:
            stop = "end_turn"
        return {"stop_reason": stop, "stop_sequence": stop_string, "stop_details": None}


_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


def _frame(event: dict[str, object], name: str | None = None) -> bytes:
    return f"event: {name or event['type']}\ndata: {dumps(event)}\n\n".encode()


def _no_frame(event: dict[str, object], name: str | None = None) -> bytes:
    """For a whole reply, which is made of the blocks alone."""
    return b""


def _usage_object(usage: Usage) -> dict[str, object]:
    """The three kinds of input tokens add up to the prompt."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - usage.stored_tokens,
        "cache_creation_input_tokens": usage.stored_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        **usage.cost,
    }


def _signature(thinking: str) -> str:
    """Clients keep it and send it back; it says which text it belongs to, and is not asked for again."""
    return base64.b64encode(hashlib.sha256(thinking.encode("utf-8", "surrogatepass")).digest()).decode()
