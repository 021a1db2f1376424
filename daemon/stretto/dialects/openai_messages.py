"""Messages of a chat request. Their types are the schema's business; here is what one message means beside the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.conversation.messages import Message, Role, TextPart, ToolCall
from stretto.dialects.openai_calls import OpenCalls, check_arguments
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

    A tool message must answer a call that the assistant made before and that nothing has answered yet; see OpenCalls.

    Raises:
        InvalidRequest: ``unsupported_content``, ``invalid_message``, ``invalid_tool_arguments``, ``invalid_tool_result``, each with the
            path of what is wrong.
    """
    open_calls = OpenCalls()
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
            open_calls.answer(answers, f"{path}.tool_call_id")
        parsed.append(
            Message(
                role=role,
                content=_content(message.get("content"), path),
                name=message.get("name"),
                tool_calls=calls,
                tool_call_id=answers,
                reasoning=_reasoning(message) if role == "assistant" else None,
            )
        )
    return tuple(parsed)


def _reasoning(message: Mapping[str, Any]) -> str | None:
    """Both names are in use; an empty text is none."""
    return message.get("reasoning_content") or message.get("reasoning") or None


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


def _tool_calls(calls: Sequence[Mapping[str, Any]], path: str, open_calls: OpenCalls) -> tuple[ToolCall, ...]:
    parsed = []
    for index, call in enumerate(calls):
        where = f"{path}.tool_calls[{index}]"
        if call["type"] != "function":
            raise InvalidRequest(
                f"'{where}.type' is {shown(call['type'])}; it must be \"function\".",
                code="unsupported_value",
                param=f"{where}.type",
            )
        open_calls.open(call["id"], f"{where}.id")
        arguments = call["function"]["arguments"]
        check_arguments(arguments, f"{where}.function.arguments")
        parsed.append(ToolCall(call["id"], call["function"]["name"], arguments))
    return tuple(parsed)
