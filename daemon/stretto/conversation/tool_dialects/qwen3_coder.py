"""Qwen3-Coder: a tag for each argument. A string stands as it is; every other value is JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect, compact, json_types
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps, escaped

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_WORDS = {"True": "true", "False": "false", "None": "null"}


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    tagged = (yield from scanner.take(_OPEN, "")) == _OPEN
    yield from scanner.spaces()
    yield from scanner.take(_FUNCTION)
    name, _ = yield from scanner.until(">")
    name = name.strip()
    if name not in tools:
        raise NotACall
    schema = tools[name].parameters
    properties = schema.get("properties")
    yield from scanner.spaces()
    scanner.open(name)
    scanner.emit("{")
    separator = ""
    while (yield from scanner.take(_PARAMETER, _FUNCTION_END)) == _PARAMETER:
        key, _ = yield from scanner.until(">")
        scanner.emit(f"{separator}{compact(key.strip())}: ")
        separator = ", "
        rule = properties.get(key.strip()) if isinstance(properties, Mapping) else None
        yield from _read_value(scanner, json_types(rule, schema))
        yield from scanner.spaces()
    scanner.emit("}")
    if tagged:
        yield from scanner.spaces()
        yield from scanner.take(_CLOSE)
    scanner.end_call()


def _read_value(scanner: Scanner, types: frozenset[str] | None) -> Steps[None]:
    """A value and its closing tag. The line breaks next to the tags belong to the tags."""
    yield from scanner.take("\n", "")
    if types == frozenset(("string",)):
        scanner.emit('"')
        yield from scanner.stream_until(_PARAMETER_END, hold="\n", change=escaped)
        scanner.emit('"')
        return
    text, _ = yield from scanner.until(_PARAMETER_END)
    scanner.emit(_as_json(text.removesuffix("\n"), types))


def _as_json(text: str, types: frozenset[str] | None) -> str:
    """The JSON of a value that need not be a string: what can be read as an allowed type is; the rest is a string."""
    stripped = text.strip()
    stripped = _WORDS.get(stripped, stripped)
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return compact(text)
    if isinstance(value, str) or (types is not None and not _fits(value, types)):
        # A string in quotes is those quotes too, unless strings are not what was asked for.
        return compact(text)
    return stripped


def _fits(value: Any, types: frozenset[str]) -> bool:
    if value is None:
        return "null" in types
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, (int, float)):
        return "number" in types or ("integer" in types and float(value).is_integer())
    return ("array" if isinstance(value, list) else "object") in types


QWEN3_CODER = ToolDialect(
    "qwen3-coder",
    (_FUNCTION, _PARAMETER),
    (_OPEN, _FUNCTION),
    Syntax(
        before=f"{_OPEN}\n{_FUNCTION}",
        middle=">\n",
        after=f"{_FUNCTION_END}\n{_CLOSE}",
        between="\n",
        arguments="xml",
    ),
    _read,
    variants=(Syntax(before=_FUNCTION, middle=">\n", after=_FUNCTION_END, between="\n", arguments="xml"),),
)
