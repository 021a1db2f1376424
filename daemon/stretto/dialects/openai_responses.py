"""OpenAI's Responses dialect, without state on the server: its public face, and its renderer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stretto.conversation.events import Done, Event, Finish, FinishReason, Usage
from stretto.conversation.messages import Request
from stretto.dialects.dialect import Dialect
from stretto.dialects.json_text import dumps
from stretto.dialects.openai_errors import error_body
from stretto.dialects.openai_responses_items import seal_reasoning
from stretto.dialects.openai_responses_output import ResponseOutput, StreamEvent
from stretto.dialects.openai_responses_request import RESPONSES_SCHEMA, Reflected, parse_responses
from stretto.errors import StrettoError

__all__ = ["RESPONSES", "RESPONSES_SCHEMA", "ResponsesRenderer", "error_reply", "parse_responses"]

ID_PREFIX = "resp_"

_FIELDS = {"messages": "input", "max_tokens": "max_output_tokens"}
"""What the stages of a request call a field, to its name here."""

_INCOMPLETE: dict[FinishReason, str] = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponsesRenderer:
    """Renders one request's answer. A stream's last event has the very object that is the reply without streaming.

    Args:
        request: what was asked, by ``parse_responses``.
        created: Unix seconds.
        model: the id of the model that answers.

    Raises:
        TypeError: another dialect's request.
    """

    def __init__(self, request: Request, created: int, model: str) -> None:
        if not isinstance(request.reflected, Reflected):
            raise TypeError("the request was not read by this dialect")
        self._request = request
        self._created = created
        self._model = model
        self._fields = request.reflected.fields
        self._number = 0
        self._reason: FinishReason | None = None
        names = request.reflected.names.wire
        self._output = ResponseOutput(
            new_id=self._new_id,
            wire_name=lambda name: names.get(name, (name, None)),
            seal=seal_reasoning if request.reflected.sealed else None,
            summarised=request.reflected.summarised,
        )

    def json(self, events: Iterable[Event]) -> bytes:
        """The whole reply, from all the events of an answer."""
        for event in events:
            self._note(event)
            if isinstance(event, Done):
                return dumps(self._ended(event.usage)).encode()
        raise ValueError("an answer is complete only with Done")

    def start(self, prompt_tokens: int) -> bytes:
        """The first frames: ``response.created`` and ``response.in_progress``."""
        response = self._response("in_progress")
        return self._frames(
            {"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")
        )

    def event(self, event: Event) -> bytes:
        """The frames for an event."""
        if isinstance(event, Done):
            response = self._ended(event.usage)
            return self._frames([{"type": f"response.{response['status']}", "response": response}])
        return self._frames(self._note(event))

    def error(self, error: StrettoError) -> bytes:
        """The frames for an error after the first byte: what was open ends, then ``error``, then ``response.failed``."""
        events = self._output.abandon()
        said = {"type": "error", "code": error.code, "message": str(error), "param": error.param}
        failed = self._response("failed", error={"code": _failure_code(error), "message": str(error)})
        return self._frames([*events, said, {"type": "response.failed", "response": failed}])

    def end(self) -> bytes:
        """Nothing: a response's last event says that it is the last."""
        return b""

    def _note(self, event: Event) -> Sequence[StreamEvent]:
        if isinstance(event, Finish):
            self._reason = event.reason
        return self._output.feed(event)

    def _ended(self, usage: Usage) -> dict[str, Any]:
        if self._reason is None:
            raise ValueError("an answer is complete only with a Finish")
        why = _INCOMPLETE.get(self._reason)
        return self._response("incomplete" if why else "completed", usage=usage, incomplete=why)

    def _response(
        self,
        status: str,
        *,
        usage: Usage | None = None,
        incomplete: str | None = None,
        error: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        return {
            "id": self._request.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": error,
            "incomplete_details": None if incomplete is None else {"reason": incomplete},
            "model": self._model,
            "output": list(self._output.items),
            **self._fields,
            "usage": None if usage is None else _usage_object(usage),
        }

    def _frames(self, events: Iterable[StreamEvent]) -> bytes:
        frames = []
        for event in events:
            numbered = {"type": event["type"], "sequence_number": self._number, **event}
            self._number += 1
            frames.append(f"event: {event['type']}\ndata: {dumps(numbered)}\n\n")
        return "".join(frames).encode()

    def _new_id(self, prefix: str, index: int) -> str:
        return f"{prefix}_{self._request.id.removeprefix(ID_PREFIX)}{index:02x}"


def _usage_object(usage: Usage) -> dict[str, object]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.stored_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        **usage.cost,
    }


def _failure_code(error: StrettoError) -> str:
    """The API's own word for a failure; agents try again after some of them and give up after others."""
    if error.status == 429:
        return "rate_limit_exceeded"
    return "server_error" if error.status >= 500 else "invalid_prompt"


def error_reply(error: StrettoError, request_id: str) -> tuple[int, bytes]:
    """An error reply's status and body: OpenAI's envelope, with this dialect's names of the fields."""
    names = {} if error.code == "unknown_parameter" else _FIELDS
    return error.status, error_body(error, names)


RESPONSES = Dialect(id_prefix=ID_PREFIX, parse=parse_responses, renderer=ResponsesRenderer)
