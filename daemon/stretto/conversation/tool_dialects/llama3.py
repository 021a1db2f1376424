"""Llama 3.1 and later: a JSON object with ``parameters``, alone or after ``<|python_tag|>``; several are parted by semicolons."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect
from stretto.conversation.tool_dialects.json_calls import read_object
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps

_TAG = "<|python_tag|>"


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    yield from scanner.take(_TAG, "")
    yield from scanner.spaces()
    yield from read_object(scanner)
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


LLAMA3 = ToolDialect(
    "llama3",
    ("<|eot_id|>", '"parameters"'),
    (_TAG,),
    Syntax(before='{"name": "', middle='", "parameters": ', after="}", between="; "),
    _read,
    leading=("{",),
    variants=(Syntax(first=_TAG, before='{"name": "', middle='", "parameters": ', after="}", between="; "),),
)
