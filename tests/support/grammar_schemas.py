"""JSON Schemas of the kinds that clients really send, made by the hundred and reproducibly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

Schema = dict[str, Any]

REAL = Path(__file__).with_name("real_schemas.jsonl")

NAMES = [
    "id", "name", "title", "größe", "名前", "имя", "a b", 'qu"ote', "back\\slash", "new\nline", "emoji 🦄", "$ref", "type", "x-y",
    "0", "", "properties", "e\u0301", "tab\t", "price/€", "~tilde", "items", "enum", "null",
]  # fmt: skip
FORMATS = ("date", "date-time", "time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri", "duration")
PATTERNS = (
    r"^[A-Z]{2}\d{3}$", r"^#[0-9a-fA-F]{6}$", r"^\d{4}-\d{2}$", r"^(GET|POST|PUT)$", r"^[a-z0-9]+(-[a-z0-9]+)*$", r"^\+?\d{3,12}$",
    r"^[^@ ]+@[^@ ]+$", r"^.{2,5}$", r"[aeiou]", r"^\w+$", r"^(a|b)?c+$", r"^\S+$",
)  # fmt: skip


class Maker:
    """Random schemas from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._kinds: list[Callable[[int], Schema]] = [
            self.object, self.object, self.object, self.array, self.union, self.nullable, self.enum, self.text, self.number,
            self.integer, self.table, self.tuple, self.merged, self.tagged, self.scalar,
        ]  # fmt: skip

    def schema(self, depth: int = 0) -> Schema:
        """Any schema; leaves only, when it is deep."""
        if depth >= 3:
            return self.random.choice((self.scalar, self.enum, self.text, self.number, self.integer))(depth)
        made = self.random.choice(self._kinds)(depth)
        if self.random.random() < 0.3:
            made |= {"title": "T", "description": 'Some <|im_end|> words " { ]', "default": None}
        return made

    def object(self, depth: int) -> Schema:
        names = self.random.sample(NAMES, self.random.randint(1, 4))
        made: Schema = {"type": "object", "properties": {name: self.schema(depth + 1) for name in names}}
        made["required"] = [name for name in names if self.random.random() < 0.7]
        extra = self.random.random()
        if extra < 0.6:
            made["additionalProperties"] = False
        elif extra < 0.7:
            made["additionalProperties"] = self.scalar(depth)
        return made

    def table(self, depth: int) -> Schema:
        made: Schema = {"type": "object", "additionalProperties": self.schema(depth + 1)}
        if self.random.random() < 0.5:
            made = {
                "type": "object",
                "patternProperties": {"^x_": self.integer(depth)},
                "additionalProperties": False,
            }
        if self.random.random() < 0.4:
            made["maxProperties"] = self.random.randint(1, 3)
        elif self.random.random() < 0.4:
            made["minProperties"] = 1
        return made

    def array(self, depth: int) -> Schema:
        least = self.random.randint(0, 2)
        made: Schema = {"type": "array", "items": self.schema(depth + 1), "minItems": least}
        if self.random.random() < 0.8:
            made["maxItems"] = least + self.random.randint(0, 2)
        return made

    def tuple(self, depth: int) -> Schema:
        parts = [self.schema(depth + 1) for _ in range(self.random.randint(1, 3))]
        return {
            "type": "array",
            "prefixItems": parts,
            "items": False,
            "minItems": self.random.randint(0, len(parts)),
        }

    def union(self, depth: int) -> Schema:
        return {"anyOf": [self.schema(depth + 1) for _ in range(self.random.randint(2, 3))]}

    def nullable(self, depth: int) -> Schema:
        return {self.random.choice(("anyOf", "oneOf")): [self.object(depth + 1), {"type": "null"}]}

    def merged(self, depth: int) -> Schema:
        return {
            "allOf": [
                {"type": "object", "properties": {"a": self.schema(depth + 1)}, "required": ["a"]},
                {"type": "object", "properties": {"b": self.integer(depth)}, "required": ["b"]},
            ]
        }

    def tagged(self, depth: int) -> Schema:
        def branch(tag: str) -> Schema:
            properties = {"kind": {"const": tag}, "value": self.schema(depth + 1)}
            return {
                "type": "object",
                "properties": properties,
                "required": ["kind", "value"],
                "additionalProperties": False,
            }

        return {"oneOf": [branch("cat"), branch("dog")], "discriminator": {"propertyName": "kind"}}

    def enum(self, depth: int) -> Schema:
        values = ["red", "grün", 'a"b', "", 0, -1, 1.5, True, None, [1, "x"], {"k": "v"}, "line\nbreak", "🦄"]
        if self.random.random() < 0.2:
            return {"const": self.random.choice(values)}
        return {"enum": self.random.sample(values, self.random.randint(1, 5))}

    def text(self, depth: int) -> Schema:
        choice = self.random.random()
        if choice < 0.3:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        if choice < 0.6:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        least = self.random.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + self.random.randint(0, 20)}

    def number(self, depth: int) -> Schema:
        low = round(self.random.uniform(-100, 100), self.random.randint(0, 3))
        made: Schema = {"type": "number"}
        made[self.random.choice(("minimum", "exclusiveMinimum"))] = low
        if self.random.random() < 0.7:
            made[self.random.choice(("maximum", "exclusiveMaximum"))] = round(
                low + self.random.uniform(0.5, 1000), 2
            )
        return made

    def integer(self, depth: int) -> Schema:
        low = self.random.randint(-1000, 1000)
        made: Schema = {"type": "integer"}
        if self.random.random() < 0.7:
            made["minimum"] = low
        if self.random.random() < 0.7:
            made["maximum"] = low + self.random.randint(10, 10**6)
        if self.random.random() < 0.3:
            made["multipleOf"] = self.random.choice((1, 2, 3, 5, 7, 10))
        return made

    def scalar(self, depth: int) -> Schema:
        return {
            "type": self.random.choice(("string", "boolean", "null", "integer", "number", ["string", "null"]))
        }


