"""Turns in an order that a template refuses, or loses, in one that it takes.

Coding agents put text of the user after the results of calls, and instructions of the system between turns. Many templates know neither:
they want user and assistant to alternate, or look for the system's text at the beginning only, or have no place for it at all. What a
template does is tried once, on small conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stretto.conversation.messages import Message, Role, TextPart, ToolCall, ToolSpec
from stretto.conversation.template import ChatTemplate
from stretto.errors import InvalidRequest

_SIGN = "qzjxv"  # a text that no template has
_TOOL = ToolSpec("look", "Looks.", {"type": "object", "properties": {}})


def _said(role: Role, text: str = "x") -> Message:
    return Message(role, (TextPart(text),))


_CALL = Message("assistant", (TextPart("x"),), tool_calls=(ToolCall("abcdefghi", "look", "{}"),))
_RESULT = Message("tool", (TextPart("x"),), tool_call_id="abcdefghi")
_PLAIN = (_said("user"),)
_SYSTEM = ((_said("system", _SIGN), _said("user")),)
_SYSTEM_TWICE = ((_said("system"), _said("system", _SIGN), _said("user")),)
_LATE_SYSTEM = (
    (_said("system"), _said("user"), _said("system", _SIGN)),
    (_said("user"), _said("assistant"), _said("system", _SIGN), _said("user")),
)
_TWICE = ((_said("user"), _said("user", _SIGN)),)
_AFTER_RESULT = ((_said("user"), _CALL, _RESULT, _said("user", _SIGN)),)


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """The order in which a template takes turns.

    Attributes:
        late_system: a message of the system after others.
        twice: two turns of the user in a row.
        after_result: a turn of the user after the result of a call.
        system: a message of the system at the beginning.
        system_twice: two of them.
    """

    late_system: bool = True
    twice: bool = True
    after_result: bool = True
    system: bool = True
    system_twice: bool = True

    @classmethod
    def of(cls, template: ChatTemplate) -> TurnOrder:
        """That of a template. One that refuses the simplest conversation says so itself, later."""
        tools = ((), (_TOOL,)) if "tools" in template.reads else ((),)
        if not all(_takes(template, _PLAIN, offered, "x") for offered in tools):
            return cls()

        def takes(conversations: Sequence[Sequence[Message]]) -> bool:
            return all(_takes(template, each, offered, _SIGN) for each in conversations for offered in tools)

        return cls(
            takes(_LATE_SYSTEM),
            takes(_TWICE),
            len(tools) == 1 or takes(_AFTER_RESULT),
            takes(_SYSTEM),
            takes(_SYSTEM_TWICE),
        )

    def without_late_system(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The conversation in which the user says what the system says after the beginning, if that has no place."""
        if self.late_system:
            return tuple(messages)
        first = next(
            (index for index, message in enumerate(messages) if message.role != "system"), len(messages)
        )
        return tuple(
            replace(message, role="user") if message.role == "system" and index >= first else message
            for index, message in enumerate(messages)
        )

    def joined(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The conversation in which text that may not have a turn of its own is part of the one before; what the system says at the
        beginning, where it has no place, is the beginning of what the user says first."""
        turned: list[Message] = []
        for message in self._opened(messages):
            before = turned[-1].role if turned else None
            joins = message.role == "user" and (
                (before == "user" and not self.twice) or (before == "tool" and not self.after_result)
            )
            if joins:
                message = replace(turned[-1], content=_joined((turned[-1], message)))
                turned.pop()
            turned.append(message)
        return tuple(turned)

    def _opened(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The conversation with the system's text where it has a place at the beginning, or else with the user's."""
        count = next((index for index, each in enumerate(messages) if each.role != "system"), len(messages))
        if not count or (self.system and (count == 1 or self.system_twice)):
            return messages
        if self.system:
            return (replace(messages[0], content=_joined(messages[:count])), *messages[count:])
        if messages[count:] and messages[count].role == "user":
            count += 1
        first = replace(messages[count - 1], role="user", content=_joined(messages[:count]))
        return (first, *messages[count:])


def _joined(messages: Sequence[Message]) -> tuple[TextPart, ...]:
    return (TextPart("\n\n".join(filter(None, (message.text for message in messages)))),)


def _takes(template: ChatTemplate, messages: Sequence[Message], tools: Sequence[ToolSpec], sign: str) -> bool:
    try:
        return sign in template.render(messages, tools)
    except InvalidRequest:
        return False
