"""Calls that are JSON objects: ``{"name": …, "arguments": …}``, in either order, in a frame that differs from model to model."""

from __future__ import annotations

from typing import Any

from stretto.conversation.tool_dialects.dialect import compact
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type")


def read_object(scanner: Scanner) -> Steps[None]:
    """One call. It is opened where its arguments begin, if its name is known by then; else at its end."""
    name: str | None = None
    held: Any = None
    opened = False
    yield from scanner.take("{")
    while True:
        yield from scanner.spaces()
        key = yield from scanner.string()
        yield from scanner.spaces()
        yield from scanner.take(":")
        yield from scanner.spaces()
        if key in _NAMES and name is None:
            name = yield from scanner.string()
        elif key in _ARGUMENTS and not opened and held is None and name is not None:
            if (yield from scanner.peek()) not in '{"n':
                raise NotACall
            scanner.open(name)
            opened = True
            yield from scanner.arguments()
        elif key in _ARGUMENTS and not opened and held is None:
            held = yield from scanner.value()
            if not isinstance(held, (dict, str)):
                raise NotACall
        elif key in _OTHERS:
            if not isinstance((yield from scanner.value()), (str, int)):
                raise NotACall
        else:
            raise NotACall
        yield from scanner.spaces()
        if (yield from scanner.take(",", "}")) == "}":
            break
    if not opened:
        if name is None:
            raise NotACall
        scanner.open(name)
        scanner.emit(held if isinstance(held, str) and held.strip() else compact(held or {}))
    scanner.commit()
