"""Reasoning before the text: free as long as it may last, ended when it is used up, and the grammar holds from its end on."""

from __future__ import annotations

import json

import pytest

from stretto.backends.echo import EchoTokenizer
from stretto.conversation import Constraint, ReasoningDelta, Thinking
from stretto.conversation.channels import ChannelReader
from stretto.conversation.reasoning import choose_reasoning
from stretto.conversation.tool_dialects import TOOL_DIALECTS
from stretto.grammar import AnswerRules, GrammarCompiler, GrammarFollower
from support.conversation_calls import THINK, TOOLS
from support.grammar_walks import WordTokenizer, calls_of, draw, events_of, rules_of, text_of

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
JSON = Constraint("json_schema", json.dumps(SCHEMA), "f")
CALL = b'<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
END = 258


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(EchoTokenizer())


def said(
    compiler: GrammarCompiler,
    rules: AnswerRules,
    script: bytes,
    thinking: Thinking = "possible",
    tokenizer: EchoTokenizer | None = None,
) -> bytes:
    """What an answer becomes that would follow the script."""
    tokenizer = tokenizer or EchoTokenizer()
    ids, _ = draw(compiler, tokenizer, rules, 1, thinking=thinking, script=script)
    return b"".join(map(tokenizer.token_bytes, ids))


def test_rules_without_anything_to_keep_to_are_free() -> None:
    assert AnswerRules(reasoning=THINK).free
    assert AnswerRules(budget_tokens=3).free
    assert not AnswerRules(reasoning=THINK, budget_tokens=3).free
    assert not AnswerRules(constraint=JSON).free
    assert not rules_of("hermes", TOOLS, must_call=False).free


def test_without_reasoning_the_grammar_is_all_there_is(compiler: GrammarCompiler) -> None:
    follower = compiler.compile_answer(AnswerRules(constraint=JSON, reasoning=THINK)).follow("none")
    assert isinstance(follower, GrammarFollower)


@pytest.mark.parametrize("gap", [b"", b"\n", b"\n\n", b"\n\n\n"])
def test_structured_text_begins_after_the_reasoning(compiler: GrammarCompiler, gap: bytes) -> None:
    rules = AnswerRules(constraint=JSON, reasoning=THINK)
    script = b"<think>\nFree {text} <b>, and </thin, \xc3\xa9.\n</think>" + gap + b'{"a": 12}'
    assert said(compiler, rules, script) == script
    assert said(compiler, rules, script.removeprefix(b"<think>"), "open") == script.removeprefix(b"<think>")
    assert said(compiler, rules, b'{"a": 12}') == b'{"a": 12}'


def test_what_is_neither_reasoning_nor_the_grammar_s_is_not_said(compiler: GrammarCompiler) -> None:
    rules = AnswerRules(constraint=JSON, reasoning=THINK)
    assert said(compiler, rules, b"Hello")[:1] in (b"{", b"<")
    text = said(compiler, rules, b"<think></think>Hello")
    assert json.loads(text.removeprefix(b"<think></think>")).keys() == {"a"}


def test_an_answer_does_not_end_within_its_reasoning(compiler: GrammarCompiler) -> None:
    """Not if its text has to be something."""
    for rules, may in (
        (AnswerRules(constraint=JSON, reasoning=THINK), False),
        (AnswerRules(reasoning=THINK, budget_tokens=99), True),
    ):
        follower = compiler.compile_answer(rules).follow("open")
        allowed = follower.allowed()
        assert (allowed is None or END in allowed) is may


def test_reasoning_and_calls_may_begin_alike(compiler: GrammarCompiler) -> None:
    rules = rules_of("hermes", TOOLS, parallel=False, reasoning=THINK)
    assert said(compiler, rules, CALL) == CALL
    assert said(compiler, rules, b"<think>hm</think>\n\n" + CALL) == b"<think>hm</think>\n\n" + CALL
    follower = compiler.compile_answer(rules).follow("possible")
    follower.accept(ord("<"))
    allowed = follower.allowed()
    assert allowed is not None
    assert allowed.tolist() == [ord("t")]
    follower.accept(ord("t"))
    allowed = follower.allowed()
    assert allowed is not None
    assert allowed.tolist() == [ord("h"), ord("o")]


