"""The parameters of functions as clients really write them, made into schemas that a grammar can be built from.

What is meant is kept, what cannot be kept to is widened: an unknown type, a keyword without a grammar, a reference to nowhere allow
any value there. Objects that list their properties are kept to those unless they say otherwise, since a model that makes up names of
arguments does not help anybody. A function with ``strict`` gets its schema to the letter, or is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from stretto.conversation.messages import ToolSpec
from stretto.errors import InvalidRequest
from stretto.grammar.faults import Fault, find_fault
from stretto.grammar.nodes import referred, walk
from stretto.grammar.number_bounds import mend_bounds
from stretto.grammar.schema import MOST_BYTES, MOST_OPTIONAL, MOST_SCHEMAS, MOST_VALUES, read_schema

_MOST_REPAIRS = 24
_MOST_STEPS = 100

_TYPES = {
    "any": None, "bool": "boolean", "date": "string", "datetime": "string", "dict": "object", "double": "number", "enum": "string",
    "float": "number", "int": "integer", "list": "array", "long": "integer", "map": "object", "none": "null", "str": "string",
    "text": "string", "tuple": "array", "array": "array", "boolean": "boolean", "integer": "integer", "null": "null", "number": "number",
    "object": "object", "string": "string",
}  # fmt: skip
"""Types by the names that clients use, in lower case; None is any."""

_FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"}
)
_DROPPED = frozenset(
    {
        "$dynamicAnchor", "$dynamicRef", "$schema", "contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "if",
        "maxContains", "minContains", "not", "nullable", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
        "uniqueItems", "x-guidance", "$id", "id", "additionalItems",
    }
)  # fmt: skip
"""Keywords that a grammar cannot keep to, or that were read by then."""
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COMBINED = ("allOf", "anyOf", "oneOf", "$ref")

Attempt = Callable[[dict[str, Any]], str]
"""Compiles a schema; the error, or an empty text."""


def arguments_schema(tool: ToolSpec, param: str) -> dict[str, Any]:
    """The schema that a call's arguments are held to, without what is known to have no grammar.

    Args:
        tool: the function.
        param: the request's field that holds its parameters.

    Raises:
        InvalidRequest: ``invalid_tool_schema``, with the place.
    """
    if not tool.parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    if tool.strict:
        try:
            schema = read_schema(json.dumps(tool.parameters), param)
        except InvalidRequest as error:
            raise _renamed(error, tool) from error
    else:
        widened = _widened(dict(tool.parameters), close=not _merges(tool.parameters))
        schema = widened if isinstance(widened, dict) else {}
        _break_circles(schema)
        if len(json.dumps(schema)) > MOST_BYTES or sum(1 for _ in walk(schema)) > MOST_SCHEMAS:
            return {"type": "object"}
    types = schema.get("type", "object")
    if "object" not in ([types] if isinstance(types, str) else types):
        raise InvalidRequest(
            f"The parameters of the function '{tool.name}' cannot be used: '{param}.type' is {json.dumps(types)}, but arguments are "
            "always an object.",
            code="invalid_tool_schema",
            param=f"{param}.type",
            remedy='Say "type": "object", and give each argument as a property.',
        )
    return {**schema, "type": "object"}


def repaired(
    schema: dict[str, Any], error: str, attempt: Attempt, tool: ToolSpec, param: str
) -> dict[str, Any]:
    """A schema that does not compile, with the places at fault widened, until it does.

    Args:
        schema: of ``arguments_schema``.
        error: the compiler's.
        attempt: compiles a variant.
        tool, param: see ``arguments_schema``.

    Raises:
        InvalidRequest: ``invalid_tool_schema`` with the place: the function is strict, or nothing at all matches its parameters.
    """
    for _ in range(_MOST_REPAIRS):
        fault = find_fault(schema, error, attempt, param)
        if tool.strict or fault.unsatisfiable:
            raise _renamed(fault.error, tool)
        schema = _without(schema, fault)
        error = attempt(schema)
        if not error:
            return schema
    return {"type": "object"}


def _break_circles(schema: dict[str, Any]) -> None:
    """Take out references that lead to nothing but themselves."""
    for _, node in walk(schema):
        target: Any = node
        for _ in range(_MOST_STEPS):
            found = referred(schema, target) if "$ref" in target else None
            if found is None:
                break
            target = found[1]
        else:
            del node["$ref"]


def _renamed(error: InvalidRequest, tool: ToolSpec) -> InvalidRequest:
    reason = error.message.removeprefix("The schema cannot be used: ")
    return InvalidRequest(
        f"The parameters of the function '{tool.name}' cannot be used: {reason}",
        code="invalid_tool_schema",
        param=error.param,
        remedy='Change this part, or leave out "strict".' if tool.strict else error.remedy,
    )


def _without(schema: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """The schema with the fault's place widened: without the keyword that was named, or open but for its type."""
    copy: dict[str, Any] = json.loads(json.dumps(schema))
    node: Any = copy
    for step in fault.path:
        node = node[step]
    if fault.keyword is not None and fault.keyword in node and fault.keyword != "type":
        del node[fault.keyword]
        return copy
    kept = {key: node[key] for key in ("type",) if key in node and len(node) > 1}
    node.clear()
    node.update(kept)
    if not fault.path:
        node.update({"type": "object"})
    return copy


