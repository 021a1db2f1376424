"""Finding where in a schema the fault lies that the grammar compiler reports without a place."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto.errors import InvalidRequest
from stretto.grammar.nodes import Path, pointer, referred, walk
from stretto.grammar.schema import invalid, places, unsupported
from stretto.schemas import clipped

_SEARCH_LIMIT_S = 1.0
_SEARCH_LIMIT_TRIALS = 400
_REASON_CHARS = 200

Try = Callable[[dict[str, Any]], str]
"""Compiles a schema; the error, or an empty text."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a schema does not compile.

    Attributes:
        path, keyword: the place: a schema in it, and the keyword of that, where one is to blame.
        error: the refusal.
        unsatisfiable: no value can match the schema, however lenient the compiler were.
    """

    path: Path
    keyword: str | None
    error: InvalidRequest
    unsatisfiable: bool = False


def find_fault(schema: dict[str, Any], error: str, attempt: Try, param: str) -> Fault:
    """The place of the smallest part of a schema that fails in the same way.

    Args:
        schema: as it was compiled.
        error: the compiler's.
        attempt: compiles a variant.
        param: the request's field that holds the schema.
    """
    error = _core(error)
    reason = _one_line(error)
    reference = re.match(r"(Pointer|Resource) '([^']*)'", error)
    if reference:
        return _bad_reference(schema, reference[1], reference[2], param)
    path, node = _smallest(schema, error, attempt)

    def not_supported(keyword: str | None, reason: str) -> Fault:
        return Fault(path, keyword, unsupported(param, path, keyword, reason))

    unimplemented = re.match(r"Unimplemented keys: \[(.*)\]", error)
    if unimplemented:
        listed = re.findall(r'"([^"]+)"', unimplemented[1])
        named = [key for key in listed if key in node]
        keyword = named[0] if named else None
        return not_supported(keyword, f"the keyword '{keyword or listed[0]}' is not supported")
    if error.startswith("Unsatisfiable schema"):
        refusal = invalid(param, path, None, f"no value can match it ({reason.partition(': ')[2] or reason})")
        return Fault(path, None, refusal, unsatisfiable=True)
    if error.startswith("oneOf"):
        return not_supported("oneOf", "its alternatives could match the same value; say 'anyOf'")
    for beginning, keywords in _KEYWORDS:
        if error.startswith(beginning):
            found = [keyword for keyword in keywords if keyword in node]
            return not_supported(found[0] if found else None, reason)
    return not_supported(None, reason)


_KEYWORDS = (
    ("Unknown format", ("format",)),
    ("min/maxProperties", ("minProperties", "maxProperties")),
    ("regex parse error", ("pattern", "patternProperties")),
    (
        "Unable to determine if regex is empty",
        ("pattern", "patternProperties", "minLength", "maxLength", "format"),
    ),
    (
        "Failed to generate regex for",
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    ),
)


def _core(error: str) -> str:
    """An error without the trace of where it was met."""
    return error.partition("\n  while processing")[0]


def _bad_reference(schema: dict[str, Any], kind: str, target: str, param: str) -> Fault:
    where: Path = ()
    for path, node in walk(schema):
        if target in str(node.get("$ref", "")):
            where = path
            break
    if kind == "Pointer":
        refusal = invalid(param, where, "$ref", f"{clipped(target)} is nowhere in the schema")
    else:
        refusal = unsupported(
            param, where, "$ref", f"{clipped(target)} is outside the schema, and nothing is fetched"
        )
    return Fault(where, "$ref", refusal)


def _smallest(schema: dict[str, Any], error: str, attempt: Try) -> tuple[Path, dict[str, Any]]:
    """The deepest schema on a way from the root on which each one fails alone with the same error."""
    inside = _moved(schema)
    until = time.thread_time() + _SEARCH_LIMIT_S
    trials = 0
    seen: set[Path] = {()}
    path: Path = ()
    node = schema
    while True:
        for place, child in places(schema, path, node):
            trials += 1
            if trials > _SEARCH_LIMIT_TRIALS or time.thread_time() > until:
                return path, node
            target = referred(schema, child)
            if place in seen or (target is not None and target[0] in seen):
                continue  # a way back to what is known to fail
            seen.add(place)
            if _core(attempt({**inside, "$ref": pointer(("$defs", "root", *place))})) == error:
                path, node = place, child
                break
        else:
            return path, node


def _moved(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as a definition of another, so that its parts can be referred to one by one."""
    moved = _copied(schema)
    for _, node in walk(moved):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#") and reference[1:2] in ("", "/"):
            node["$ref"] = "#/$defs/root" + reference[1:]
    outer = {"$schema": moved.pop("$schema")} if "$schema" in moved else {}
    return {**outer, "$defs": {"root": moved}}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value


def _one_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip() and "<non-verbose/>" not in line]
    # A regex error shows the expression with a mark under it; the last line says what is wrong.
    text = f"{lines[0]} {lines[-1]}" if lines and lines[0].startswith("regex parse") else " ".join(lines[:1])
    return (text if len(text) <= _REASON_CHARS else text[: _REASON_CHARS - 1] + "…").rstrip(".")
