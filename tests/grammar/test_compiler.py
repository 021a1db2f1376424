"""What is compiled, kept, refused and bounded."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.backends.echo import EchoTokenizer
from stretto.conversation import Constraint
from stretto.conversation.constraint import ConstraintKind
from stretto.errors import EngineError, InvalidRequest
from stretto.grammar import CompiledGrammar, GrammarCompiler, GrammarFollower

IM_START, IM_END, END_OF_TEXT = 257, 258, 259


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(EchoTokenizer())


def of_schema(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema), "schema")


def refusal(compiler: GrammarCompiler, kind: ConstraintKind, text: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        compiler.compile(Constraint(kind, text, "field"))
    assert caught.value.status == 400
    return caught.value


def go(follower: GrammarFollower, text: bytes) -> GrammarFollower:
    for byte in text:
        assert byte in follower.allowed(), (text, byte)
        follower.accept(byte)
    return follower


OBJECT = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}


def test_end_tokens_are_allowed_only_where_the_answer_may_end(compiler: GrammarCompiler) -> None:
    follower = compiler.compile(of_schema(OBJECT)).follow()
    assert list(follower.allowed()) == [ord("{")]
    go(follower, b'{"a": 1')
    assert not {IM_END, END_OF_TEXT} & set(follower.allowed())
    go(follower, b"}")
    assert list(follower.allowed()) == [IM_END, END_OF_TEXT]
    follower.accept(IM_END)
    open_ended = go(compiler.compile(Constraint("regex", "a+", "f")).follow(), b"aa")
    assert list(open_ended.allowed()) == [ord("a"), IM_END, END_OF_TEXT]


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.2", "0.5", "0.001"], ["0", "0.0", "-0", "0.6"]),
        ({"exclusiveMinimum": 10, "exclusiveMaximum": 10.01}, ["10.005"], ["10", "10.0", "10.01"]),
        ({"minimum": -10.5, "exclusiveMaximum": -10}, ["-10.2", "-10.5"], ["-10", "-10.0", "-10.6"]),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0", "-0", "0.0", "-0.0"]),
        ({"exclusiveMinimum": 1, "minimum": 1.2, "maximum": 1.5}, ["1.3", "1.2"], ["1", "1.1", "1.6"]),
        ({"exclusiveMinimum": 1, "maximum": 2}, ["1.5", "2"], ["1", "1.0", "2.1"]),
        ({"exclusiveMinimum": 1000, "maximum": 1000.5}, ["1000.5"], ["1000"]),
    ],
)
def test_excluded_bounds_are_kept_to(
    compiler: GrammarCompiler, bounds: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    grammar = compiler.compile(of_schema({"type": "number", **bounds}))

    def allows(text: str) -> bool:
        follower = grammar.follow()
        for byte in text.encode():
            if byte not in follower.allowed():
                return False
            follower.accept(byte)
        return IM_END in follower.allowed()

    assert {text: allows(text) for text in good + bad} == {text: text in good for text in good + bad}


def test_white_space_is_bounded_everywhere(compiler: GrammarCompiler) -> None:
    follower = go(compiler.compile(of_schema(OBJECT)).follow(), b"{\n" + b" " * 12)
    assert list(follower.allowed()) == [ord('"')]
    follower = go(compiler.compile(of_schema({})).follow(), b"[ ")
    assert not {ord(" "), ord("\n"), ord("\t")} & set(follower.allowed())
    # Not before and not after the value.
    start = compiler.compile(Constraint("json_object", "", "f")).follow()
    assert list(start.allowed()) == [ord("{")]
    assert list(go(start, b"{}").allowed()) == [IM_END, END_OF_TEXT]


def test_options_of_the_compiler_are_not_the_clients_to_set(compiler: GrammarCompiler) -> None:
    options = {"whitespace_pattern": "[x ]+", "lenient": True, "coerce_one_of": True}
    grammar = compiler.compile(of_schema({**OBJECT, "x-guidance": options}))
    assert ord("x") not in go(grammar.follow(), b"{").allowed()
    for keyword in ({"uniqueItems": True}, {"oneOf": [{"type": "number"}, {"type": "integer"}]}):
        error = refusal(compiler, "json_schema", json.dumps({**keyword, "x-guidance": options}))
        assert (error.code, error.param) == ("unsupported_schema", f"field.{next(iter(keyword))}")


def test_answers_do_not_touch_each_other(compiler: GrammarCompiler) -> None:
    grammar = compiler.compile(Constraint("choice", '["ab", "cd"]', "f"))
    first, second = grammar.follow(), grammar.follow()
    go(first, b"ab")
    assert list(second.allowed()) == [ord("a"), ord("c")]
    assert list(grammar.follow().allowed()) == [ord("a"), ord("c")]


def test_control_tokens_are_no_text(compiler: GrammarCompiler) -> None:
    """The grammar has the characters of ``<|im_end|>``, never the token."""
    follower = compiler.compile(Constraint("choice", '["<|im_end|>"]', "f")).follow()
    assert list(follower.allowed()) == [ord("<")]
    for grammar in ('start: <|im_end|> "a"', "start: <[257]>", 'start: <[258]> "a"'):
        assert refusal(compiler, "lark", grammar).code == "invalid_grammar"


def test_schemas_that_are_none_are_told_from_those_that_cannot_be_honoured(compiler: GrammarCompiler) -> None:
    def told(schema: Any) -> tuple[str, str | None]:
        error = refusal(compiler, "json_schema", json.dumps(schema))
        return error.code, error.param

    assert told({"type": "strang"}) == ("invalid_schema", "field.type")
    assert told({"properties": {"a b": {"minimum": "x"}}}) == (
        "invalid_schema",
        "field.properties.a b.minimum",
    )
    assert told({"items": [{"type": "string"}]}) == ("invalid_schema", "field.items")
    assert told({"$schema": "urn:none"}) == ("invalid_schema", "field.$schema")
    assert told({"anyOf": [{"$ref": "#/$defs/x"}]}) == ("invalid_schema", "field.anyOf[0].$ref")
    assert told({"properties": {"n": {"$ref": "urn:elsewhere"}}}) == (
        "unsupported_schema",
        "field.properties.n.$ref",
    )
    assert told({"$ref": "#"}) == ("invalid_schema", "field")
    impossible = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}},
        "required": ["a"],
    }
    assert told(impossible)[0] == "invalid_schema"
    # Through a reference, and through one that comes back to itself.
    node = {
        "type": "object",
        "properties": {"kids": {"items": {"$ref": "#/$defs/node"}, "uniqueItems": True}},
    }
    assert told({"properties": {"t": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}) == (
        "unsupported_schema",
        "field.$defs.node.properties.kids.uniqueItems",
    )
    # A definition that nothing uses harms nobody.
    compiler.compile(of_schema({"type": "string", "$defs": {"unused": {"uniqueItems": True}}}))


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("regex", "(?=a)b", "look-around"),
        ("regex", "(a", "unclosed"),
        ("regex", r"(a)\1", "backreferences"),
        ("regex", r"[^\s\S]", "nothing"),
        ("lark", "start: nope", "nope"),
        ("lark", "start: ((", "Expected"),
        ("lark", "start: a\na: a", "nothing"),
        ("lark", 'start: %json {"uniqueItems": true}', "uniqueItems"),
    ],
)
def test_grammars_that_cannot_be_used(
    compiler: GrammarCompiler, kind: ConstraintKind, text: str, words: str
) -> None:
    error = refusal(compiler, kind, text)
    assert (error.code, error.param) == ("invalid_grammar", "field")
    assert words in error.message
    assert "\n" not in error.message


def test_text_of_the_client_is_never_part_of_the_grammar(compiler: GrammarCompiler) -> None:
    for text in ('" | "x', "\n%ignore /x/", "\\", "a{3}", "$", "é\u2028"):
        grammar = compiler.compile(Constraint("choice", json.dumps([text]), "f"))
        assert list(go(grammar.follow(), text.encode()).allowed()) == [IM_END, END_OF_TEXT]
    for text in ("a/b", "a\\/b", "[/]"):
        go(compiler.compile(Constraint("regex", text, "f")).follow(), b"/" if text == "[/]" else b"a/b")


def test_grammars_are_kept_up_to_a_number() -> None:
    compiler = GrammarCompiler(EchoTokenizer(), cache_entries=2)
    first = compiler.compile(Constraint("regex", "a", "f"))
    assert compiler.compile(Constraint("regex", "a", "elsewhere")) is first
    compiler.compile(Constraint("regex", "b", "f"))
    compiler.compile(Constraint("regex", "a", "f"))
    compiler.compile(Constraint("regex", "c", "f"))  # b goes: a was used later
    assert compiler.compile(Constraint("regex", "a", "f")) is first
    refusal(compiler, "regex", "(")
    assert compiler.stats() == {"kept": 2, "compiled_total": 3, "found_total": 3, "refused_total": 1}


def test_compiling_from_several_threads(compiler: GrammarCompiler) -> None:
    found: list[CompiledGrammar] = []
    threads = [
        threading.Thread(
            target=lambda n=n: found.append(compiler.compile(Constraint("regex", f"x{n % 3}", "f")))
        )
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12


class Endless(EchoTokenizer):
    end_ids: frozenset[int] = frozenset()


class Vowelless(EchoTokenizer):
    """Has no token for the byte ``a``."""

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == ord("a") else super().token_bytes(token_id)


class Spacing(EchoTokenizer):
    """Puts a space before every text, as SentencePiece does."""

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        return [32, *super().encode(text, allow_special=allow_special)]


def test_vocabularies_of_other_kinds() -> None:
    assert refusal(GrammarCompiler(Endless()), "regex", "a").code == "unsupported_value"
    lacking = GrammarCompiler(Vowelless())
    assert refusal(lacking, "regex", "a").code == "invalid_grammar"
    go(lacking.compile(Constraint("choice", '["cab", "cob"]', "f")).follow(), b"cob")
    stuck = go(lacking.compile(Constraint("choice", '["cab"]', "f")).follow(), b"c")
    with pytest.raises(EngineError) as caught:
        stuck.allowed()
    assert caught.value.code == "grammar_stuck"
    go(GrammarCompiler(Spacing()).compile(of_schema(OBJECT)).follow(), b'{"a":1}')


def chain(length: int, link: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    links = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "string"}}}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema, "maxItems": 1_000_000}
    return schema


def doubling(levels: int) -> dict[str, Any]:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**twice, f"d{levels}": {"type": "object"}}}


def crossing(width: int) -> dict[str, Any]:
    return {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{i}_{j}": {"type": "string"}}} for j in range(6)]}
            for i in range(width)
        ]
    }


HOSTILE: dict[str, tuple[ConstraintKind, Callable[[], Any]]] = {
    "a long chain": ("json_schema", lambda: chain(990, lambda ref: {"type": "object", "properties": {"a": ref}})),
    "a longer chain": ("json_schema", lambda: chain(20_000, lambda ref: ref)),
    "a chain of unions": ("json_schema", lambda: chain(990, lambda ref: {"anyOf": [ref, {"type": "null"}]})),
    "a circle": ("json_schema", lambda: {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
    "itself": ("json_schema", lambda: {"anyOf": [{"$ref": "#"}]}),
    "nested arrays": ("json_schema", lambda: nested(28)),
    "doubling": ("json_schema", lambda: doubling(25)),
    "a product": ("json_schema", lambda: crossing(12)),
    "a long string": ("json_schema", lambda: {"type": "string", "minLength": 10**9, "maxLength": 2 * 10**9}),
    "many properties": ("json_schema", lambda: {"properties": {f"p{n}": {"type": "integer"} for n in range(5000)}}),
    "many values": ("json_schema", lambda: {"enum": list(range(5001))}),
    "large multiples": ("json_schema", lambda: {"type": "integer", "multipleOf": 10**9 + 7}),
    "large text": ("json_schema", lambda: {"description": "x" * 300_000}),
    "a bad pattern": ("json_schema", lambda: {"type": "string", "pattern": "(" * 20_000 + ")" * 20_000}),
    "an exponential pattern": ("json_schema", lambda: {"type": "string", "pattern": "(a|b)*a(a|b){200}"}),
    "brackets": ("regex", lambda: "(" * 30_000 + "a" + ")" * 30_000),
    "repeats": ("regex", lambda: "((a{1000}){1000}){1000}"),
    "a chain of rules": ("lark", lambda: "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(900)) + '\nr900: "a"'),
    "a chain of terminals": ("lark", lambda: "start: R0\n" + "\n".join(f'R{n}: ("b" R{n + 1})+' for n in range(900)) + '\nR900: "a"'),
    "a longer chain of rules": ("lark", lambda: "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(5000)) + '\nr5000: "a"'),
    "ambiguity": ("lark", lambda: 'start: start start | "a"'),
    "deep groups": ("lark", lambda: "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "schemas in a grammar": ("lark", lambda: "start: %json " + json.dumps(chain(3000, lambda ref: ref))),
}  # fmt: skip

_TRIAL = """
import sys, json, random
from stretto.backends.echo import EchoTokenizer
from stretto.conversation import Constraint
from stretto.errors import EngineError, InvalidRequest
from stretto.grammar import GrammarCompiler
compiler = GrammarCompiler(EchoTokenizer())
rng = random.Random(1)
for name, kind, text in json.load(sys.stdin):
    print(name, end=": ", flush=True)
    try:
        follower = compiler.compile(Constraint(kind, text, "f")).follow()
        for _ in range(200):
            ids = follower.allowed()
            if ids[-1] > 256:
                break
            follower.accept(int(rng.choice(ids)))
        print("usable", flush=True)
    except (InvalidRequest, EngineError) as error:
        print(error.code, flush=True)
