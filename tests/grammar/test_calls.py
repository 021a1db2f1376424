"""Calls that a grammar allows are valid calls, in every dialect, whatever the model draws."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from stretto.backends.echo import EchoTokenizer
from stretto.conversation import Constraint, Finish, ToolSpec
from stretto.conversation.channels import ChannelReader
from stretto.conversation.tool_dialects import TOOL_DIALECTS
from stretto.errors import InvalidRequest
from stretto.grammar import GrammarCompiler
from support.conversation_calls import EXAMPLES, TOOLS, Example
from support.grammar_walks import WordTokenizer, calls_of, check_calls, draw, events_of, rules_of, text_of

NAMES = sorted(TOOL_DIALECTS)
NODE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["value"],
    "additionalProperties": False,
}
HARD = (
    *TOOLS,
    ToolSpec("free", parameters={"type": "object"}),
    ToolSpec(
        "mixed",
        parameters={
            "type": "object",
            "properties": {
                "one": {"anyOf": [{"type": "string"}, {"type": "object", "properties": {"z": {"type": "number"}}, "required": ["z"]}]},
                "list": {"type": "array", "items": {"enum": ["x", 1, None]}},
                "flag": {"type": ["boolean", "null"]},
                "kind": {"const": "a b"},
                "node": {"$ref": "#/$defs/node"},
            },
            "required": ["kind", "flag"],
            "$defs": {"node": NODE},
        },
    ),
)  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(EchoTokenizer())


def reader_of(dialect: str, tools: tuple[ToolSpec, ...] = HARD) -> ChannelReader:
    return ChannelReader(dialect=TOOL_DIALECTS[dialect], tools=tools)


@pytest.mark.parametrize("dialect", NAMES)
def test_required_always_gives_valid_calls(compiler: GrammarCompiler, dialect: str) -> None:
    tokenizer = EchoTokenizer()
    ended = 0
    for seed in range(14):
        parallel = seed % 2 == 0
        ids, done = draw(compiler, tokenizer, rules_of(dialect, HARD, parallel=parallel), seed)
        if not done:
            continue
        ended += 1
        events = events_of(tokenizer, ids, reader_of(dialect), ended=True)
        calls = calls_of(events)
        assert calls
        assert text_of(events) == ""
        assert events[-1] == Finish(0, "tool_calls")
        assert parallel or len(calls) == 1
        check_calls(calls, HARD)
    assert ended >= 7


@pytest.mark.parametrize("dialect", NAMES)
def test_a_named_function_is_the_only_one(compiler: GrammarCompiler, dialect: str) -> None:
    tokenizer = EchoTokenizer()
    for seed in range(4):
        ids, done = draw(compiler, tokenizer, rules_of(dialect, HARD[1:2], parallel=False), seed)
        assert done
        events = events_of(tokenizer, ids, reader_of(dialect), ended=True)
        assert {name for name, _ in calls_of(events)} == {HARD[1].name}


@pytest.mark.parametrize(
    "example", [e for e in EXAMPLES if e.calls], ids=lambda e: f"{e.dialect}-{EXAMPLES.index(e)}"
)
def test_auto_lets_the_model_speak_and_holds_it_once_it_calls(
    compiler: GrammarCompiler, example: Example
) -> None:
    """The script is followed as far as it is allowed; the rest is random. Whatever comes, the calls are valid."""
    tokenizer = EchoTokenizer()
    raw = example.raw.encode()
    rules = rules_of(example.dialect, HARD, must_call=False)
    for seed in range(3):
        cut = random.Random(seed).randint(0, len(raw))
        ids, done = draw(compiler, tokenizer, rules, seed, script=raw[:cut])
        if done:
            check_calls(calls_of(events_of(tokenizer, ids, reader_of(example.dialect), ended=True)), HARD)
    free = b"Just words, {braces} and [brackets] <b>and</b> tags."
    assert draw(compiler, tokenizer, rules, 1, script=free) == (list(free), True)


@pytest.mark.parametrize(
    "dialect", [name for name in NAMES if TOOL_DIALECTS[name].syntax.arguments == "json"]
)
def test_what_is_written_as_the_model_would_is_allowed_throughout(
    compiler: GrammarCompiler, dialect: str
) -> None:
    """The strict grammar has the very form that templates write, so our calls are the text that the model was trained on."""
    syntax = TOOL_DIALECTS[dialect].syntax
    calls = [("get_weather", '{"city": "London", "days": 3}'), ("clock", "{}")]
    text = (
        syntax.first
        + syntax.between.join(TOOL_DIALECTS[dialect].write(*call) for call in calls)
        + syntax.last
    )
    for must_call in (True, False):
        follower = compiler.compile_answer(rules_of(dialect, TOOLS, must_call=must_call)).follow("none")
        for byte in text.encode():
            allowed = follower.allowed()
            assert allowed is None or byte in allowed
            follower.accept(byte)
        allowed = follower.allowed()
        assert allowed is not None
        assert 258 in allowed


def test_after_a_call_there_are_only_more_calls_or_the_end(compiler: GrammarCompiler) -> None:
    raw = b'So: <tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    for parallel, expected in ((True, {9, 10, 32, 60, 258, 259}), (False, {10, 32, 258, 259})):
        follower = compiler.compile_answer(
            rules_of("hermes", TOOLS, must_call=False, parallel=parallel)
        ).follow("none")
        for byte in raw:
            follower.accept(byte)
        allowed = follower.allowed()
        assert allowed is not None
        assert set(allowed.tolist()) == expected


@pytest.mark.parametrize("dialect", NAMES)
@pytest.mark.parametrize("must_call", [True, False])
def test_after_the_only_call_there_is_but_the_end(
    compiler: GrammarCompiler, dialect: str, must_call: bool
) -> None:
    """Whatever else the model would like to say, in every dialect: its call, at most one space or line break, and the end."""
    tokenizer = EchoTokenizer()
    rules = rules_of(dialect, TOOLS[1:2], must_call=must_call, parallel=False)
    syntax = TOOL_DIALECTS[dialect].syntax
    arguments = "{}" if syntax.arguments == "json" else ""
    call = (
        syntax.first + syntax.before + "clock" + syntax.middle + arguments + syntax.after + syntax.last
    ).encode()
    # In JSON there may be white space within the call too, which the model would not write.
    for gap in (b"", b" ", b"\n"):
        wanted = call + gap + syntax.between.encode() + call
        ids, ended = draw(compiler, tokenizer, rules, 1, script=wanted)
        assert ended
        assert bytes(ids) in (call, call + b" ", call + b"\n")
        events = events_of(tokenizer, ids, reader_of(dialect, TOOLS), ended=True)
        assert calls_of(events) == [("clock", "{}")]
        assert text_of(events) == ""
        assert events[-1] == Finish(0, "tool_calls")


def test_marks_that_are_control_tokens() -> None:
    tokenizer = WordTokenizer(marks=["[TOOL_CALLS]", "[ARGS]", "[UNUSED]"])
    compiler = GrammarCompiler(tokenizer, marks=tokenizer.marks)
    ids, done = draw(compiler, tokenizer, rules_of("mistral-args", TOOLS, marks=tokenizer.marks), 1)
    assert done
    assert ids[0] == 260
    assert 261 in ids
    assert 262 not in ids
    check_calls(calls_of(events_of(tokenizer, ids, reader_of("mistral-args"), ended=True)), TOOLS)
    auto = rules_of("mistral-args", TOOLS, must_call=False, marks=tokenizer.marks)
    ids, done = draw(compiler, tokenizer, auto, 1, script=[*b"Hm.", 260, *b"no_such_tool"])
    assert done
    events = events_of(tokenizer, ids, reader_of("mistral-args"), ended=True)
    assert text_of(events) == "Hm."
    check_calls(calls_of(events), TOOLS)
    assert calls_of(events)


def test_tokens_that_go_beyond_an_opener() -> None:
    """What a token has of the call already is taken along; if it is no call's, no call was opened."""
    tokenizer = WordTokenizer(words=[b'call>\n{"na', b"call> is a tag", b" <tool_"])
    compiler = GrammarCompiler(tokenizer)
    rules = rules_of("hermes", TOOLS, must_call=False)
    ids, done = draw(compiler, tokenizer, rules, 3, script=[*b"Hm", 262, 260])
    assert done
    events = events_of(tokenizer, ids, reader_of("hermes"), ended=True)
    assert text_of(events) == "Hm"
    check_calls(calls_of(events), TOOLS)
    assert calls_of(events)
    assert draw(compiler, tokenizer, rules, 3, script=[262, 261]) == ([262, 261], True)


