"""Query parameters of calls that no dialect owns: known by name, given once."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.types import Scope

from stretto.errors import InvalidRequest

_MOST_FIELDS = 32


def query_of(scope: Scope, *names: str) -> Mapping[str, str]:
    """The parameters that are given, of those that a call has.

    Raises:
        InvalidRequest: ``unknown_parameter``: one that the call does not have; ``invalid_value``: one that is given twice, or no UTF-8.
    """
    text = bytes(scope.get("query_string", b"")).decode("latin-1")
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise InvalidRequest("The query of this URL cannot be read.") from None
    for name, value in pairs:
        if name not in names:
            known = ", ".join(names) or "none"
            raise InvalidRequest(
                f"The query parameter '{name[:60]}' is not known here; known are: {known}.",
                code="unknown_parameter",
                param=name[:60],
            )
        if name in found:
            raise InvalidRequest(f"The query parameter '{name}' is given twice.", param=name)
        found[name] = value
    return found


def whole_number(query: Mapping[str, str], name: str, default: int, most: int) -> int:
    """A parameter that is a whole number from 1 to ``most``.

    Raises:
        InvalidRequest: ``invalid_value``.
    """
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise InvalidRequest(
            f"The query parameter '{name}' is {text[:60]!r}; it must be a whole number from 1 to {most}.",
            param=name,
        )
    return int(text)
