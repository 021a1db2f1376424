"""Calls of a conversation and their answers: what OpenAI's dialects ask of them alike."""

from __future__ import annotations

from stretto.dialects.json_body import load_json
from stretto.errors import InvalidRequest
from stretto.schemas import shown


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

    Raises:
        InvalidRequest: ``invalid_tool_arguments``.
    """
    if not arguments.strip():
        return
    try:
        value = load_json(arguments.encode(), what=f"'{path}'")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, code="invalid_tool_arguments", param=path) from error
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"'{path}' is the JSON text of {shown(value)}; it must be that of an object.",
            code="invalid_tool_arguments",
            param=path,
        )
