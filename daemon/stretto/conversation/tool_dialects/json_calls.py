"""Calls that are JSON objects: ``{"name": …, "arguments": …}``, in either order, in a frame that differs from model to model."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from stretto.conversation.tool_dialects.dialect import compact
from stretto.conversation.tool_dialects.scanner import NotACall, Scanner, Steps

_NAMES = ("name", "function")
_ARGUMENTS = ("arguments", "parameters")
_OTHERS = ("id", "type")
_KIND = "function"


def read_object(scanner: Scanner, *, bare: Collection[str] = ()) -> Steps[None]:
    """One call. It is opened where its arguments begin, if its name is known by then; else at its end.

    Args:
        bare: where nothing but its form says that it is one: the keys that may come before its arguments, each once; those follow
            right after the name.
    """
    name: str | None = None
    held: Any = None
    opened = False
    seen: set[str] = set()
    yield from scanner.take("{")
    while True:
        yield from scanner.spaces()
        key = yield from scanner.string()
        if bare and not opened and key not in (set(bare) - seen if name is None else _ARGUMENTS):
            raise NotACall
        seen.add(key)
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
            value = yield from scanner.value()
            if not isinstance(value, (str, int)) or (bare and not opened and value != _KIND):
                raise NotACall
        else:
            raise NotACall
        yield from scanner.spaces()
        if (yield from scanner.take(",", "}")) == "}":
            break
    if not opened:
        if name is None or bare:
            raise NotACall
        scanner.open(name)
        scanner.emit(held if isinstance(held, str) and held.strip() else compact(held or {}))
    scanner.commit()
