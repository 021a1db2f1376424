"""Which top-level fields of a request are served, ignored, refused or unknown, and whether they fit: read from the one schema."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.dialects.json_body import load_json
from stretto.errors import InvalidRequest
from stretto.schemas import Violation, clipped, find_violation, schema, shown

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class FieldTable:
    """What a schema says of each field: served ones have neither mark."""

    known: frozenset[str]
    ignored: frozenset[str]
    unsupported: Mapping[str, str]
    """Name to remedy."""


@functools.cache
def field_table(schema_name: str) -> FieldTable:
    """The table of a request's schema."""
    properties: Mapping[str, Mapping[str, Any]] = schema(schema_name)["properties"]
    return FieldTable(
        known=frozenset(properties),
        ignored=frozenset(name for name, rule in properties.items() if rule.get("x-stretto") == "ignored"),
        unsupported={
            name: rule["x-remedy"]
            for name, rule in properties.items()
            if rule.get("x-stretto") == "unsupported"
        },
    )


def read_fields(schema_name: str, body: bytes) -> dict[str, Any]:
    """The fields of a body that are given and matter, each of the right type and range.

    The order of checks: JSON, then which fields are there (see ``sweep_fields``), then types and ranges. The first thing wrong is
    reported.

    Raises:
        InvalidRequest: codes ``invalid_json``, ``invalid_request_body``, ``unsupported_value``, ``unknown_parameter``,
            ``missing_parameter``, ``invalid_message`` and ``invalid_value``; ``param`` is the field's path.
    """
    document = load_json(body)
    if not isinstance(document, dict):
        raise InvalidRequest(
            f"The body is {shown(document)}; it must be a JSON object.", code="invalid_request_body"
        )
    fields = sweep_fields(schema_name, document)
    violation = find_violation(schema_name, fields)
    if violation is not None:
        raise _invalid(violation)
    return fields


def sweep_fields(schema_name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are given and matter: without those that are null, and those that are ignored.

    Runs before any value is looked at, so that an error is about the field itself.

    Raises:
        InvalidRequest: ``unsupported_value`` for fields that are known and not served; else ``unknown_parameter``.
    """
    table = field_table(schema_name)
    given = {name: value for name, value in document.items() if value is not None}
    unsupported = sorted(name for name in given if name in table.unsupported)
    if unsupported:
        raise InvalidRequest(
            f"Not supported: {_listed(unsupported)}.",
            code="unsupported_value",
            param=unsupported[0],
            remedy=table.unsupported[unsupported[0]],
        )
    unknown = sorted(name for name in given if name not in table.known)
    if unknown:
        raise InvalidRequest(
            f"Unknown parameter{'s' if len(unknown) > 1 else ''}: {_listed(unknown)}.",
            code="unknown_parameter",
            param=clipped(unknown[0]),
            remedy="Leave it out, or check how it is written.",
        )
    return {name: value for name, value in given.items() if name not in table.ignored}


def _invalid(violation: Violation) -> InvalidRequest:
    if violation.path.startswith("messages["):
        code = "invalid_message"
    elif violation.keyword == "required":
        code = "missing_parameter"
    else:
        code = "invalid_value"
    return InvalidRequest(violation.sentence, code=code, param=violation.path or None)


def _listed(names: list[str]) -> str:
    text = ", ".join(f"'{clipped(name)}'" for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{text} and {more} more" if more > 0 else text