def test_text_of_a_form_beside_calls(compiler: GrammarCompiler) -> None:
    tokenizer = EchoTokenizer()
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    for constraint, check in (
        (
            Constraint("json_schema", json.dumps(schema), "f"),
            lambda text: json.loads(text)["ok"] in (True, False),
        ),
        (Constraint("choice", '["yes", "no"]', "f"), lambda text: text in ("yes", "no")),
        (Constraint("regex", "[0-9]{3}", "f"), lambda text: len(text) == 3 and text.isdecimal()),
        (Constraint("json_object", "", "f"), lambda text: isinstance(json.loads(text), dict)),
    ):
        rules = rules_of("hermes", TOOLS, must_call=False, constraint=constraint)
        kinds = set()
        for seed in range(8):
            script = b"<tool_call>" if seed % 2 else b""
            ids, done = draw(compiler, tokenizer, rules, seed, script=script)
            if not done:
                continue
            events = events_of(tokenizer, ids, reader_of("hermes"), ended=True)
            if calls := calls_of(events):
                check_calls(calls, TOOLS)
                kinds.add("call")
            else:
                assert check(text_of(events))
                kinds.add("text")
        assert "call" in kinds
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile_answer(
            rules_of(
                "hermes",
                TOOLS,
                must_call=False,
                constraint=Constraint("lark", 'start: "a"', "guided_grammar"),
            )
        )
    assert caught.value.param == "guided_grammar"


