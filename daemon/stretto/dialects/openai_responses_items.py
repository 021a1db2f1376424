"""Items of a Responses conversation as canonical messages. Their types are the schema's business; here is what they mean together."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.conversation.messages import Message, Role, TextPart, ToolCall
from stretto.dialects.openai_calls import OpenCalls, check_arguments
from stretto.dialects.openai_responses_tools import FunctionNames
from stretto.errors import InvalidRequest
from stretto.schemas import shown

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_TEXT_KEYS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_SEAL = "stretto-reasoning-1:"
_BETWEEN = "\n\n"


@dataclass(slots=True)
class _Turn:
    """What belongs to one turn of the assistant: its items come one after the other."""

    reasoning: list[str] = field(default_factory=list)
    text: tuple[TextPart, ...] | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> Message:
        reasoning = "\n".join(self.reasoning) if self.reasoning else None
        return Message("assistant", self.text or (), tool_calls=tuple(self.calls), reasoning=reasoning)


class ItemReader:
    """Reads the items of one conversation, one after the other.

    Reasoning, a message and calls of the assistant that follow each other are one turn; a second message begins another. What
    the system says before anybody else, ``instructions`` first, becomes one message, its parts a blank line apart: many chat templates
    know of one.
    """

    def __init__(self, instructions: str | None, names: FunctionNames) -> None:
        self._messages: list[Message] = []
        self._names = names
        self._calls = OpenCalls()
        self._turn: _Turn | None = None
        if instructions:
            self._add_system((TextPart(instructions),))

    def read(self, items: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
        """Canonical messages from items that fit the schema.

        Raises:
            InvalidRequest: ``unsupported_value``, ``unsupported_content``, ``invalid_message``, ``invalid_tool_arguments``,
                ``invalid_tool_result``, each with the path of what is wrong.
        """
        for index, item in enumerate(items):
            path = f"input[{index}]"
            kind = item.get("type", "message")
            if kind == "message":
                self._message(item, path)
            elif kind == "function_call":
                self._call(item, path)
            elif kind == "function_call_output":
                self._output(item, path)
            elif kind == "reasoning":
                text = reasoning_text(item)
                if text:
                    self._open_turn().reasoning.append(text)
            else:
                raise _unknown_item(kind, path)
        self._end_turn()
        return tuple(self._messages)

    def _message(self, item: Mapping[str, Any], path: str) -> None:
        role = _ROLES[item["role"]]
        content = _content(item["content"], f"{path}.content")
        if role == "assistant":
            turn = self._open_turn()
            if turn.text is not None or turn.calls:
                self._end_turn()
                turn = self._open_turn()
            turn.text = content
            return
        self._end_turn()
        if role == "system" and all(message.role == "system" for message in self._messages):
            self._add_system(content)
        else:
            self._messages.append(Message(role, content))

    def _add_system(self, content: tuple[TextPart, ...]) -> None:
        if self._messages:
            content = (*self._messages.pop().content, TextPart(_BETWEEN), *content)
        self._messages.append(Message("system", content))

    def _call(self, item: Mapping[str, Any], path: str) -> None:
        self._calls.open(item["call_id"], f"{path}.call_id")
        if item.get("status") != "incomplete":  # one that was cut off may be the beginning of JSON
            check_arguments(item["arguments"], f"{path}.arguments")
        name = self._names.offered(item["name"], item.get("namespace"))
        self._open_turn().calls.append(ToolCall(item["call_id"], name, item["arguments"]))

    def _output(self, item: Mapping[str, Any], path: str) -> None:
        self._end_turn()
        self._calls.answer(item["call_id"], f"{path}.call_id")
        content = _content(item["output"], f"{path}.output")
        self._messages.append(Message("tool", content, tool_call_id=item["call_id"]))

    def _open_turn(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _end_turn(self) -> None:
        if self._turn is not None and (self._turn.text is not None or self._turn.calls):
            self._messages.append(self._turn.message())
        self._turn = None


def seal_reasoning(text: str) -> str:
    """Reasoning as a client may keep it for us without reading it. It is no secret: the client may well know how to open it."""
    return _SEAL + base64.urlsafe_b64encode(text.encode()).decode()


def open_reasoning(sealed: str) -> str | None:
    """What ``seal_reasoning`` closed, or None for what another server did."""
    if not sealed.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(_SEAL), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def reasoning_text(item: Mapping[str, Any]) -> str | None:
    """What a reasoning item tells, in the first of its forms that tells anything."""
    content = "\n".join(part["text"] for part in item.get("content") or ())
    summary = "\n".join(part["text"] for part in item.get("summary") or ())
    return content or open_reasoning(item.get("encrypted_content") or "") or summary or None


def _content(content: str | Sequence[Mapping[str, Any]], path: str) -> tuple[TextPart, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    parts = []
    for index, part in enumerate(content):
        key = _TEXT_KEYS.get(part["type"])
        if key is None:
            raise InvalidRequest(
                f"'{path}[{index}].type' is {shown(part['type'])}; only text can be read.",
                code="unsupported_content",
                param=f"{path}[{index}].type",
                remedy="Send text; this model is served without images, sound and files.",
            )
        parts.append(TextPart(part[key]))
    return tuple(parts)


def _unknown_item(kind: str, path: str) -> InvalidRequest:
    if kind == "item_reference":
        return InvalidRequest(
            f"'{path}' refers to an item that was sent before; nothing is stored here.",
            code="unsupported_value",
            param=f"{path}.type",
            remedy="Send the item itself; many clients do so when store is false.",
        )
    return InvalidRequest(
        f"'{path}.type' is {shown(kind)}; messages, function calls with their outputs, and reasoning can be read.",
        code="unsupported_value",
        param=f"{path}.type",
        remedy="Leave the item out, or begin a new conversation.",
    )
