"""Messages of a chat request. Their types are the schema's business; here is what one message means beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.conversation.messages import Message, Role, TextPart, ToolCall
from stretto.dialects.json_body import load_json
from stretto.errors import InvalidRequest
from stretto.schemas import shown

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def parse_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Canonical messages from ones that fit the schema.

    A tool message must answer a call that the assistant made before and that nothing has answered yet; calls may stay
    unanswered (a client that was stopped leaves them so). Ids may come again once answered.

    Raises:
        InvalidRequest: ``unsupported_content``, ``invalid_message``, ``invalid_tool_arguments``, ``invalid_tool_result``, each with the
            path of what is wrong.
    """
    open_calls: set[str] = set()
    parsed = []
    for index, message in enumerate(messages):
        path = f"messages[{index}]"
        role = _ROLES[message["role"]]
        calls: tuple[ToolCall, ...] = ()
        answers = None
        if role == "assistant":
            calls = _tool_calls(message.get("tool_calls") or (), path, open_calls)
            if message.get("content") is None and not calls:
                raise InvalidRequest(
                    f"'{path}.content' is missing; an assistant message has content, tool_calls, or both.",
                    code="invalid_message",
                    param=f"{path}.content",
                )
        elif role == "tool":
            answers = message["tool_call_id"]
            _answer(answers, path, open_calls)
        parsed.append(
            Message(
                role=role,
                content=_content(message.get("content"), path),
                name=message.get("name"),
                tool_calls=calls,
                tool_call_id=answers,
                reasoning=message.get("reasoning_content") if role == "assistant" else None,
            )
        )
    return tuple(parsed)


def _content(content: str | Sequence[Mapping[str, Any]] | None, path: str) -> tuple[TextPart, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    for index, part in enumerate(content):
        if part["type"] != "text":
            raise InvalidRequest(
                f"'{path}.content[{index}].type' is {shown(part['type'])}; only \"text\" parts can be read.",
                code="unsupported_content",
                param=f"{path}.content[{index}].type",
                remedy="Send text; this model is served without images, sound and files.",
            )
    return tuple(TextPart(part["text"]) for part in content)


def _tool_calls(calls: Sequence[Mapping[str, Any]], path: str, open_calls: set[str]) -> tuple[ToolCall, ...]:
    parsed = []
    for index, call in enumerate(calls):
        where = f"{path}.tool_calls[{index}]"
        if call["type"] != "function":
            raise InvalidRequest(
                f"'{where}.type' is {shown(call['type'])}; it must be \"function\".",
                code="unsupported_value",
                param=f"{where}.type",
            )
        if call["id"] in open_calls:
            raise InvalidRequest(
                f"'{where}.id' is {shown(call['id'])}, as is that of another call that has no answer yet.",
                code="invalid_message",
                param=f"{where}.id",
                remedy="Give each call an id of its own.",
            )
        open_calls.add(call["id"])
        arguments = call["function"]["arguments"]
        _check_arguments(arguments, f"{where}.function.arguments")
        parsed.append(ToolCall(call["id"], call["function"]["name"], arguments))
    return tuple(parsed)


def _check_arguments(arguments: str, path: str) -> None:
    """Arguments are the text of a JSON object; an empty text, as some clients write, is one without members."""
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


def _answer(call_id: str, path: str, open_calls: set[str]) -> None:
    if call_id not in open_calls:
        raise InvalidRequest(
            f"'{path}.tool_call_id' is {shown(call_id)}; no call of the assistant before it has that id and is still "
            "without an answer.",
            code="invalid_tool_result",
            param=f"{path}.tool_call_id",
        )
    open_calls.discard(call_id)