def test_many_functions(compiler: GrammarCompiler) -> None:
    rule = {
        "type": "object",
        "properties": {f"p{i}": {"type": "string"} for i in range(10)},
        "required": ["p0"],
    }
    tools = tuple(ToolSpec(f"tool-{i}.x", "d", rule) for i in range(80))
    tokenizer = EchoTokenizer()
    ids, done = draw(compiler, tokenizer, rules_of("hermes", tools, parallel=False), 2)
    assert done
    check_calls(calls_of(events_of(tokenizer, ids, reader_of("hermes", tools), ended=True)), tools)


def test_the_same_functions_are_compiled_once() -> None:
    compiler = GrammarCompiler(EchoTokenizer())
    for _ in range(3):
        compiler.compile_answer(rules_of("hermes", TOOLS))
    assert compiler.stats()["compiled_total"] == 1


def test_a_description_is_no_part_of_a_grammar(compiler: GrammarCompiler) -> None:
    nasty: Any = '"\n start: "x" | %ignore /a/ {{ }} %json {"a": 1}'
    tool = ToolSpec(
        "f",
        nasty,
        {"type": "object", "description": nasty, "properties": {nasty: {"type": "null", "title": nasty}}},
    )
    tokenizer = EchoTokenizer()
    for dialect in ("hermes", "qwen3-coder", "gemma4"):
        compiler.compile_answer(rules_of(dialect, (tool,)))
    ids, done = draw(compiler, tokenizer, rules_of("hermes", (tool,), parallel=False), 4)
    assert done
    check_calls(calls_of(events_of(tokenizer, ids, reader_of("hermes", (tool,)), ended=True)), (tool,))