def _merges(schema: Mapping[str, Any]) -> bool:
    """Whether objects of it are put together from several schemas, so that one alone does not know all their properties."""
    return any(
        "allOf" in node or ("properties" in node and any(keyword in node for keyword in _COMBINED))
        for _, node in walk(dict(schema))
    )


def _widened(node: Any, *, close: bool) -> Any:
    """A schema without what cannot be kept to; ``close``: whether its objects are kept to the properties that they list."""
    if isinstance(node, bool):
        return node
    if not isinstance(node, Mapping):
        return True
    result: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in _DROPPED:
            continue
        kept = _keyword(keyword, value, close=close)
        if kept is not None:
            result[keyword] = kept
    _fix_type(result, node)
    _fix_tuples(result, node, close=close)
    _fix_properties(result, close=close)
    mend_bounds(result)
    if "oneOf" in result and "anyOf" not in result:
        result["anyOf"] = result.pop("oneOf")
    result.pop("oneOf", None)
    return result


def _keyword(keyword: str, value: Any, *, close: bool) -> Any:
    """A keyword's value in a form that says something, or None."""
    if keyword in ("properties", "patternProperties", "$defs", "definitions"):
        inner = close if keyword != "patternProperties" else False
        return (
            {str(name): _widened(rule, close=inner) for name, rule in value.items()}
            if isinstance(value, Mapping)
            else None
        )
    if keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
        if not isinstance(value, list) or not value:
            return None
        return [_widened(rule, close=close and keyword != "allOf") for rule in value]
    if keyword in ("items", "additionalProperties"):
        return _widened(value, close=close) if isinstance(value, (Mapping, bool)) else None
    if keyword in _COUNTS:
        return int(value) if _is_number(value) and value >= 0 else None
    if keyword in _NUMBERS:
        return value if _is_number(value) and (keyword != "multipleOf" or value > 0) else None
    if keyword == "enum":
        return value if isinstance(value, list) and 0 < len(value) <= MOST_VALUES else None
    if keyword == "required":
        return list(dict.fromkeys(map(str, value))) if isinstance(value, list) else None
    if keyword == "format":
        return value if value in _FORMATS else None
    if keyword in ("pattern", "$ref"):
        return value if isinstance(value, str) else None
    return value if keyword in ("type", "const") else None


def _fix_type(result: dict[str, Any], node: Mapping[str, Any]) -> None:
    named = result.pop("type", None)
    listed = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    types = [_TYPES.get(kind.lower()) if isinstance(kind, str) else None for kind in listed]
    if node.get("nullable") is True and types:
        types.append("null")
    if not types or None in types:
        return  # any
    known = [kind for kind in dict.fromkeys(types) if kind is not None]
    if "number" in known and "integer" in known:
        known.remove("integer")
    result["type"] = known[0] if len(known) == 1 else known
    if "null" in known and isinstance(result.get("enum"), list) and None not in result["enum"]:
        result["enum"] = [*result["enum"], None]


def _fix_tuples(result: dict[str, Any], node: Mapping[str, Any], *, close: bool) -> None:
    """Lists whose items are listed one by one, in the form of drafts before 2020-12."""
    items = node.get("items")
    if isinstance(items, list) and items:
        result["prefixItems"] = [_widened(rule, close=close) for rule in items]
        rest = node.get("additionalItems")
        if isinstance(rest, (Mapping, bool)):
            result["items"] = _widened(rest, close=close)


def _fix_properties(result: dict[str, Any], *, close: bool) -> None:
    properties = result.get("properties")
    if not isinstance(properties, dict):
        return
    required = result.get("required", [])
    optional = [name for name in properties if name not in required]
    for name in optional[MOST_OPTIONAL:]:
        del properties[name]
        result["additionalProperties"] = True
    for name in required:
        properties.setdefault(name, True)
    if close and "additionalProperties" not in result and "patternProperties" not in result:
        result["additionalProperties"] = False
    least = result.get("minProperties", 0)
    if least > len(required) + 1:
        del result["minProperties"]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
