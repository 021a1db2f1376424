"""Turns of a Messages request as canonical messages. Their types are the schema's business; here is what they mean together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stretto.conversation.messages import Message, Role, TextPart, ToolCall
from stretto.dialects.anthropic_blocks import Block, Content, block_text, joined, text_of
from stretto.dialects.json_text import dumps
from stretto.errors import InvalidRequest
from stretto.schemas import shown

_SAYS_ERROR = re.compile(r"\W*(tool_use_)?error", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Conversation:
    """Canonical messages, and whether the last of them is the beginning of the answer."""

    messages: tuple[Message, ...]
    continues: bool


def parse_conversation(system: Content | None, turns: Sequence[Mapping[str, Any]]) -> Conversation:
    """Read the system prompt and the turns, which fit the schema.

    A result must answer a call that the assistant made before and that nothing has answered yet; calls may stay unanswered (a client
    that was stopped leaves them so). A result is a message of its own, in its place among the user's text. Blocks of thinking are
    kept as the turn's reasoning; redacted ones, which nobody here can read, are left out.

    Raises:
        InvalidRequest: ``unsupported_content``, ``invalid_message``, ``invalid_tool_result``, each with the path of what is wrong.
    """
    reader = _Reader()
    if system:
        reader.add_text("system", text_of(system, "system"))
    for index, turn in enumerate(turns):
        path, content = f"messages[{index}].content", turn["content"]
        if turn["role"] == "assistant":
            reader.add_assistant(content, path)
        elif turn["role"] == "user":
            reader.add_user(content, path)
        else:
            reader.add_text("system", text_of(content, path))
    continues = turns[-1]["role"] == "assistant" and reader.leave_open(f"messages[{len(turns) - 1}]")
    return Conversation(tuple(reader.messages), continues)


class _Reader:
    """Gathers messages; text of the same role in a row is joined."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._open_calls: set[str] = set()

    def add_text(self, role: Role, text: str) -> None:
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == role:
            self.messages[-1] = replace(last, content=_parts(joined([last.text, text])))
        elif text or role == "user":
            self.messages.append(Message(role, _parts(text)))

    def add_user(self, content: Content, path: str) -> None:
        if isinstance(content, str):
            self.add_text("user", content)
            return
        texts: list[str] = []
        results = 0
        for index, block in enumerate(content):
            where = f"{path}[{index}]"
            if block["type"] != "tool_result":
                texts.append(block_text(block, where))
                continue
            if texts:
                self.add_text("user", joined(texts))
                texts.clear()
            self._add_result(block, where)
            results += 1
        if texts or not results:
            self.add_text("user", joined(texts))

    def add_assistant(self, content: Content, path: str) -> None:
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        text, thoughts, calls = "", [], []
        for index, block in enumerate(blocks):
            where = f"{path}[{index}]"
            if block["type"] == "tool_use":
                calls.append(self._call(block, where))
            elif block["type"] == "thinking":
                thoughts.append(block["thinking"])
            elif block["type"] != "redacted_thinking":
                text += block_text(block, where)  # as it was generated: nothing between
        message = Message("assistant", _parts(text), tool_calls=tuple(calls), reasoning=_reasoning(thoughts))
        if self.messages and self.messages[-1].role == "assistant":
            message = _merged(self.messages.pop(), message)
        self.messages.append(message)

    def leave_open(self, path: str) -> bool:
        """Take the last message as the beginning of the answer; an empty one is none, and is taken away."""
        last = self.messages[-1]
        if last.tool_calls:
            raise InvalidRequest(
                f"'{path}' ends the conversation with calls that have no result; nothing can follow them but their results.",
                code="invalid_message",
                param=path,
                remedy="Send a turn of the user with a tool_result for each.",
            )
        if last.reasoning and not last.text:
            raise InvalidRequest(
                f"'{path}' ends the conversation with thinking; an answer can only be continued from its text.",
                code="invalid_message",
                param=path,
            )
        if not last.text:
            self.messages.pop()
        if not self.messages:
            raise InvalidRequest(
                "'messages' holds nothing to answer.", code="invalid_message", param="messages"
            )
        return bool(last.text)

    def _call(self, block: Block, path: str) -> ToolCall:
        if block["id"] in self._open_calls:
            raise InvalidRequest(
                f"'{path}.id' is {shown(block['id'])}, as is that of another call that has no result yet.",
                code="invalid_message",
                param=f"{path}.id",
                remedy="Give each call an id of its own.",
            )
        self._open_calls.add(block["id"])
        return ToolCall(block["id"], block["name"], dumps(block["input"]))

    def _add_result(self, block: Block, path: str) -> None:
        call_id = block["tool_use_id"]
        if call_id not in self._open_calls:
            raise InvalidRequest(
                f"'{path}.tool_use_id' is {shown(call_id)}; no call of the assistant before it has that id and is still without "
                "a result.",
                code="invalid_tool_result",
                param=f"{path}.tool_use_id",
            )
        self._open_calls.discard(call_id)
        text = text_of(block.get("content") or "", f"{path}.content")
        if block.get("is_error") and _SAYS_ERROR.match(text) is None:
            text = f"Error: {text}"
        self.messages.append(Message("tool", _parts(text), tool_call_id=call_id))


def _parts(text: str) -> tuple[TextPart, ...]:
    return (TextPart(text),) if text else ()


def _reasoning(thoughts: Sequence[str]) -> str | None:
    return "\n".join(filter(None, thoughts)) or None


def _merged(first: Message, second: Message) -> Message:
    """Two turns of the assistant in a row as one; its text reads on."""
    return replace(
        first,
        content=_parts(first.text + second.text),
        tool_calls=first.tool_calls + second.tool_calls,
        reasoning=_reasoning([first.reasoning or "", second.reasoning or ""]),
    )