def test_a_call_within_the_reasoning_is_held_too(compiler: GrammarCompiler) -> None:
    tokenizer = EchoTokenizer()
    rules = rules_of("hermes", TOOLS, must_call=False, parallel=False, reasoning=THINK)
    script = b'<think>I call <tool_call>\n{"name": "nonsense'
    ids, ended = draw(compiler, tokenizer, rules, 3, thinking="possible", script=script)
    assert ended
    reader = ChannelReader(reasoning=THINK, dialect=TOOL_DIALECTS["hermes"], tools=TOOLS)
    assert len(calls_of(events_of(tokenizer, ids, reader, ended=True))) == 1


@pytest.mark.parametrize("budget", [0, 1, 5, 12])
def test_a_budget_ends_the_reasoning(compiler: GrammarCompiler, budget: int) -> None:
    script = b"<think>0123456789 and so on</think>Text"
    rules = AnswerRules(reasoning=THINK, budget_tokens=budget)
    text = said(compiler, rules, script)
    thought = script[7 : 7 + budget]
    assert text.startswith(b"<think>" + thought + b"</think>")
    opened = said(compiler, rules, script[7:], "open")
    assert opened.startswith(thought + b"</think>")
    # Reasoning that ends by itself is left alone, and so is an answer without any.
    assert said(compiler, rules, b"<think></think>Text") == b"<think></think>Text"
    assert said(compiler, rules, b"Text <think>, and more") == b"Text <think>, and more"


def test_a_budget_does_not_cut_a_character_nor_a_mark(compiler: GrammarCompiler) -> None:
    rules = AnswerRules(reasoning=THINK, budget_tokens=2)
    assert said(compiler, rules, "a😀b".encode(), "open").startswith("a😀</think>".encode())
    assert said(compiler, rules, b"</think>Text", "open") == b"</think>Text"
    assert said(compiler, rules, b"a<b", "open").startswith(b"a</think>")


def test_a_budget_and_a_grammar(compiler: GrammarCompiler) -> None:
    rules = AnswerRules(constraint=JSON, reasoning=THINK, budget_tokens=4)
    tokenizer = EchoTokenizer()
    ids, ended = draw(compiler, tokenizer, rules, 1, thinking="open", script=b"on and on and on")
    assert ended
    text = bytes(ids)
    assert text.startswith(b"on a</think>")
    events = events_of(tokenizer, ids, ChannelReader(reasoning=THINK, opened=True), ended=True)
    assert json.loads(text_of(events)).keys() == {"a"}
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "on a"


def test_tokens_that_end_the_reasoning_and_go_on() -> None:
    """Such a token may be drawn only where the grammar allows what it goes on with."""
    tokenizer = WordTokenizer(words=[b">\n\n", b'>{"', b">Hello", b"</think>"])
    compiler = GrammarCompiler(tokenizer)
    rules = AnswerRules(constraint=JSON, reasoning=THINK)
    for word, may in ((260, True), (261, True), (262, False)):
        follower = compiler.compile_answer(rules).follow("open")
        for byte in b"a</think":
            follower.accept(byte)
        allowed = follower.allowed()
        assert (allowed is None or word in allowed) is may
    ids, ended = draw(compiler, tokenizer, rules, 1, thinking="open", script=[*b"a</think", 261])
    assert ended
    text = b"".join(map(tokenizer.token_bytes, ids))
    assert json.loads(text.partition(b">")[2]).keys() == {"a"}
    # A mark that is one token is forced as that token.
    budget = AnswerRules(reasoning=THINK, budget_tokens=1)
    assert draw(compiler, tokenizer, budget, 1, thinking="open", script=b"abc")[0][:2] == [97, 263]


