"""Which top-level fields of a chat request are served, ignored, refused or unknown; read from the one schema."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stretto.errors import InvalidRequest
from stretto.schemas import clipped, schema

CHAT_SCHEMA = "openai-chat-request"
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class FieldTable:
    """What the schema says of each field: served ones have neither mark."""

    known: frozenset[str]
    ignored: frozenset[str]
    unsupported: Mapping[str, str]
    """Name to remedy."""


@functools.cache
def field_table() -> FieldTable:
    """The table of the chat request."""
    properties: Mapping[str, Mapping[str, Any]] = schema(CHAT_SCHEMA)["properties"]
    return FieldTable(
        known=frozenset(properties),
        ignored=frozenset(name for name, rule in properties.items() if rule.get("x-stretto") == "ignored"),
        unsupported={
            name: rule["x-remedy"]
            for name, rule in properties.items()
            if rule.get("x-stretto") == "unsupported"
        },
    )


def sweep_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are given and matter: without those that are null, and those that are ignored.

    Runs before any value is looked at, so that an error is about the field itself.

    Raises:
        InvalidRequest: ``unsupported_value`` for fields that are known and not served; else ``unknown_parameter``.
    """
    table = field_table()
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


def _listed(names: list[str]) -> str:
    text = ", ".join(f"'{clipped(name)}'" for name in names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{text} and {more} more" if more > 0 else text
