"""Hermes, Qwen 2.5 and Qwen 3: JSON between ``<tool_call>`` tags. Models whose templates know no tools are told to write the same.

Small models forget the tags, and answer with the JSON alone, or in a code block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect
from stretto.conversation.tool_dialects.json_calls import read_object
from stretto.conversation.tool_dialects.scanner import Scanner, Steps

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FENCE, _FENCE_END = "```json", "```"
_KEYS = ("name",)


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    """One call in a tag, or several: in a list, or one after the other."""
    if not (yield from scanner.take(_OPEN, "")):
        yield from _read_bare(scanner)
        return
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


def _read_bare(scanner: Scanner) -> Steps[None]:
    """A call without tags, several in a list, or what is in a code block."""
    begun = yield from scanner.take(_FENCE, "[", "")
    while True:
        yield from scanner.spaces()
        yield from read_object(scanner, bare=_KEYS)
        if not begun:
            break  # should there be another, it begins like this one
        yield from scanner.spaces()
        if begun == "[" and (yield from scanner.take(",", "]")) == "]":
            break
        if begun == _FENCE and (yield from scanner.peek()) != "{":
            yield from scanner.take(_FENCE_END)
            break
    scanner.end_call()


_SYNTAX = Syntax(
    before=f'{_OPEN}\n{{"name": "',
    middle='", "arguments": ',
    after=f"}}\n{_CLOSE}",
    between="\n",
)

_BARE = Syntax(before='{"name": "', middle='", "arguments": ', after="}", between="\n")
_VARIANTS = (
    _BARE,
    replace(_BARE, first=f"{_FENCE} ", last=f" {_FENCE_END}"),
    replace(_BARE, first="[ ", between=", ", last=" ]"),
)
_LEADING = ("{", _FENCE, "[")

HERMES = ToolDialect(
    "hermes", ("<tool_call>",), (_OPEN,), _SYNTAX, _read, leading=_LEADING, variants=_VARIANTS
)
GENERIC = ToolDialect(
    "json", (), (_OPEN,), _SYNTAX, _read, leading=_LEADING, variants=_VARIANTS, described=True
)