def test_marks_of_reasoning_that_are_control_tokens() -> None:
    form = choose_reasoning("[THINK]")
    tokenizer = WordTokenizer(marks=["[THINK]", "[/THINK]"])
    compiler = GrammarCompiler(tokenizer, marks=tokenizer.marks)
    rules = AnswerRules(constraint=JSON, reasoning=form, budget_tokens=2, marks=tokenizer.marks)
    follower = compiler.compile_answer(rules).follow("possible")
    allowed = follower.allowed()
    assert allowed is not None
    assert allowed.tolist() == [ord("{"), 260]
    ids, ended = draw(compiler, tokenizer, rules, 1, thinking="possible", script=[260, *b"abc"])
    assert ended
    assert ids[:4] == [260, 97, 98, 261]


def test_an_answer_in_a_leading_form(compiler: GrammarCompiler) -> None:
    """Llama's calls begin like other JSON: only a function's name makes one of them."""
    rules = rules_of("llama3", TOOLS, must_call=False, parallel=False)
    other = b'{"name": "Ann", "age": 3} is JSON'
    assert said(compiler, rules, other, "none") == other
    call = b' {"name": "clock", "parameters": {}}'
    assert said(compiler, rules, call, "none") == call
    broken = said(compiler, rules, b'{"name": "clock", "nonsense"', "none")
    assert broken.startswith(b'{"name": "clock", "parameters"')
    later = b'See {"name": "clock", "nonsense"'
    assert said(compiler, rules, later, "none") == later


@pytest.mark.parametrize("dialect", ["hermes", "json"])
@pytest.mark.parametrize(
    "call",
    [
        b'{"name": "clock", "arguments": {}}',
        b'{\n  "name": "clock",\n  "arguments": {}\n}',
        b'{\n\t"name":\t"clock", "arguments": {}}',
        b'```json\n{\n    "name": "clock",\n    "arguments": {}\n}\n```',
        b'[\n    {\n        "name": "clock",\n        "arguments": {}\n    }\n]',
    ],
    ids=["bare", "lines", "tabs", "fenced", "listed"],
)
def test_a_call_without_tags_is_held_from_its_function_s_name_on(
    compiler: GrammarCompiler, dialect: str, call: bytes
) -> None:
    rules = rules_of(dialect, TOOLS, must_call=False, parallel=False)
    for script in (call, b"\n" + call):
        assert said(compiler, rules, script, "none") == script
    # From the name on nothing but its arguments can follow, whatever the model would say.
    begun = call[: call.index(b"clock") + 6]
    tokenizer = EchoTokenizer()
    for seed in range(3):
        ids, ended = draw(compiler, tokenizer, rules, seed, script=begun + b", this is no call")
        assert ended
        assert bytes(ids).startswith(begun)
        events = events_of(
            tokenizer, ids, ChannelReader(dialect=TOOL_DIALECTS[dialect], tools=TOOLS), ended=True
        )
        assert [(name, json.loads(arguments)) for name, arguments in calls_of(events)] == [("clock", {})]
        assert text_of(events) == ""


@pytest.mark.parametrize(
    "text",
    [
        b'{"name": "Ann", "arguments": 3} is JSON',
        b'{"arguments": {}, "name": "clock"} is JSON',
        b'```json\n{"name": "cloc", "x": 1}\n```',
        b"```python\nx = {'name': 'clock'}\n```",
        b'[{"clock": 1}, {"name": "clock", "arguments": 1}]',
        b'The call is {"name": "clock", "nonsense"',
        b'The call is\n```json\n{"name": "clock", "nonsense"',
    ],
)
def test_other_json_is_let_be(compiler: GrammarCompiler, text: bytes) -> None:
    rules = rules_of("hermes", TOOLS, must_call=False, parallel=False)
    assert said(compiler, rules, text, "none") == text
