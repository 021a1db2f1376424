"""Hermes, Qwen 2.5 and Qwen 3: JSON between ``<tool_call>`` tags. Models whose templates know no tools are told to write the same."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect
from stretto.conversation.tool_dialects.json_calls import read_object
from stretto.conversation.tool_dialects.scanner import Scanner, Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    """One call in a tag, or several: in a list, or one after the other."""
    yield from scanner.take(_OPEN)
    yield from scanner.spaces()
    listed = yield from scanner.take("[", "")
    yield from scanner.spaces()
    while True:
        yield from read_object(scanner)
        yield from scanner.spaces()
        if listed and (yield from scanner.take(",", "]")) == "]":
            break
        if not listed and (yield from scanner.peek()) != "{":
            break
        yield from scanner.spaces()
    yield from scanner.spaces()
    yield from scanner.take(_CLOSE)
    scanner.end_call()


_SYNTAX = Syntax(
    before=f'{_OPEN}\n{{"name": "',
    middle='", "arguments": ',
    after=f"}}\n{_CLOSE}",
    between="\n",
)

HERMES = ToolDialect("hermes", ("<tool_call>",), (_OPEN,), _SYNTAX, _read)
GENERIC = ToolDialect("json", (), (_OPEN,), _SYNTAX, _read, described=True)
