"""Rendering answers as OpenAI's Chat Completions: one JSON object, or server-sent events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stretto.conversation import offered_tools
from stretto.conversation.events import (
    Done,
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from stretto.conversation.messages import Request
from stretto.dialects.json_text import dumps
from stretto.dialects.openai_errors import error_object
from stretto.dialects.openai_usage import usage_object
from stretto.errors import StrettoError

_DONE = b"data: [DONE]\n\n"


class ChatRenderer:
    """Renders one request's answer. Keeps nothing of it: what it gives depends on the event alone.

    Args:
        request: what was asked.
        created: Unix seconds.
        model: the id of the model that answers.
    """

    def __init__(self, request: Request, created: int, model: str) -> None:
        self._request = request
        self._created = created
        self._model = model
        self._logprobs = request.logprobs is not None
        # Where functions are offered, an answer without text has null for it, as one has that only calls them.
        self._no_text = None if offered_tools(request) else ""
        usage = ',"usage":null' if request.include_usage else ""
        opening = f'{{"id":{dumps(request.id)},"object":"chat.completion.chunk","created":{created},"model":{dumps(model)}'
        # Everything but the text is the same in each frame of a choice.
        self._opening = f'data: {opening},"choices":['
        self._before = tuple(
            f'{self._opening}{{"index":{index},"delta":{{"content":'.encode() for index in range(request.n)
        )
        self._after = f',"finish_reason":null}}]{usage}}}\n\n'.encode()
        self._ending = f"]{usage}}}\n\n"

    def json(self, events: Iterable[Event]) -> bytes:
        """The whole reply, from all the events of an answer."""
        choices = [_Choice() for _ in range(self._request.n)]
        usage: Usage | None = None
        for event in events:
            if isinstance(event, Done):
                usage = event.usage
            else:
                choices[event.index].add(event)
        if usage is None or any(choice.reason is None for choice in choices):
            raise ValueError("an answer is complete only with a Finish for each choice and Done")
        reply = {
            "id": self._request.id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": [
                {
                    "index": index,
                    "message": self._message(choice),
                    "logprobs": self._logprobs_object(choice.logprobs),
                    "finish_reason": choice.reason,
                }
                for index, choice in enumerate(choices)
            ],
            "usage": usage_object(usage),
        }
        return dumps(reply).encode()

    def start(self, prompt_tokens: int) -> bytes:
        """The first frames: one for each choice, with the role."""
        delta = {"role": "assistant", "content": self._no_text, "refusal": None}
        return b"".join(self._frame(index, delta, None) for index in range(self._request.n))

    def event(self, event: Event) -> bytes:
        """The frame for an event; empty when it has none."""
        if isinstance(event, TextDelta):
            logprobs = (
                b"null" if not self._logprobs else dumps(self._logprobs_object(event.logprobs)).encode()
            )
            text = dumps(event.text).encode()
            return self._before[event.index] + text + b'},"logprobs":' + logprobs + self._after
        if isinstance(event, ReasoningDelta):
            return self._frame(event.index, {"reasoning_content": event.text}, None)
        if isinstance(event, ToolCallStart):
            function = {"name": event.name, "arguments": ""}
            call = {"index": event.call, "id": event.id, "type": "function", "function": function}
            return self._frame(event.index, {"tool_calls": [call]}, None)
        if isinstance(event, ToolCallDelta):
            call = {"index": event.call, "function": {"arguments": event.arguments}}
            return self._frame(event.index, {"tool_calls": [call]}, None)
        if isinstance(event, Finish):
            return self._frame(event.index, {}, event.reason)
        if isinstance(event, Done) and self._request.include_usage:
            return self._usage_frame(event)
        return b""

    def error(self, error: StrettoError) -> bytes:
        """The frame for an error after the first byte; clients raise it. ``end()`` comes after it all the same."""
        return f"data: {dumps(error_object(error))}\n\n".encode()

    def end(self) -> bytes:
        """The last frame."""
        return _DONE

    def _message(self, choice: _Choice) -> dict[str, object]:
        """The reasoning and the calls are there only where there are any."""
        message: dict[str, object] = {
            "role": "assistant",
            "content": "".join(choice.text) or self._no_text,
            "refusal": None,
        }
        if choice.reasoning:
            message["reasoning_content"] = "".join(choice.reasoning)
        if choice.calls:
            message["tool_calls"] = [
                {
                    "id": start.id,
                    "type": "function",
                    "function": {"name": start.name, "arguments": "".join(arguments)},
                }
                for start, arguments in choice.calls
            ]
        return message

    def _frame(self, index: int, delta: Mapping[str, object], reason: str | None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        return f"{self._opening}{dumps(choice)}{self._ending}".encode()

    def _usage_frame(self, done: Done) -> bytes:
        return f'{self._opening}],"usage":{dumps(usage_object(done.usage))}}}\n\n'.encode()

    def _logprobs_object(self, entries: Sequence[TokenLogprob]) -> dict[str, object] | None:
        if not self._logprobs:
            return None
        content = [
            {
                **_token_object(entry.token, entry.logprob, entry.data),
                "top_logprobs": [_token_object(top.token, top.logprob, top.data) for top in entry.top],
            }
            for entry in entries
        ]
        return {"content": content, "refusal": None}


class _Choice:
    """One answer's parts, gathered from its events."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[tuple[ToolCallStart, list[str]]] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason: str | None = None

    def add(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self.text.append(event.text)
            self.logprobs.extend(event.logprobs)
        elif isinstance(event, ReasoningDelta):
            self.reasoning.append(event.text)
        elif isinstance(event, ToolCallStart):
            self.calls.append((event, []))
        elif isinstance(event, ToolCallDelta):
            self.calls[event.call][1].append(event.arguments)
        elif isinstance(event, Finish):
            self.reason = event.reason


def _token_object(token: str, logprob: float | None, data: bytes) -> dict[str, object]:
    """``bytes`` is null for a control token, which stands for none."""
    return {"token": token, "logprob": logprob, "bytes": list(data) if data else None}
