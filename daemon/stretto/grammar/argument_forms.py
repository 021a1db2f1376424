"""Arguments that are not written as one JSON object: a tag for each of them, or Gemma's own notation."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stretto.conversation.tool_dialects import json_types
from stretto.grammar.lark import LarkWriter, alternatives
from stretto.grammar.nodes import referred

_DEFINITIONS = ("$defs", "definitions")
_QUOTE = '<|"|>'
_MOST_NESTED = 24
_TAG_END = "\n</parameter>"


class TaggedArguments:
    """``<parameter=name>`` tags in the order of the schema; a string stands as it is, any other value is JSON.

    Of a string that may be anything, its length is kept to; of one with a pattern or a format, nothing.
    """

    def __init__(self, writer: LarkWriter, schema: Mapping[str, Any]) -> None:
        self._writer = writer
        self._root = schema

    def body(self) -> str:
        """All tags."""
        whole = _as_object(self._root, self._root)
        properties = _properties(whole)
        required = set(whole.get("required", ()))
        parts = []
        for name, rule in properties.items():
            tag = self._writer.rule(
                f"{self._writer.text(f'<parameter={name}>')} {json.dumps(chr(10))} {self._value(rule)} {json.dumps(chr(10))}"
            )
            parts.append(tag if name in required else f"{tag}?")
        if _takes_others(whole):
            text = self._writer.text_before(_TAG_END)
            other = self._writer.rule(f'"<parameter=" /[A-Za-z0-9_.$-]{{1,64}}/ ">\\n" {text} "\\n"')
            parts.append(f"{other}*")
        return " ".join(parts) or '""'

    def _value(self, rule: Any) -> str:
        """A value and the end of its tag. What can be read as JSON of an allowed type is that; the rest is a string."""
        node = _resolved(rule, self._root)
        types = json_types(node, self._root)
        values = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(values, list):
            texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
            return f"{alternatives([json.dumps(text) for text in texts])} {json.dumps(_TAG_END)}"
        if types is not None and "string" not in types:
            return self._json(node)
        others = (types or frozenset()) - {"string"}
        if others <= {"null", "boolean"}:
            return self._text(node)
        bare = self._writer.rule(f'/[^\\s\\[\\]{{}}0-9".+-]/ {self._writer.text_before(_TAG_END)}')
        return alternatives([self._json(_without_strings(node, others, self._root)), bare])

    def _json(self, node: Mapping[str, Any]) -> str:
        definitions = {key: self._root[key] for key in _DEFINITIONS if key in self._root}
        return f"{self._writer.schema({**definitions, **node})} {json.dumps(_TAG_END)}"

    def _text(self, node: Mapping[str, Any]) -> str:
        least, most = int(node.get("minLength", 0)), _whole(node.get("maxLength"))
        return self._writer.text_before(_TAG_END, least=least, most=most)


class GemmaArguments:
    """``key:value`` pairs between braces, with bare names, and strings between marks; in the order of the schema.

    Kept to are types, properties, required ones, fixed values and unions; patterns, lengths and numbers of items are not.
    """

    def __init__(self, writer: LarkWriter, schema: Mapping[str, Any]) -> None:
        self._writer = writer
        self._root = schema
        self._known: dict[str, str] = {}
        self._any: str | None = None

    def body(self) -> str:
        """The pairs, without the braces around them."""
        return self._pairs(_as_object(self._root, self._root), 0)

    def _pairs(self, node: Mapping[str, Any], depth: int) -> str:
        """Pairs in order, each optional one with or without; ``later[i]`` is what may follow once there was a pair."""
        required = set(node.get("required", ()))
        pairs = [
            (self._writer.rule(f"{json.dumps(name + ':')} {self._value(rule, depth + 1)}"), name in required)
            for name, rule in _properties(node).items()
        ]
        open_ended = self._writer.rule(self._other_pair()) if _takes_others(node) else None
        later = f'("," {open_ended})*' if open_ended else '""'
        first = f"({open_ended} {later})?" if open_ended else '""'
        for pair, needed in reversed(pairs):
            with_it = f"{pair} {later}"
            behind = f'"," {pair} {later}'
            first = self._writer.rule(with_it if needed else f"{with_it} | {first}")
            later = self._writer.rule(behind if needed else f"{behind} | {later}")
        return first

    def _value(self, rule: Any, depth: int) -> str:
        if depth > _MOST_NESTED or rule is True or not isinstance(rule, Mapping):
            return self._anything()
        reference = rule.get("$ref")
        if isinstance(reference, str):
            if reference not in self._known:
                target = referred(dict(self._root), rule)
                # A rule that is named before it is written: schemas may refer to themselves.
                self._known[reference] = self._writer.rule("PLACE")
                body = self._anything() if target is None else self._value(target[1], depth + 1)
                self._writer.rewrite(self._known[reference], body)
            return self._known[reference]
        values = [rule["const"]] if "const" in rule else rule.get("enum")
        if isinstance(values, list):
            return alternatives([self._fixed(value) for value in values])
        branches = rule.get("anyOf")
        if isinstance(branches, list) and branches:
            return alternatives([self._value(branch, depth + 1) for branch in branches])
        types = json_types(rule, self._root)
        if not types or "allOf" in rule:
            return self._anything()
        return alternatives([self._of_type(kind, rule, depth) for kind in sorted(types)])

    def _of_type(self, kind: str, rule: Mapping[str, Any], depth: int) -> str:
        if kind == "string":
            return f"{self._writer.text(_QUOTE)} {self._writer.text_before(_QUOTE)}"
        if kind == "object":
            return f'"{{" {self._pairs(rule, depth)} "}}"'
        if kind == "array":
            item = self._writer.rule(self._value(rule.get("items", True), depth + 1))
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "null":
            return '"null"'
        if kind == "boolean":
            return '("true" | "false")'
        return self._writer.schema({**_numeric(rule), "type": kind})

    def _fixed(self, value: Any) -> str:
        if isinstance(value, str):
            return f"{self._writer.text(_QUOTE)} {json.dumps(value)} {self._writer.text(_QUOTE)}"
        if isinstance(value, (dict, list)):
            return self._anything()
        return json.dumps(json.dumps(value))

    def _anything(self) -> str:
        if self._any is None:
            self._any = self._writer.rule("PLACE")
            string = f"{self._writer.text(_QUOTE)} {self._writer.text_before(_QUOTE)}"
            pair = self._writer.rule(self._other_pair())
            number = self._writer.schema({"type": "number"})
            self._writer.rewrite(
                self._any,
                f'{string} | {number} | "true" | "false" | "null" | "[" ({self._any} ("," {self._any})*)? "]" '
                f'| "{{" ({pair} ("," {pair})*)? "}}"',
            )
        return self._any

    def _other_pair(self) -> str:
        return f'/[A-Za-z0-9_.$-]{{1,64}}/ ":" {self._anything()}'


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, Mapping) else {}


def _as_object(node: Any, root: Mapping[str, Any], depth: int = 0) -> Mapping[str, Any]:
    """The properties that arguments have by a schema and by what it is put together from; of alternatives, the first object."""
    node = _resolved(node, root)
    properties: dict[str, Any] = dict(_properties(node))
    required = list(node.get("required", ()))
    open_ended = _takes_others(node)
    branches = list(node.get("allOf", ()))
    objects = (b for b in node.get("anyOf", ()) if "object" in (json_types(b, root) or ("object",)))
    branches += [branch for branch in (next(objects, None),) if branch is not None]
    for branch in branches if depth < _MOST_NESTED else ():
        part = _as_object(branch, root, depth + 1)
        properties.update(_properties(part))
        required += part.get("required", ())
        open_ended = open_ended and _takes_others(part)
    return {"properties": properties, "required": required, "additionalProperties": open_ended}


def _takes_others(schema: Mapping[str, Any]) -> bool:
    """Whether an object may have properties that its schema does not list."""
    further = schema.get("additionalProperties", True)
    return bool(further) or isinstance(further, Mapping)


def _resolved(rule: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    for _ in range(8):
        if not isinstance(rule, Mapping):
            return {}
        target = referred(dict(root), rule)
        if target is None:
            return rule
        rule = target[1]
    return {}


def _without_strings(
    node: Mapping[str, Any], others: frozenset[str], root: Mapping[str, Any]
) -> Mapping[str, Any]:
    """What a union of strings and other things allows beside strings."""
    branches = node.get("anyOf")
    if isinstance(branches, list):
        kept = [branch for branch in branches if "string" not in (json_types(branch, root) or ("string",))]
        return {**node, "anyOf": kept or [{"type": sorted(others)}]}
    return {**node, "type": sorted(others)}


def _numeric(rule: Mapping[str, Any]) -> dict[str, Any]:
    names = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    return {name: rule[name] for name in names if name in rule}


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, (int, float)) else None
