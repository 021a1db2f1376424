"""Reading the JSON Schema of a request: is it one, can it be honoured, is it of a size that can be compiled safely."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from stretto.errors import InvalidRequest
from stretto.grammar.nodes import Path, children, referred, walk
from stretto.grammar.number_bounds import mend_bounds
from stretto.schemas import clipped, path_text

MOST_BYTES = 1 << 18
MOST_SCHEMAS = 2000
"""Compiling recurses along references and nesting; this bounds the depth, and with it the stack."""
MOST_OPTIONAL = 400
"""Optional properties of one object. They may be left out in any combination, so the work for each token grows with them."""
MOST_VALUES = 5000
"""Of one enum."""


def read_schema(text: str, param: str) -> dict[str, Any]:
    """A schema that is ready to be compiled: checked, and without what has no meaning for a grammar.

    Args:
        text: JSON text of an object.
        param: the request's field that holds it.

    Raises:
        InvalidRequest: ``invalid_schema`` when it is not a JSON Schema (of the draft that its ``$schema`` names, or 2020-12);
            ``unsupported_schema`` when it is too large, or could be written so that a repeated name breaks it.
    """
    if len(text.encode()) > MOST_BYTES:
        raise unsupported(param, (), None, f"it has more than {MOST_BYTES} bytes")
    schema: dict[str, Any] = json.loads(text)
    _check_form(schema, param)
    schema.pop("x-guidance", None)  # options of the compiler, which are not the client's to set
    for count, (path, node) in enumerate(walk(schema), start=1):
        if count > MOST_SCHEMAS:
            raise unsupported(param, (), None, f"it has more than {MOST_SCHEMAS} schemas in it")
        _check_size(node, path, param)
        _check_min_properties(node, path, param)
        _simplify(schema, node)
    return schema


def invalid(param: str, path: Path, keyword: str | None, reason: str) -> InvalidRequest:
    """``invalid_schema`` at a place in the schema."""
    return _refusal("invalid_schema", param, path, keyword, reason, None)


def unsupported(param: str, path: Path, keyword: str | None, reason: str) -> InvalidRequest:
    """``unsupported_schema`` at a place in the schema."""
    return _refusal(
        "unsupported_schema", param, path, keyword, reason, "Change or leave out this part of the schema."
    )


def _refusal(
    code: str, param: str, path: Path, keyword: str | None, reason: str, remedy: str | None
) -> InvalidRequest:
    steps = (*path, keyword) if keyword is not None else path
    place = path_text([*param.split("."), *steps])
    return InvalidRequest(
        f"The schema cannot be used: '{place}': {reason}.", code=code, param=place, remedy=remedy
    )


def _check_form(schema: dict[str, Any], param: str) -> None:
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as flaw:
        path = tuple(flaw.instance_path)
        raise invalid(param, path, None, _form_reason(flaw, path)) from flaw
    except (jsonschema_rs.ReferencingError, ValueError) as error:
        draft = clipped(str(schema.get("$schema")))
        raise invalid(
            param, (), "$schema", f"'{draft}' is no draft of JSON Schema that is known here"
        ) from error


def _form_reason(flaw: jsonschema_rs.ValidationError, path: Path) -> str:
    if path and path[-1] == "items" and isinstance(flaw.instance, list):
        return "a list of schemas is 'prefixItems' in JSON Schema 2020-12; 'items' is one schema"
    if path and path[-1] == "type":
        return "it must be one of the types of JSON, or a list of them"
    return clipped(flaw.message.partition("\n")[0])


def _check_size(node: dict[str, Any], path: Path, param: str) -> None:
    properties = node.get("properties")
    if isinstance(properties, dict):
        optional = len(properties.keys() - set(node.get("required", ())))
        if optional > MOST_OPTIONAL:
            raise unsupported(
                param,
                path,
                "properties",
                f"more than {MOST_OPTIONAL} of the properties are optional ({optional})",
            )
    values = node.get("enum")
    if isinstance(values, list) and len(values) > MOST_VALUES:
        raise unsupported(param, path, "enum", f"it has more than {MOST_VALUES} values ({len(values)})")


def _check_min_properties(node: dict[str, Any], path: Path, param: str) -> None:
    # A grammar cannot see that a name it made up repeats an earlier one; one more than the required ones is always a new name.
    least = node.get("minProperties", 0)
    required = len(set(node.get("required", ())))
    if isinstance(least, (int, float)) and least > required + 1:
        raise unsupported(
            param,
            path,
            "minProperties",
            f"at most one more than the required properties can be counted ({required + 1})",
        )


def _simplify(root: dict[str, Any], node: dict[str, Any]) -> None:
    """Take out keywords that say nothing, which the compiler would refuse; write a oneOf that cannot overlap as an anyOf, and bounds so that
    they are kept to."""
    mend_bounds(node)
    if node.get("uniqueItems") is False:
        del node["uniqueItems"]
    names = node.get("propertyNames")
    if names is True or (isinstance(names, dict) and names in ({}, {"type": "string"})):
        del node["propertyNames"]
    for keyword in ("unevaluatedProperties", "unevaluatedItems"):
        if node.get(keyword) is True:
            del node[keyword]
    branches = node.get("oneOf")
    if branches and "anyOf" not in node and _apart([_types(root, branch) for branch in branches]):
        node["anyOf"] = node.pop("oneOf")


def _types(root: dict[str, Any], branch: Any) -> frozenset[str]:
    """The JSON types that a schema may allow: all of them, if it does not say."""
    for _ in range(8):
        if not isinstance(branch, dict):
            return frozenset() if branch is False else _ALL
        if "type" in branch:
            named = branch["type"]
            types = frozenset((named,) if isinstance(named, str) else named)
            return types | {"number"} if "integer" in types else types
        if "const" in branch:
            return frozenset((_type_of(branch["const"]),))
        if "enum" in branch:
            return frozenset(map(_type_of, branch["enum"]))
        target = referred(root, branch)
        if target is None:
            return _ALL
        branch = target[1]
    return _ALL


def _apart(sets: list[frozenset[str]]) -> bool:
    return sum(map(len, sets)) == len(frozenset().union(*sets))


_ALL = frozenset({"null", "boolean", "number", "string", "array", "object"})


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def places(root: dict[str, Any], path: Path, node: dict[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The schemas that one is made of: those in it that are not definitions, and the one that it refers to."""
    target = referred(root, node)
    if target is not None:
        yield target
    for step, child in children(node):
        if step[0] not in ("$defs", "definitions"):
            yield path + step, child
