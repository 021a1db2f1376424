"""Walking a JSON Schema: which of its values are schemas themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

Path = tuple[str | int, ...]
"""From the root of a schema to a value in it."""

_ONE = (
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "not", "if", "then", "else",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")


def children(node: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schemas right below one, with the path from it; boolean ones are left out."""
    for keyword in _ONE:
        if isinstance(node.get(keyword), dict):
            yield (keyword,), node[keyword]
    for keyword in _LISTS:
        if isinstance(node.get(keyword), list):
            for index, child in enumerate(node[keyword]):
                if isinstance(child, dict):
                    yield (keyword, index), child
    for keyword in _NAMED:
        if isinstance(node.get(keyword), dict):
            for name, child in node[keyword].items():
                if isinstance(child, dict):
                    yield (keyword, name), child


def walk(root: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A schema and all schemas in it, definitions too, in the order they are written."""
    waiting: list[tuple[Path, dict[str, Any]]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        yield path, node
        waiting += reversed([(path + step, child) for step, child in children(node)])


def referred(root: dict[str, Any], node: Mapping[str, Any]) -> tuple[Path, dict[str, Any]] | None:
    """What a node's ``$ref`` into the same document refers to, if it is a schema that is there."""
    reference = node.get("$ref")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    path: Path = ()
    for step in reference.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        key: str | int = int(name) if isinstance(found, list) and name.isdecimal() else name
        try:
            found = found[key]
        except (LookupError, TypeError):
            return None
        path += (key,)
    return (path, found) if isinstance(found, dict) else None


def pointer(path: Path) -> str:
    """A path as a JSON Pointer in a URI fragment (RFC 6901)."""
    return "#" + "".join(
        "/" + quote(str(step).replace("~", "~0").replace("/", "~1"), safe="~") for step in path
    )
