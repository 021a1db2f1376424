"""Mistral: ``[TOOL_CALLS]`` and a list of JSON objects; since 2025 ``[TOOL_CALLS]name[ARGS]{…}`` for each call."""

from __future__ import annotations

from collections.abc import Mapping

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect
from stretto.conversation.tool_dialects.json_calls import read_object
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps

_OPEN, _ARGS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_ID_CHARS = 9  # the templates refuse ids of any other length


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    """Both forms, whatever the template: fine-tuned models mix them."""
    yield from scanner.take(_OPEN)
    yield from scanner.spaces()
    if (yield from scanner.peek()) != "[":
        yield from _read_named(scanner)
        return
    yield from scanner.take("[")
    while True:
        yield from scanner.spaces()
        yield from read_object(scanner)
        scanner.end_call()
        yield from scanner.spaces()
        if (yield from scanner.take(",", "]")) == "]":
            scanner.end_call()
            return


def _read_named(scanner: Scanner) -> Steps[None]:
    name, end = yield from scanner.until(_CALL_ID, _ARGS, "{")
    if end == _CALL_ID:
        _, end = yield from scanner.until(_ARGS, "{")
    if end == "{":
        scanner.step_back(1)
    else:
        yield from scanner.spaces()
    if (yield from scanner.peek()) != "{":
        raise NotACall
    scanner.open(name.strip())
    yield from scanner.arguments()


_LISTED = Syntax(
    first=f"{_OPEN}[", before='{"name": "', middle='", "arguments": ', after="}", between=", ", last="]"
)
_NAMED = Syntax(before=_OPEN, middle=_ARGS, after="")

MISTRAL = ToolDialect(
    "mistral",
    (_OPEN,),
    (_OPEN,),
    _LISTED,
    _read,
    variants=(_NAMED, Syntax(before=_OPEN, middle="", after="")),
    id_chars=_ID_CHARS,
    marks=(_CALL_ID, _ARGS),
)
MISTRAL_ARGS = ToolDialect(
    "mistral-args",
    (_OPEN, _ARGS),
    (_OPEN,),
    _NAMED,
    _read,
    variants=(Syntax(before=_OPEN, middle="", after=""), _LISTED),
    id_chars=_ID_CHARS,
    marks=(_CALL_ID, _ARGS),
)
