"""Text operations that can make much out of little, checked before they run.

``'x'.ljust(10**10)`` is one short expression and ten gigabytes. Everything a template may call on a plain value is listed here;
what is not listed is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Formatter
from types import BuiltinMethodType, MethodType
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from stretto.conversation._budget import check_size, expanded_size

_DIGITS = re.compile(r"\d+")

_LINEAR_STR_METHODS = frozenset(
    {
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "lower",
        "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rindex", "rpartition", "rsplit", "rstrip",
        "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    }
)  # fmt: skip
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (bool, frozenset()),
    (int, frozenset({"bit_length", "is_integer"})),
    (float, frozenset({"is_integer"})),
    (dict, frozenset({"copy", "get", "items", "keys", "values"})),
    (list, frozenset({"copy", "count", "index"})),
    (tuple, frozenset({"count", "index"})),
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def check_method(method: Any, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> Arguments | None:
    """Check a call of a plain value's method.

    Returns:
        The arguments to call it with (an iterable has become a list), or None if ``method`` is no such method.

    Raises:
        SecurityError: the method is not one that templates may call.
        TemplateLimit: the result would be too large.
    """
    if not isinstance(method, (BuiltinMethodType, MethodType)):
        return None
    owner, name = method.__self__, method.__name__
    if isinstance(owner, str):
        if name in _LINEAR_STR_METHODS:
            return args, kwargs
        if name in _STR_METHODS:
            return _STR_METHODS[name](owner, args, limit), kwargs
    for kind, allowed in _METHODS:
        if isinstance(owner, kind) and name in allowed:
            return args, kwargs
    if isinstance(owner, (str, bytes, *(kind for kind, _ in _METHODS))):
        raise SecurityError(f"templates may not call {type(owner).__name__}.{name}")
    return None


def checked_join(separator: str, items: list[Any], limit: int) -> None:
    """Refuse a join whose text would be too long."""
    check_size(len(separator) * max(len(items) - 1, 0), limit)
    expanded_size(items, limit)


def checked_replace(text: str, old: str, new: str, limit: int) -> None:
    """Refuse a replacement whose text would be too long."""
    check_size(len(text) + text.count(old) * max(len(new) - len(old), 0), limit)


def check_percent(template: str, values: Any, limit: int) -> None:
    """Refuse ``template % values`` when the text could be too long."""
    check_widths(template, limit)
    if "*" in template:
        raise SecurityError("templates may not use * widths")
    check_size(len(template) + template.count("%") * expanded_size(values, limit), limit)


def check_widths(spec: str, limit: int) -> None:
    """Refuse a format specification that asks for a width or precision above the limit."""
    for number in _DIGITS.findall(spec):
        check_size(int(number) if len(number) < 20 else limit + 1, limit)


def _width(text: str, args: tuple[Any, ...], limit: int) -> tuple[Any, ...]:
    if args and isinstance(args[0], int):
        check_size(args[0], limit)
    return args


def _tabs(text: str, args: tuple[Any, ...], limit: int) -> tuple[Any, ...]:
    size = args[0] if args and isinstance(args[0], int) else 8
    check_size(len(text) + text.count("\t") * max(size, 0), limit)
    return args


def _replace(text: str, args: tuple[Any, ...], limit: int) -> tuple[Any, ...]:
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        checked_replace(text, args[0], args[1], limit)
    return args


def _join(text: str, args: tuple[Any, ...], limit: int) -> tuple[Any, ...]:
    if len(args) != 1:
        return args
    items = list(args[0])
    checked_join(text, items, limit)
    return (items,)


_STR_METHODS: Mapping[str, Callable[[str, tuple[Any, ...], int], tuple[Any, ...]]] = {
    "center": _width,
    "expandtabs": _tabs,
    "join": _join,
    "ljust": _width,
    "replace": _replace,
    "rjust": _width,
    "zfill": _width,
}


class BoundedFormat:
    """``text.format`` as a template may call it: sandboxed, and bounded in what it writes."""

    def __init__(self, environment: SandboxedEnvironment, text: str, *, from_map: bool, limit: int) -> None:
        self._environment = environment
        self._text = text
        self._from_map = from_map
        self._limit = limit

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        formatter = _BoundedFormatter(self._environment, self._limit)
        if self._from_map:
            (mapping,) = args
            return formatter.vformat(self._text, (), mapping)
        return formatter.vformat(self._text, args, kwargs)


class _BoundedFormatter(SandboxedFormatter, Formatter):
    def __init__(self, environment: SandboxedEnvironment, limit: int) -> None:
        super().__init__(environment)
        self._limit = limit
        self._written = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        check_widths(format_spec, self._limit)
        expanded_size(value, self._limit)
        text: str = super().format_field(value, format_spec)
        self._written += len(text)
        check_size(self._written, self._limit)
        return text
