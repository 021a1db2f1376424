"""The JSON Schemas of the wire formats, and what they find wrong, in words.

The schema files are the one source of types and ranges: a dialect asks here what is wrong with a document and translates the
answer into its own error.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jsonschema_rs

_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with a document.

    Attributes:
        path: where, e.g. ``messages[2].content``; empty for the document itself. For a missing property, its own path.
        keyword: which rule was broken, e.g. ``type``, ``required``, ``maximum``.
        value: the value at fault as short JSON text, or None when it is one that is missing.
        allowed: what is allowed, e.g. ``a number`` or ``at most 2``.
    """

    path: str
    keyword: str
    value: str | None
    allowed: str

    @property
    def sentence(self) -> str:
        """For a person: the field, the value and what is allowed."""
        name = f"'{self.path}'" if self.path else "The body"
        if self.value is None:
            return f"{name} is missing; it is required."
        if self.keyword == "propertyNames":
            return f"{name} has the name {self.value}; its names must be {self.allowed}."
        return f"{name} is {self.value}; it must be {self.allowed}."


@functools.cache
def schema(name: str) -> Mapping[str, Any]:
    """The schema in ``schemas/<name>.json``. Not to be changed by the reader."""
    text = importlib.resources.files("stretto._schemas").joinpath(f"{name}.json").read_text("utf-8")
    return cast("Mapping[str, Any]", json.loads(text))


@functools.cache
def validator(name: str) -> jsonschema_rs.Validator:
    """The compiled schema; compiled once a process. It never reads a file or the network for a reference."""
    return jsonschema_rs.Draft202012Validator(dict(schema(name)), offline=True)


def find_violation(name: str, document: Any) -> Violation | None:
    """What is wrong with a document by a schema: the first flaw met, or None.

    Only the first is looked for: to collect all of them takes minutes for a document that is wrong a million times.
    """
    try:
        validator(name).validate(document)
    except jsonschema_rs.ValidationError as flaw:
        return describe(flaw, document)
    return None


def describe(flaw: jsonschema_rs.ValidationError, document: Any) -> Violation:
    """A flaw of a document in our words."""
    path = _named_path(document, flaw.instance_path)
    keyword = str(flaw.schema_path[-1]) if flaw.schema_path else ""
    details = flaw.kind.as_dict()
    if keyword == "required":
        return Violation(path_text([*path, details["property"]]), keyword, None, "")
    inner = details.get("error")
    if isinstance(
        inner, jsonschema_rs.ValidationError
    ):  # of propertyNames, by whatever reference it was found
        return Violation(
            path_text(path),
            "propertyNames",
            shown(inner.instance),
            _allowed(str(inner.schema_path[-1]), inner.kind.as_dict(), inner),
        )
    return Violation(path_text(path), keyword, shown(flaw.instance), _allowed(keyword, details, flaw))


def path_text(path: Sequence[str | int]) -> str:
    """A path as one writes it in code: ``messages[2].content[0].type``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{clipped(step)}" if text else clipped(step)
    return text


def shown(value: Any) -> str:
    """A value as short JSON text, for an error message."""
    if isinstance(value, (dict, list)) and value:
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, str):
        return json.dumps(clipped(value), ensure_ascii=False)
    return clipped(json.dumps(value))


def clipped(text: str) -> str:
    """Text of at most 60 characters."""
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


_TYPES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "greater than {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters long",
    "maxLength": "at most {} characters long",
    "minItems": "a list of at least {}",
    "maxItems": "a list of at most {}",
    "minProperties": "an object of at least {} entries",
    "maxProperties": "an object of at most {} entries",
}


def _allowed(keyword: str, details: Mapping[str, Any], flaw: jsonschema_rs.ValidationError) -> str:
    if keyword == "type":
        return " or ".join(_TYPES[kind] for kind in details["types"])
    if keyword in _LIMITS:
        return _LIMITS[keyword].format(details["limit"])
    if keyword == "enum":
        return "one of " + ", ".join(map(shown, details["options"]))
    if keyword == "const":
        return shown(details["expected_value"])
    if keyword == "pattern":
        return f"text that matches {details['pattern']}"
    if keyword == "additionalProperties":
        return "without " + ", ".join(map(clipped, details["unexpected"][:8]))
    return f"valid ({clipped(flaw.message)})"


def _named_path(document: Any, path: Sequence[str | int]) -> list[str | int]:
    """The path with names where the document has names: the validator gives a name of digits as a number."""
    named: list[str | int] = []
    for step in path:
        key = str(step) if isinstance(document, Mapping) else step
        named.append(key)
        document = document[key]
    return named
