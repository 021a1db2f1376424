"""Rendering answers as OpenAI's Completions: one JSON object, or server-sent events."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from stretto.conversation.events import Done, Echo, Event, Finish, TextDelta, TokenLogprob, Usage
from stretto.conversation.messages import Request
from stretto.dialects.json_text import dumps
from stretto.dialects.openai_errors import error_object
from stretto.dialects.openai_usage import usage_object
from stretto.errors import StrettoError

_DONE = b"data: [DONE]\n\n"

Lists = dict[str, list[Any]]
"""``tokens``, ``token_logprobs``, ``top_logprobs`` and ``text_offset``, of one length."""


class LogprobLists:
    """The log-probabilities of a choice's tokens, as the four lists that this dialect has; or of the next ones of them.

    ``text_offset`` counts characters of the choice's text, an echoed prompt included. Tokens that share a character have its offset.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._position = 0

    def of(self, event: Echo | TextDelta) -> Lists:
        """The lists for the next event of the choice."""
        lists = self._lists(event.logprobs, len(event.text) if isinstance(event, Echo) else None)
        if isinstance(event, Echo):
            self._decoder.reset()
            self._position = len(event.text)
        return lists

    def _lists(self, entries: Sequence[TokenLogprob], most: int | None) -> Lists:
        offsets = []
        for entry in entries:
            offsets.append(self._position if most is None else min(self._position, most))
            self._position += len(self._decoder.decode(entry.data))
        return {
            "tokens": [_shown(entry.token, entry.data) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [_alternatives(entry) for entry in entries],
            "text_offset": offsets,
        }


class CompletionRenderer:
    """Renders one request's answer.

    Args:
        request: what was asked.
        created: Unix seconds.
        model: the id of the model that answers.
    """

    def __init__(self, request: Request, created: int, model: str) -> None:
        self._request = request
        self._created = created
        self._model = model
        self._lists = [LogprobLists() for _ in range(request.choices)]
        head = f'{{"id":{dumps(request.id)},"object":"text_completion","created":{created},"model":{dumps(model)}'
        self._opening = f'data: {head},"choices":['
        self._ending = "]" + (',"usage":null' if request.include_usage else "") + "}\n\n"

    def json(self, events: Iterable[Event]) -> bytes:
        """The whole reply, from all the events of an answer."""
        texts: list[list[str]] = [[] for _ in self._lists]
        logprobs: list[Lists] = [{} for _ in self._lists]
        reasons: list[str | None] = [None] * len(self._lists)
        usage: Usage | None = None
        for event in events:
            if isinstance(event, (Echo, TextDelta)):
                texts[event.index].append(event.text)
                for name, values in (self._logprobs(event) or {}).items():
                    logprobs[event.index].setdefault(name, []).extend(values)
            elif isinstance(event, Finish):
                reasons[event.index] = event.reason
            elif isinstance(event, Done):
                usage = event.usage
        if usage is None or None in reasons:
            raise ValueError("an answer is complete only with a Finish for each choice and Done")
        choices = []
        for index, text in enumerate(texts):
            lists: Lists | None = None
            if self._request.logprobs is not None:
                lists = logprobs[index] or self._lists[index].of(TextDelta(index, ""))
            choices.append(_choice(index, "".join(text), lists, reasons[index]))
        reply = {
            "id": self._request.id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
            "choices": choices,
            "usage": usage_object(usage),
        }
        return dumps(reply).encode()

    def start(self, prompt_tokens: int) -> bytes:
        """Nothing: a choice has no head of its own."""
        return b""

    def event(self, event: Event) -> bytes:
        """The frame for an event; empty when it has none."""
        if isinstance(event, (Echo, TextDelta)):
            return self._frame(_choice(event.index, event.text, self._logprobs(event), None))
        if isinstance(event, Finish):
            return self._frame(_choice(event.index, "", None, event.reason))
        if isinstance(event, Done) and self._request.include_usage:
            return f'{self._opening}],"usage":{dumps(usage_object(event.usage))}}}\n\n'.encode()
        return b""

    def error(self, error: StrettoError) -> bytes:
        """The frame for an error after the first byte; clients raise it. ``end()`` comes after it all the same."""
        return f"data: {dumps(error_object(error))}\n\n".encode()

    def end(self) -> bytes:
        """The last frame."""
        return _DONE

    def _frame(self, choice: dict[str, object]) -> bytes:
        return f"{self._opening}{dumps(choice)}{self._ending}".encode()

    def _logprobs(self, event: Echo | TextDelta) -> Lists | None:
        return None if self._request.logprobs is None else self._lists[event.index].of(event)


def _choice(index: int, text: str, logprobs: Lists | None, reason: str | None) -> dict[str, object]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}


def _shown(token: str, data: bytes) -> str:
    """A token's text, or its bytes where they are no whole characters, in the form that OpenAI's API has for them."""
    try:
        return data.decode() if data else token
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _alternatives(entry: TokenLogprob) -> dict[str, float] | None:
    """The most likely tokens and, if it is none of them, the token itself; None where nothing was expected."""
    if entry.logprob is None:
        return None
    found = {_shown(top.token, top.data): top.logprob for top in entry.top}
    found.setdefault(_shown(entry.token, entry.data), entry.logprob)
    return found
