"""Gemma 4: ``call:name{key:value,…}`` between its own marks. Names are bare, strings stand between ``<|"|>`` marks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect, compact
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps, escaped

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_MOST_NESTED = 64
_ENDS = ",}]"


def _read(scanner: Scanner, tools: Mapping[str, ToolSpec]) -> Steps[None]:
    yield from scanner.take(_OPEN)
    yield from scanner.spaces()
    yield from scanner.take("call:")
    name, _ = yield from scanner.until("{")
    scanner.open(name.strip())
    yield from _read_object(scanner, 0)
    yield from scanner.spaces()
    yield from scanner.take(_CLOSE)
    scanner.end_call()


def _read_object(scanner: Scanner, depth: int) -> Steps[None]:
    """From after the brace to the closing one."""
    scanner.emit("{")
    separator = ""
    yield from scanner.spaces()
    while (yield from scanner.take("}", "")) != "}":
        key = yield from _read_key(scanner)
        scanner.emit(f"{separator}{compact(key)}: ")
        separator = ", "
        yield from _read_value(scanner, depth)
        yield from scanner.spaces()
        if (yield from scanner.take(",", "}")) == "}":
            break
        yield from scanner.spaces()
    scanner.emit("}")


def _read_key(scanner: Scanner) -> Steps[str]:
    quote = yield from scanner.take(_QUOTE, '"', "")
    key, _ = yield from scanner.until(quote or ":")
    if quote:
        yield from scanner.spaces()
        yield from scanner.take(":")
    return key.strip()


def _read_value(scanner: Scanner, depth: int) -> Steps[None]:
    if depth > _MOST_NESTED:
        raise NotACall
    yield from scanner.spaces()
    first = yield from scanner.peek()
    if first == "{":
        yield from scanner.take("{")
        yield from _read_object(scanner, depth + 1)
    elif first == "[":
        yield from _read_list(scanner, depth + 1)
    elif first == '"':
        scanner.emit(compact((yield from scanner.string())))
    elif (yield from scanner.take(_QUOTE, "")):
        scanner.emit('"')
        yield from scanner.stream_until(_QUOTE, change=escaped)
        scanner.emit('"')
    else:
        word = yield from scanner.until_any(_ENDS)
        scanner.emit(_scalar(word.strip()))


def _read_list(scanner: Scanner, depth: int) -> Steps[None]:
    yield from scanner.take("[")
    scanner.emit("[")
    separator = ""
    yield from scanner.spaces()
    while (yield from scanner.take("]", "")) != "]":
        if separator:
            scanner.emit(separator)
        separator = ", "
        yield from _read_value(scanner, depth)
        yield from scanner.spaces()
        if (yield from scanner.take(",", "]")) == "]":
            break
        yield from scanner.spaces()
    scanner.emit("]")


def _json_scalar(word: str) -> object:
    value = json.loads(word)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    return value


def _scalar(word: str) -> str:
    """A number or a word of JSON; anything else is a string that lacks its marks."""
    try:
        return compact(_json_scalar(word))
    except ValueError:
        return compact(word)


GEMMA4 = ToolDialect(
    "gemma4",
    ("<|tool_call>",),
    (_OPEN,),
    Syntax(before=f"{_OPEN}call:", middle="{", after=f"}}{_CLOSE}", arguments="gemma"),
    _read,
    marks=(_QUOTE,),
)
