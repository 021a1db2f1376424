"""Tools for models whose chat template has no place for them: told in the system message, and written as text in the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stretto.conversation.messages import Message, TextPart, ToolSpec
from stretto.conversation.template import tool_dict
from stretto.conversation.tool_dialects import ToolDialect
from stretto.conversation.tool_dialects.dialect import compact

_PREFACE = (
    "You can call functions. They are described within <tools></tools>, one JSON object a line:\n<tools>\n{tools}\n</tools>\n\n"
    "To call one, answer with its name and its arguments as a JSON object within <tool_call></tool_call>:\n{example}"
)


def described(
    messages: Sequence[Message], tools: Sequence[ToolSpec], dialect: ToolDialect
) -> tuple[Message, ...]:
    """The conversation as a template without tools can write it.

    The first system message, which is made if there is none, begins with its own text and ends with the functions. Calls stand in
    their turns as the model would write them; results are told by the user, those of one turn together.
    """
    turned: list[Message] = []
    after_result = False
    for message in messages:
        if message.role == "tool":
            result = f"<tool_response>\n{message.text}\n</tool_response>"
            if after_result:
                before = turned.pop()
                result = f"{before.text}\n{result}"
            turned.append(Message("user", (TextPart(result),)))
            after_result = True
            continue
        after_result = False
        if message.tool_calls:
            calls = dialect.syntax.between.join(
                dialect.write(call.name, call.arguments.strip() or "{}") for call in message.tool_calls
            )
            text = f"{message.text}\n{calls}" if message.text else calls
            message = replace(message, content=(TextPart(text),), tool_calls=())
        turned.append(message)
    if not tools:
        return tuple(turned)
    listed = "\n".join(compact(tool_dict(tool)) for tool in tools)
    preface = _PREFACE.format(tools=listed, example=dialect.write("NAME", "{ARGUMENTS}"))
    if turned and turned[0].role == "system":
        first = replace(turned[0], content=(TextPart(f"{turned[0].text}\n\n{preface}"),))
        return (first, *turned[1:])
    return (Message("system", (TextPart(preface),)), *turned)