"""


@pytest.mark.timeout(300)
def test_hostile_ones_end_in_a_grammar_or_a_refusal() -> None:
    """In a process of its own: what goes wrong here ends the whole process, without an exception."""
    trials = []
    for name, (kind, make) in HOSTILE.items():
        made = make()
        trials.append((name, kind, made if isinstance(made, str) else json.dumps(made)))
    run = subprocess.run(
        [sys.executable, "-c", _TRIAL], input=json.dumps(trials), capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stdout + run.stderr[-2000:]
    found = dict(line.split(": ") for line in run.stdout.splitlines())
    assert found.keys() == HOSTILE.keys()
    assert set(found.values()) <= {
        "usable",
        "unsupported_schema",
        "invalid_schema",
        "invalid_grammar",
        "grammar_too_complex",
    }


def test_a_random_walk_of_each_thread_ends(compiler: GrammarCompiler) -> None:
    """Compiled on a deep stack, followed on ordinary ones."""
    schema = chain(
        300,
        lambda ref: {
            "type": "object",
            "properties": {"a": ref},
            "required": ["a"],
            "additionalProperties": False,
        },
    )
    follower = compiler.compile(of_schema(schema)).follow()
    rng = random.Random(1)
    written = bytearray()
    while True:
        token = int(rng.choice([token for token in follower.allowed() if token not in (32, 10)]))
        if token in (IM_END, END_OF_TEXT):
            break
        follower.accept(token)
        written.append(token)
        if written.endswith(b'"a":"'):
            go(follower, b'"')
            written += b'"'
    document = json.loads(written.decode())
    depth = 0
    while isinstance(document, dict):
        document, depth = document["a"], depth + 1
    assert depth == 300


def test_nothing_of_a_path_or_a_file_is_needed() -> None:
    import stretto.grammar

    root = Path(stretto.grammar.__file__).parent
    for source in root.glob("*.py"):
        assert not any(word in source.read_text() for word in ("import os", "open(", "pathlib", "socket")), (
            source
        )
