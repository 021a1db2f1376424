"""Calls of a conversation and their answers: what OpenAI's dialects ask of them alike."""

from __future__ import annotations

import json

from stretto.dialects.json_body import load_json
from stretto.errors import InvalidRequest
from stretto.schemas import shown

_WORDS = ("true", "false", "null", "-")
_ESCAPE_CHARS = 6


class OpenCalls:
    """The calls of a conversation that nothing has answered yet.

    Calls may stay unanswered (a client that was stopped leaves them so), and ids may come again once answered.
    """

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def open(self, call_id: str, path: str) -> None:
        """The assistant calls.

        Raises:
            InvalidRequest: ``invalid_message``; another call with this id has no answer yet.
        """
        if call_id in self._ids:
            raise InvalidRequest(
                f"'{path}' is {shown(call_id)}, as is that of another call that has no answer yet.",
                code="invalid_message",
                param=path,
                remedy="Give each call an id of its own.",
            )
        self._ids.add(call_id)

    def answer(self, call_id: str, path: str) -> None:
        """A call is answered.

        Raises:
            InvalidRequest: ``invalid_tool_result``; there is no such call.
        """
        if call_id not in self._ids:
            raise InvalidRequest(
                f"'{path}' is {shown(call_id)}; no call of the assistant before it has that id and is still without an answer.",
                code="invalid_tool_result",
                param=path,
            )
        self._ids.discard(call_id)


def check_arguments(arguments: str, path: str) -> None:
    """Arguments are the text of a JSON object; an empty text, as some clients write, is one without members.

    Those of a call that the limit cut off come back as the beginning of such a text.

    Raises:
        InvalidRequest: ``invalid_tool_arguments``.
    """
    if not arguments.strip():
        return
    try:
        value = load_json(arguments.encode(), what=f"'{path}'")
    except InvalidRequest as error:
        if _is_beginning(arguments):
            return
        raise InvalidRequest(error.message, code="invalid_tool_arguments", param=path) from error
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"'{path}' is the JSON text of {shown(value)}; it must be that of an object.",
            code="invalid_tool_arguments",
            param=path,
        )


def _is_beginning(text: str) -> bool:
    """Whether a text is the beginning of a JSON object, and nothing is wrong with it but that it ends."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        rest = text[error.pos :].strip()
        ended = not rest or error.msg.startswith("Unterminated string")
        ended |= error.msg.startswith("Invalid \\u") and len(rest) < _ESCAPE_CHARS
        return text.lstrip().startswith("{") and (ended or any(word.startswith(rest) for word in _WORDS))
    except (ValueError, RecursionError):
        pass
    return False
