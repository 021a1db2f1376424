"""Reading JSON from strangers: strict and bounded."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from stretto.errors import InvalidRequest

MAX_DEPTH = 64
MAX_PARTS = 400_000
_MAX_DIGITS = 40
# A string (to the end of the data if it has none, so that no text is scanned twice) or a mark of structure.
_PART = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{},]', re.DOTALL)


class _OutOfRange(ValueError):
    """A number that no field could hold."""


def load_json(data: bytes, *, what: str = "The body") -> Any:
    """Parse JSON as RFC 8259 has it: UTF-8, no NaN or Infinity; of a key that is written twice, the last counts.

    Args:
        data: the text.
        what: what to call it in an error.

    Raises:
        InvalidRequest: ``invalid_json``; or ``invalid_request_body`` when it is nested deeper than 64, has more than 400,000 parts
            (strings, lists, objects and commas between values), a number beyond any use (more than 40 digits, or not finite as
            a double), or half a surrogate pair.
    """
    _refuse_rubble(data, what)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{what} is not valid UTF-8: byte {error.start} cannot be read.", code="invalid_json"
        ) from error
    try:
        document = json.loads(text, parse_int=_integer, parse_float=_number, parse_constant=_no_constant)
    except _OutOfRange as error:
        raise InvalidRequest(f"{what} has {error}.", code="invalid_request_body") from error
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"{what} is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.",
            code="invalid_json",
        ) from error
    except ValueError as error:
        raise InvalidRequest(f"{what} is not valid JSON: {error}.", code="invalid_json") from error
    except RecursionError as error:  # the parser stops at some depth of its own, far beyond ours
        raise _too_deep(what) from error
    # Few brackets cannot nest deep; this spares most bodies the walk.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and nested_deeper(document, MAX_DEPTH):
        raise _too_deep(what)
    if b"\\u" in data:
        _refuse_lone_surrogates(document, what)
    return document


def nested_deeper(document: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than ``levels``. Goes level by level, so depth costs no stack."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(levels):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
    return bool(level)


def _refuse_rubble(data: bytes, what: str) -> None:
    """Refuse text of very many small values. The parser makes objects of them all, in seconds during which it lets no other thread run.

    Text within strings does not count, however many marks it holds; only bodies that have many marks at all pay for telling them apart.
    """
    marks = data.count(b",") + data.count(b"[") + data.count(b"{") + data.count(b'"') // 2
    if marks <= MAX_PARTS:
        return
    depth = parts = 0
    for part in _PART.finditer(data):
        mark = data[part.start()]
        if mark in b"]}":
            depth -= 1
            continue
        if mark in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(what)
        parts += 1
        if parts > MAX_PARTS:
            raise InvalidRequest(
                f"{what} has more than {MAX_PARTS} strings, lists, objects and values.",
                code="invalid_request_body",
            )


def _too_deep(what: str) -> InvalidRequest:
    return InvalidRequest(f"{what} is nested deeper than {MAX_DEPTH} levels.", code="invalid_request_body")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _OutOfRange(f"a whole number of {len(digits)} digits")
    return int(digits)


def _number(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise _OutOfRange("a number too large for a double")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _refuse_lone_surrogates(document: Any, what: str) -> None:
    try:
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{what} has text with half a surrogate pair (\\u{ord(error.object[error.start]):04x}), which no character is.",
            code="invalid_request_body",
        ) from error
