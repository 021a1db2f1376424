"""Parameters as clients write them: what is meant is kept to, what cannot be is loosened, and only the impossible is refused."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from stretto.backends.echo import EchoTokenizer
from stretto.conversation import ToolSpec
from stretto.conversation.channels import ChannelReader
from stretto.conversation.tool_dialects import TOOL_DIALECTS
from stretto.errors import InvalidRequest
from stretto.grammar import GrammarCompiler
from support.grammar_schemas import MODELS
from support.grammar_walks import calls_of, check_calls, draw, events_of, rules_of


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(EchoTokenizer())


def arguments_of(
    compiler: GrammarCompiler, parameters: Any, seed: int = 1, dialect: str = "hermes", **more: Any
) -> Any:
    """Arguments of one random call; None when it did not end."""
    tool = ToolSpec("f", None, parameters, **more)
    tokenizer = EchoTokenizer()
    ids, done = draw(compiler, tokenizer, rules_of(dialect, (tool,), parallel=False), seed)
    if not done:
        return None
    reader = ChannelReader(dialect=TOOL_DIALECTS[dialect], tools=(tool,))
    [(name, arguments)] = calls_of(events_of(tokenizer, ids, reader, ended=True))
    assert name == "f"
    return json.loads(arguments)


def refusal(compiler: GrammarCompiler, parameters: Any, **more: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile_answer(rules_of("hermes", (ToolSpec("f", None, parameters, **more),)))
    assert caught.value.status == 400
    assert caught.value.code == "invalid_tool_schema"
    assert "'f'" in caught.value.message
    return caught.value


VALID: dict[str, Any] = {
    "a union": {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}}, "required": ["a", "b"]},
    "references": {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}, "b": {"$ref": "#/definitions/y"}}, "required": ["a", "b"], "$defs": {"x": {"enum": [1, 2]}}, "definitions": {"y": {"type": "null"}}},
    "recursion": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}}, "required": []},
    "merged": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}]},
    "missing types": {"properties": {"a": {"description": "anything"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]},
    "no properties": {"type": "object"},
    "empty properties": {"type": "object", "properties": {}},
    "nothing": {},
    "an optional object": {"anyOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"type": "null"}]},
    "unique items": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1}}},
    "a pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[ab]{2}$"}}, "required": ["a"]},
    "required but not listed": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a", "b"]},
    "annotations": {"type": "object", "title": "T", "properties": {"a": {"type": "integer", "title": "A", "default": 3, "examples": [1], "x-order": 1}}},
    "a draft of old": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}},
}  # fmt: skip


@pytest.mark.parametrize("name", VALID)
def test_calls_are_valid_by_the_schema(compiler: GrammarCompiler, name: str) -> None:
    found = 0
    for dialect in ("hermes", "qwen3-coder", "gemma4"):
        for seed in range(3):
            arguments = arguments_of(compiler, VALID[name], seed, dialect)
            if arguments is not None:
                found += 1
                jsonschema.Draft202012Validator(VALID[name]).validate(arguments)
    assert found >= 3


LOOSE: dict[str, tuple[Any, Any]] = {
    "an overlapping oneOf": ({"type": "object", "properties": {"a": {"oneOf": [{"type": "number", "minimum": 1}, {"type": "integer", "minimum": 5}]}}, "required": ["a"]}, {"a": {"type": "number", "minimum": 1}}),
    "types in capitals": ({"type": "OBJECT", "properties": {"a": {"type": "STRING", "enum": ["x"]}}, "required": ["a"]}, {"a": {"enum": ["x"]}}),
    "types of a language": ({"type": "dict", "properties": {"a": {"type": "int"}, "b": {"type": "float"}, "c": {"type": "bool"}}, "required": ["a", "b", "c"]}, {"a": {"type": "integer"}, "b": {"type": "number"}, "c": {"type": "boolean"}}),
    "an unknown type": ({"type": "object", "properties": {"a": {"type": "file"}, "b": {"type": "integer"}}, "required": ["b"]}, {"b": {"type": "integer"}}),
    "required in the property": ({"type": "object", "properties": {"a": {"type": "integer", "required": True}}, "required": ["a"]}, {"a": {"type": "integer"}}),
    "an empty enum": ({"type": "object", "properties": {"a": {"type": "boolean", "enum": []}}, "required": ["a"]}, {"a": {"type": "boolean"}}),
    "nullable": ({"type": "object", "properties": {"a": {"type": "integer", "nullable": True}}, "required": ["a"]}, {"a": {"type": ["integer", "null"]}}),
    "a tuple": ({"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "integer"}, {"type": "boolean"}], "minItems": 2, "additionalItems": False}}, "required": ["a"]}, {"a": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}]}}),
    "a reference to nowhere": ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}, "b": {"type": "integer"}}, "required": ["b"]}, {"b": {"type": "integer"}}),
    "a reference elsewhere": ({"type": "object", "properties": {"a": {"$ref": "https://example.org/x.json"}, "b": {"type": "integer"}}, "required": ["b"]}, {"b": {"type": "integer"}}),
    "look-around": ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)y"}, "b": {"type": "integer"}}, "required": ["a", "b"]}, {"a": {"type": "string"}, "b": {"type": "integer"}}),
    "an unknown format": ({"type": "object", "properties": {"a": {"type": "string", "format": "color"}}, "required": ["a"]}, {"a": {"type": "string"}}),
    "if and not": ({"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 1}}}, "required": ["a"], "if": {}, "then": {}}, {"a": {"type": "integer"}}),
    "limits of an older draft": ({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "exclusiveMinimum": True}}, "required": ["a"]}, {"a": {"type": "integer", "minimum": 1}}),
    "a schema that is none": ({"type": "object", "properties": {"a": "string", "b": {"type": "integer"}}, "required": ["b"]}, {"b": {"type": "integer"}}),
    "properties that are none": ({"type": "object", "properties": ["a"]}, {}),
    "itself": ({"type": "object", "properties": {"a": {"$ref": "#/properties/a"}, "b": {"type": "integer"}}, "required": ["b"]}, {"b": {"type": "integer"}}),
    "more than can be counted": ({"type": "object", "minProperties": 9, "additionalProperties": {"type": "integer"}}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOSE)
def test_what_cannot_be_kept_to_is_loosened_and_the_rest_is_kept(
    compiler: GrammarCompiler, name: str
) -> None:
    parameters, meant = LOOSE[name]
    found = 0
    for seed in range(6):
        arguments = arguments_of(compiler, parameters, seed)
        if arguments is not None:
            found += 1
            jsonschema.validate(arguments, {"type": "object", "properties": meant, "required": list(meant)})
    assert found


def test_names_of_arguments_are_not_made_up(compiler: GrammarCompiler) -> None:
    listed = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    for seed in range(6):
        assert set(arguments_of(compiler, listed, seed)) <= {"a"}
        assert arguments_of(compiler, {"type": "object", "properties": {}}, seed) == {}


def test_what_can_never_be_honoured(compiler: GrammarCompiler) -> None:
    error = refusal(compiler, {"type": "array", "items": {}})
    assert error.param == "tools[0].function.parameters.type"
    impossible = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}},
        "required": ["a"],
    }
    error = refusal(compiler, impossible)
    assert error.param is not None
    assert error.param.startswith("tools[0].function.parameters")


def test_strict_is_kept_to_or_refused_with_the_place(compiler: GrammarCompiler) -> None:
    unique = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    assert (
        refusal(compiler, unique, strict=True).param
        == "tools[0].function.parameters.properties.a.uniqueItems"
    )
    wrong = {"type": "object", "properties": {"a": {"type": "str"}}}
    assert refusal(compiler, wrong, strict=True).param == "tools[0].function.parameters.properties.a.type"
    closed = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 4}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert arguments_of(compiler, closed, strict=True)["a"] in (3, 4)
    # To the letter: other properties are allowed where the schema does not close them.
    grammar = compiler.compile_answer(
        rules_of("hermes", (ToolSpec("f", None, {"type": "object", "properties": {}}, strict=True),))
    )
    follower = grammar.follow("none")
    for byte in b'<tool_call>\n{"name": "f", "arguments": {"x':
        assert byte in (follower.allowed() if follower.allowed() is not None else [])
        follower.accept(byte)


def test_one_bad_schema_does_not_loosen_the_others(compiler: GrammarCompiler) -> None:
    good = ToolSpec("good", None, {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]})
    bad = ToolSpec("bad", None, {"type": "object", "properties": {"a": {"pattern": "(?!x)"}}})
    tokenizer = EchoTokenizer()
    for seed in range(6):
        ids, done = draw(compiler, tokenizer, rules_of("hermes", (bad, good), parallel=False), seed)
        reader = ChannelReader(dialect=TOOL_DIALECTS["hermes"], tools=(bad, good))
        if done:
            check_calls(calls_of(events_of(tokenizer, ids, reader, ended=True)), (bad, good))


def test_huge_schemas_become_any_object(compiler: GrammarCompiler) -> None:
    huge = {
        "type": "object",
        "properties": {
            f"p{n}": {"type": "object", "properties": {f"q{m}": {} for m in range(60)}} for n in range(60)
        },
    }
    assert isinstance(arguments_of(compiler, huge), dict)


@pytest.mark.parametrize(
    "model",
    [model for model in MODELS if model.model_json_schema().get("type") == "object"],
    ids=lambda model: model.__name__,
)
def test_schemas_of_pydantic(compiler: GrammarCompiler, model: Any) -> None:
    schema = model.model_json_schema()
    for dialect in ("hermes", "qwen3-coder", "gemma4"):
        tool = ToolSpec("f", None, schema)
        tokenizer = EchoTokenizer()
        ids, done = draw(compiler, tokenizer, rules_of(dialect, (tool,), parallel=False), 5)
        reader = ChannelReader(dialect=TOOL_DIALECTS[dialect], tools=(tool,))
        calls = calls_of(events_of(tokenizer, ids, reader, ended=done))
        if done:
            [(_, arguments)] = calls
            assert isinstance(json.loads(arguments), dict)
            if dialect == "hermes":
                check_calls(calls, (tool,))