class Address(BaseModel):
    street: str = Field(min_length=1, max_length=40)
    postcode: str = Field(pattern=r"^\d{5}$")
    country: Literal["DE", "FR", "JP"] = "DE"


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    email: str | None = None
    addresses: list[Address] = Field(max_length=2)
    tags: dict[str, int] = Field(default_factory=dict)


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    steps: list[Step] = Field(max_length=3)
    final_answer: str


class Tree(BaseModel):
    value: int
    children: list[Tree] = Field(max_length=2)


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float = Field(gt=0)


class Square(BaseModel):
    kind: Literal["square"]
    side: float = Field(gt=0, le=10)


class Drawing(BaseModel):
    shapes: list[Circle | Square] = Field(min_length=1, max_length=3)


MODELS: tuple[type[BaseModel], ...] = (Address, Person, Reasoning, Tree, Drawing)

WRITTEN: tuple[Schema, ...] = (
    # A linked list, and two kinds that refer to each other.
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"], "additionalProperties": False}}},
    {"type": "object", "properties": {"a": {"$ref": "#/definitions/a"}}, "required": ["a"], "definitions": {"a": {"type": ["object", "null"], "properties": {"b": {"$ref": "#/definitions/b"}}}, "b": {"type": "array", "items": {"$ref": "#/definitions/a"}, "maxItems": 2}}},
    # A tool's arguments as agents send them.
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"command": {"type": "string", "description": "The command"}, "timeout": {"type": "number"}, "mode": {"type": "string", "enum": ["read", "write"]}}, "required": ["command"], "additionalProperties": False},
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"pair": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False, "minItems": 2}}, "required": ["pair"]},
    # GeoJSON geometry.
    {"oneOf": [{"type": "object", "properties": {"type": {"const": "Point"}, "coordinates": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}}, "required": ["type", "coordinates"]}, {"type": "object", "properties": {"type": {"const": "LineString"}, "coordinates": {"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "array", "items": {"type": "number", "minimum": -180, "maximum": 180}, "minItems": 2, "maxItems": 2}}}, "required": ["type", "coordinates"]}]},
    # An OpenAPI component.
    {"type": "object", "properties": {"id": {"type": "integer", "format": "int64"}, "photoUrls": {"type": "array", "items": {"type": "string", "format": "uri"}, "maxItems": 2}, "status": {"type": "string", "enum": ["available", "pending", "sold"], "example": "sold"}, "price": {"type": "number", "multipleOf": 0.25, "minimum": 0, "nullable": True}}, "required": ["id", "status"]},
    {"type": "object"}, {"type": "array"}, {}, {"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"enum": [1]},
    {"type": "object", "properties": {}, "additionalProperties": False}, {"type": "object", "properties": {"a": True, "b": False}},
    {"type": "array", "uniqueItems": False, "items": {"type": "integer"}, "maxItems": 3},
    {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    {"required": ["a", "b"], "type": "object"}, {"minimum": 3}, {"type": ["integer", "string"], "minimum": 3, "maxLength": 2},
)  # fmt: skip

UNSUPPORTED: tuple[tuple[str, Schema], ...] = (
    ("uniqueItems", {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
    ("not", {"not": {"type": "string"}}),
    ("if", {"if": {"type": "string"}, "then": {"minLength": 3}}),
    ("unevaluatedProperties", {"type": "object", "unevaluatedProperties": False}),
    ("propertyNames", {"type": "object", "propertyNames": {"pattern": "^a"}}),
    ("contains", {"type": "array", "contains": {"type": "string"}}),
    ("dependentRequired", {"type": "object", "dependentRequired": {"a": ["b"]}}),
    ("dependentSchemas", {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}}),
    ("oneOf", {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]}),
    ("pattern", {"type": "string", "pattern": "^(?!x)y"}),
    ("pattern", {"type": "string", "pattern": r"(a)\1"}),
    ("format", {"type": "string", "format": "iban"}),
    ("minProperties", {"type": "object", "minProperties": 3}),
    ("$ref", {"$ref": "https://example.com/schema.json"}),
    ("$dynamicRef", {"$dynamicRef": "#node"}),
)


def real_schemas() -> list[tuple[str, Schema]]:
    """Names and schemas of the kinds that agents, web APIs, configuration and extraction bring, written for this project."""
    lines = REAL.read_text(encoding="utf-8").splitlines()
    return [(entry["name"], entry["schema"]) for entry in map(json.loads, lines)]


def collection(count: int) -> Iterator[tuple[str, Schema]]:
    """Names and schemas: those written by hand and by pydantic, then made ones, ``count`` in all."""
    fixed = [(f"written-{index}", schema) for index, schema in enumerate(WRITTEN)]
    fixed += real_schemas()
    fixed += [(model.__name__, model.model_json_schema()) for model in MODELS]
    yield from fixed
    for seed in range(count - len(fixed)):
        yield f"made-{seed}", Maker(seed).schema()


def buried(seed: int, schema: Schema) -> tuple[str, Schema]:
    """A schema somewhere inside another; the path to it as error messages write it."""
    rng = random.Random(seed)
    path = ""
    for _ in range(rng.randint(0, 3)):
        kind = rng.randrange(4)
        if kind == 0:
            path, schema = (
                ".properties.größe" + path,
                {"type": "object", "properties": {"größe": schema}, "required": ["größe"]},
            )
        elif kind == 1:
            path, schema = ".items" + path, {"type": "array", "items": schema, "minItems": 1}
        elif kind == 2:
            path, schema = ".anyOf[1]" + path, {"anyOf": [{"type": "null"}, schema]}
        else:
            path, schema = (
                ".additionalProperties" + path,
                {"type": "object", "additionalProperties": schema, "minProperties": 1},
            )
    return path, schema
