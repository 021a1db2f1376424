"""Rendering answers as OpenAI's Chat Completions: one JSON object, or server-sent events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stretto.conversation.events import Done, Event, Finish, TextDelta, TokenLogprob, Usage
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
        texts: list[list[str]] = [[] for _ in range(self._request.n)]
        logprobs: list[list[TokenLogprob]] = [[] for _ in range(self._request.n)]
        reasons: list[str | None] = [None] * self._request.n
        usage: Usage | None = None
        for event in events:
            if isinstance(event, TextDelta):
                texts[event.index].append(event.text)
                logprobs[event.index].extend(event.logprobs)
            elif isinstance(event, Finish):
                reasons[event.index] = event.reason
            elif isinstance(event, Done):
                usage = event.usage
        if usage is None or None in reasons:
            raise ValueError("an answer is complete only with a Finish for each choice and Done")
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(text), "refusal": None},
                "logprobs": self._logprobs_object(logprobs[index]),
                "finish_reason": reasons[index],
            }
            for index, text in enumerate(texts)
        ]
        reply = {
            "id": self._request.id,
            "object": "chat.completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": usage_object(usage),
        }
        return dumps(reply).encode()

    def start(self, prompt_tokens: int) -> bytes:
        """The first frames: one for each choice, with the role."""
        delta = {"role": "assistant", "content": "", "refusal": None}
        return b"".join(self._frame(index, delta, None) for index in range(self._request.n))

    def event(self, event: Event) -> bytes:
        """The frame for an event; empty when it has none."""
        if isinstance(event, TextDelta):
            logprobs = (
                b"null" if not self._logprobs else dumps(self._logprobs_object(event.logprobs)).encode()
            )
            text = dumps(event.text).encode()
            return self._before[event.index] + text + b'},"logprobs":' + logprobs + self._after
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


def _token_object(token: str, logprob: float | None, data: bytes) -> dict[str, object]:
    """``bytes`` is null for a control token, which stands for none."""
    return {"token": token, "logprob": logprob, "bytes": list(data) if data else None}
