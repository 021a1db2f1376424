"""The output of a response as it grows: canonical events in, the wire's items and stream events out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.conversation.events import (
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
)

StreamEvent = dict[str, Any]
"""An event without its sequence number; ``type`` comes first."""

Item = dict[str, Any]


@dataclass(slots=True)
class _Open:
    """The item that grows now."""

    kind: str
    item: Item
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


class ResponseOutput:
    """The items of one response. Only the last one grows; it is closed when another begins or the answer ends.

    Args:
        new_id: an item's id from its prefix (``msg``, ``rs``, ``fc``) and its index.
        wire_name: a function's name and namespace on the wire, from the name that the model knows.
        seal: closes reasoning into ``encrypted_content``; None leaves that out.
        summarised: whether reasoning stands in ``summary`` instead of ``content``.
    """

    def __init__(
        self,
        *,
        new_id: Callable[[str, int], str],
        wire_name: Callable[[str], tuple[str, str | None]] = lambda name: (name, None),
        seal: Callable[[str], str] | None = None,
        summarised: bool = False,
    ) -> None:
        self.items: list[Item] = []
        """Those that are complete."""
        self._new_id = new_id
        self._wire_name = wire_name
        self._seal = seal
        self._part = _SUMMARY if summarised else _REASONING
        self._open: _Open | None = None

    def feed(self, event: Event) -> list[StreamEvent]:
        """What an event of the answer brings."""
        if isinstance(event, TextDelta):
            return self._text(event)
        if isinstance(event, ReasoningDelta):
            return self._reasoning(event)
        if isinstance(event, ToolCallStart):
            return self._call(event)
        if isinstance(event, ToolCallDelta):
            return self._arguments(event)
        if isinstance(event, Finish):
            return self._finish("completed" if event.reason in ("stop", "tool_calls") else "incomplete")
        return []

    def abandon(self) -> list[StreamEvent]:
        """The answer failed: what is open ends as incomplete."""
        return self._close("incomplete")

    def _text(self, event: TextDelta) -> list[StreamEvent]:
        events = self._begin("message")
        opened = self._opened()
        opened.pieces.append(event.text)
        opened.logprobs += [logprob_object(entry) for entry in event.logprobs]
        delta = {"delta": event.text, "logprobs": [_brief(entry) for entry in event.logprobs]}
        return [*events, self._of_part("response.output_text.delta", **delta)]

    def _reasoning(self, event: ReasoningDelta) -> list[StreamEvent]:
        events = self._begin("reasoning")
        self._opened().pieces.append(event.text)
        return [*events, self._part.event(self, "delta", delta=event.text)]

    def _call(self, event: ToolCallStart) -> list[StreamEvent]:
        events = self._close("completed")
        name, namespace = self._wire_name(event.name)
        item: Item = {
            "type": "function_call",
            "id": self._new_id("fc", len(self.items)),
            "call_id": event.id,
            "name": name,
            "arguments": "",
            "status": "in_progress",
        }
        if namespace is not None:
            item["namespace"] = namespace
        self._open = _Open("function_call", item)
        return [*events, self._added(item)]

    def _arguments(self, event: ToolCallDelta) -> list[StreamEvent]:
        self._opened().pieces.append(event.arguments)
        return [self._of_item("response.function_call_arguments.delta", delta=event.arguments)]

    def _finish(self, status: str) -> list[StreamEvent]:
        events = []
        if self._open is None and not self.items:  # an answer is never without an item, even when it is empty
            events = self._begin("message")
        return [*events, *self._close(status)]

    def _begin(self, kind: str) -> list[StreamEvent]:
        """Make sure that an item of this kind is open."""
        if self._open is not None and self._open.kind == kind:
            return []
        events = self._close("completed")
        index = len(self.items)
        if kind == "message":
            item: Item = {
                "type": "message",
                "id": self._new_id("msg", index),
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        else:
            item = {
                "type": "reasoning",
                "id": self._new_id("rs", index),
                "summary": [],
                "content": [],
                "status": "in_progress",
            }
        self._open = _Open(kind, item)
        events.append(self._added(item))
        if kind == "message":
            events.append(self._of_part("response.content_part.added", part=_text_part("", [])))
        else:
            events.append(self._part.added(self))
        return events

    def _close(self, status: str) -> list[StreamEvent]:
        opened = self._open
        if opened is None:
            return []
        text = "".join(opened.pieces)
        item = {**opened.item, "status": status}
        events: list[StreamEvent]
        if opened.kind == "message":
            part = _text_part(text, opened.logprobs)
            item["content"] = [part]
            brief = [_without_bytes(entry) for entry in opened.logprobs]
            events = [
                self._of_part("response.output_text.done", text=text, logprobs=brief),
                self._of_part("response.content_part.done", part=part),
            ]
        elif opened.kind == "reasoning":
            item[self._part.field] = [self._part.of(text)]
            if self._seal is not None:
                item["encrypted_content"] = self._seal(text)
            events = [self._part.event(self, "done", text=text), self._part.done(self, text)]
        else:
            item["arguments"] = text
            done = {"name": item["name"], "arguments": text}
            events = [self._of_item("response.function_call_arguments.done", **done)]
        output_index = len(self.items)
        self._open = None
        self.items.append(item)
        return [
            *events,
            {"type": "response.output_item.done", "output_index": output_index, "item": item},
        ]

    def _opened(self) -> _Open:
        if self._open is None:
            raise ValueError("a piece of a call came before its start")
        return self._open

    def _added(self, item: Item) -> StreamEvent:
        return {"type": "response.output_item.added", "output_index": len(self.items), "item": item}

    def _of_item(self, kind: str, **fields: object) -> StreamEvent:
        return {
            "type": kind,
            "item_id": self._opened().item["id"],
            "output_index": len(self.items),
            **fields,
        }

    def _of_part(self, kind: str, **fields: object) -> StreamEvent:
        return self._of_item(kind, content_index=0, **fields)


@dataclass(frozen=True, slots=True)
class _ReasoningPart:
    """One of the two places where reasoning may stand, and its events."""

    field: str
    type: str
    text_event: str
    part_event: str
    index: str

    def of(self, text: str) -> dict[str, Any]:
        return {"type": self.type, "text": text}

    def event(self, output: ResponseOutput, what: str, **fields: object) -> StreamEvent:
        return output._of_item(f"response.{self.text_event}.{what}", **{self.index: 0}, **fields)

    def added(self, output: ResponseOutput) -> StreamEvent:
        return output._of_item(f"response.{self.part_event}.added", **{self.index: 0}, part=self.of(""))

    def done(self, output: ResponseOutput, text: str) -> StreamEvent:
        return output._of_item(f"response.{self.part_event}.done", **{self.index: 0}, part=self.of(text))


_REASONING = _ReasoningPart("content", "reasoning_text", "reasoning_text", "content_part", "content_index")
_SUMMARY = _ReasoningPart(
    "summary", "summary_text", "reasoning_summary_text", "reasoning_summary_part", "summary_index"
)


def logprob_object(entry: TokenLogprob) -> dict[str, Any]:
    """One token as an item has it."""
    return {
        "token": entry.token,
        "bytes": list(entry.data),
        "logprob": entry.logprob,
        "top_logprobs": [
            {"token": top.token, "bytes": list(top.data), "logprob": top.logprob} for top in entry.top
        ],
    }


def _brief(entry: TokenLogprob) -> dict[str, Any]:
    return _without_bytes(logprob_object(entry))


def _without_bytes(entry: Mapping[str, Any]) -> dict[str, Any]:
    """One token as stream events have it."""
    top = [{"token": other["token"], "logprob": other["logprob"]} for other in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}


def _text_part(text: str, logprobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}
