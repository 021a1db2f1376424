"""Llama 3.1 and later: a JSON object with ``parameters``, alone or after ``<|python_tag|>``; several are parted by semicolons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect
from stretto.conversation.tool_dialects.json_calls import read_object
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps

_TAG = "<|python_tag|>"
_KEYS = ("type", "name")


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    bare = () if (yield from scanner.take(_TAG, "")) else _KEYS
    yield from scanner.spaces()
    yield from read_object(scanner, bare=bare)
    while True:
        scanner.end_call()
        try:
            yield from scanner.spaces()
            yield from scanner.take(";")
            yield from scanner.spaces()
            yield from scanner.take(_TAG, "")
            yield from read_object(scanner)
        except NotACall:
            return  # what came after the last call is not part of it


_SYNTAX = Syntax(before='{"name": "', middle='", "parameters": ', after="}", between="; ")

LLAMA3 = ToolDialect(
    "llama3",
    ("<|eot_id|>", '"parameters"'),
    (_TAG,),
    _SYNTAX,
    _read,
    leading=("{",),
    variants=(
        replace(_SYNTAX, first=_TAG),
        replace(_SYNTAX, before='{"type": "function", "name": "'),
    ),
)
