"""Compiling what a request wants its answer to keep to, by llguidance (Microsoft, MIT licence)."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import llguidance
import numpy as np

from stretto.conversation.answer_format import Thinking
from stretto.conversation.constraint import Constraint
from stretto.conversation.tokenizer import Tokenizer
from stretto.errors import EngineError, InvalidRequest
from stretto.grammar.answer_follower import AnswerFollower
from stretto.grammar.faults import find_fault
from stretto.grammar.follower import GrammarFollower, IdArray
from stretto.grammar.lark import WHITE_SPACE
from stretto.grammar.rules import AnswerRules
from stretto.grammar.schema import read_schema
from stretto.grammar.spelling import Spelling
from stretto.grammar.tool_compiler import compile_calls
from stretto.grammar.vocabulary import Vocabulary, llguidance_tokenizer

MOST_TEXT_BYTES = 1 << 16
"""Of a regular expression, a grammar or a list of choices."""
MOST_COLONS = 1000
"""Each rule of a Lark grammar, and each schema inside it, has one; compiling recurses from rule to rule."""

_STACK_BYTES = 64 << 20
"""Enough for the deepest recursion that the limits on size allow. Untouched stack is not memory."""
_MESSAGE_CHARS = 300

Result = TypeVar("Result")


class CompiledGrammar:
    """A grammar that any number of answers may follow, each from its beginning."""

    def __init__(
        self, matcher: llguidance.LLMatcher, vocab_size: int, end_ids: IdArray, barred_ids: IdArray
    ) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._end_ids = end_ids
        self._barred_ids = barred_ids

    def follow(self) -> GrammarFollower:
        """For one answer, at its beginning."""
        return GrammarFollower(self._matcher.deep_copy(), self._vocab_size, self._end_ids, self._barred_ids)


class CompiledAnswer:
    """The rules of an answer, ready for any number of answers to follow."""

    def __init__(
        self,
        rules: AnswerRules,
        spelling: Spelling,
        *,
        strict: CompiledGrammar | None,
        calls: CompiledGrammar | None,
    ) -> None:
        self._rules = rules
        self._spelling = spelling
        self._strict = strict
        self._calls = calls

    def follow(self, thinking: Thinking) -> AnswerFollower | GrammarFollower:
        """For one answer, at its beginning.

        Args:
            thinking: whether it may begin with reasoning, which is none of the grammar's business.
        """
        rules = self._rules
        reasoning = None if thinking == "none" else rules.reasoning
        if reasoning is None and self._strict is not None:
            return self._strict.follow()
        names = tuple(tool.name for tool, _ in rules.tools)
        dialect = rules.dialect if self._calls is not None else None
        return AnswerFollower(
            self._spelling,
            thinking=None if reasoning is None else (reasoning.start, reasoning.end),
            opened=thinking == "open",
            budget_tokens=rules.budget_tokens,
            strict=None if self._strict is None else self._strict.follow,
            calls=None if self._calls is None else self._calls.follow,
            triggers=() if dialect is None else dialect.openers,
            leading=() if dialect is None else dialect.leading_triggers(names),
        )


class GrammarCompiler:
    """Compiles for one model's vocabulary; keeps the last grammars. Any thread may use it, and its ``compile…`` methods block.

    Args:
        tokenizer: the model's; read in whole with the first grammar.
        marks: control tokens that are marks of reasoning or calls, with their texts.
        cache_entries: how many grammars are kept.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, marks: Mapping[int, str] | None = None, cache_entries: int = 32
    ) -> None:
        self._tokenizer = tokenizer
        self._marks = dict(marks or {})
        self._spelling: Spelling | None = None
        self._cache_entries = cache_entries
        self._cache: OrderedDict[tuple[str, str], CompiledGrammar] = OrderedDict()
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._vocabulary: llguidance.LLTokenizer | None = None
        self._words: Vocabulary | None = None
        self._end_ids: IdArray = np.array(sorted(tokenizer.end_ids), dtype=np.intp)
        self._barred_ids: IdArray = np.zeros(0, dtype=np.intp)
        self._compiled = 0
        self._found = 0
        self._refused = 0

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """The grammar of a constraint. Takes milliseconds as a rule, and some seconds for the largest.

        Raises:
            InvalidRequest: ``invalid_schema`` or ``unsupported_schema`` with the place in the schema; ``invalid_grammar`` for an expression,
                a grammar or a list of choices that cannot be used; ``unsupported_value`` when the model has no end token.
        """
        return self._kept((constraint.kind, constraint.text), lambda: self._compile(constraint))

    def compile_answer(self, rules: AnswerRules) -> CompiledAnswer:
        """The grammars that an answer's rules need.

        Raises:
            InvalidRequest: as ``compile``; ``invalid_tool_schema`` for a function's parameters.
        """
        strict = None if rules.constraint is None else self.compile(rules.constraint)
        calls = None
        if rules.tools:
            grammar = self._kept(("calls", rules.key()), lambda: self._compile_calls(rules))
            strict, calls = (grammar, None) if rules.strict else (None, grammar)
        with self._reading:
            if self._spelling is None:
                self._spelling = Spelling(self._read_words(), self._tokenizer, self._marks)
        return CompiledAnswer(rules, self._spelling, strict=strict, calls=calls)

    def _kept(self, key: tuple[str, str], compile_: Callable[[], CompiledGrammar]) -> CompiledGrammar:
        """A grammar of the cache, or a new one."""
        with self._lock:
            known = self._cache.get(key)
            if known is not None:
                self._cache.move_to_end(key)
                self._found += 1
                return known
        try:
            # A thread's stack decides how deep a grammar may nest before the whole process dies.
            grammar = self._on_deep_stack(compile_)
        except InvalidRequest:
            with self._lock:
                self._refused += 1
            raise
        with self._lock:
            self._compiled += 1
            self._cache[key] = grammar
            while len(self._cache) > self._cache_entries:
                self._cache.popitem(last=False)
        return grammar

    def stats(self) -> dict[str, object]:
        """Counts, for ``status``."""
        with self._lock:
            return {
                "kept": len(self._cache),
                "compiled_total": self._compiled,
                "found_total": self._found,
                "refused_total": self._refused,
            }

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        vocabulary = self._read_vocabulary(constraint.param)
        if constraint.kind in ("json_object", "json_schema"):
            matcher = self._json(constraint, vocabulary)
        else:
            matcher = self._text(constraint, vocabulary)
        grammar = CompiledGrammar(matcher, vocabulary.vocab_size, self._end_ids, self._barred_ids)
        try:
            grammar.follow().allowed()
        except EngineError as error:
            schema = constraint.kind == "json_schema"
            raise InvalidRequest(
                f"'{constraint.param}' matches nothing that this model could write: {error.message}",
                code="invalid_schema" if schema else "invalid_grammar",
                param=constraint.param,
            ) from error
        return grammar

    def _compile_calls(self, rules: AnswerRules) -> CompiledGrammar:
        param = rules.tools[0][1].partition("[")[0]
        vocabulary = self._read_vocabulary(param)

        def compile_lark(source: str) -> llguidance.LLMatcher:
            return _matcher(vocabulary, llguidance.LLMatcher.grammar_from_lark(source))

        def attempt(schema: dict[str, Any]) -> str:
            return _matcher(vocabulary, _json_grammar(schema)).get_error()

        matcher = compile_calls(rules, compile_lark, attempt)
        grammar = CompiledGrammar(
            matcher,
            vocabulary.vocab_size,
            self._end_ids,
            np.setdiff1d(self._barred_ids, np.array(sorted(self._marks), dtype=np.intp)),
        )
        try:
            grammar.follow().allowed()
        except EngineError as error:
            raise InvalidRequest(
                f"The functions cannot be called by this model: {error.message}",
                code="invalid_tool_schema",
                param=param,
            ) from error
        return grammar

    def _json(self, constraint: Constraint, vocabulary: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        if constraint.kind == "json_object":
            schema: dict[str, Any] = {"type": "object"}
        else:
            schema = read_schema(constraint.text, constraint.param)
        matcher = _matcher(vocabulary, _json_grammar(schema))
        if matcher.is_error():

            def attempt(variant: dict[str, Any]) -> str:
                return _matcher(vocabulary, _json_grammar(variant)).get_error()

            raise find_fault(schema, matcher.get_error(), attempt, constraint.param).error
        return matcher

    def _text(self, constraint: Constraint, vocabulary: llguidance.LLTokenizer) -> llguidance.LLMatcher:
        text, param = constraint.text, constraint.param
        if len(text.encode()) > MOST_TEXT_BYTES:
            raise _bad_grammar(param, f"it has more than {MOST_TEXT_BYTES} bytes")
        if constraint.kind != "choice" and text.count(":") > MOST_COLONS:
            raise _bad_grammar(param, f"it has more than {MOST_COLONS} colons (each rule has one)")
        if constraint.kind == "regex":
            # \d and \w are ASCII, as JSON Schema has them: what "any digit of Unicode" is differs from library to library.
            source = llguidance.LLMatcher.grammar_from_lark(
                f"start: /{llguidance.regex_to_lark(text, 'dw')}/"
            )
        elif constraint.kind == "choice":
            source = llguidance.LLMatcher.grammar_from_lark(_choice_grammar(json.loads(text)))
        else:
            source = llguidance.LLMatcher.grammar_from_lark(text)
        matcher = _matcher(vocabulary, source)
        if matcher.is_error():
            raise _bad_grammar(param, matcher.get_error())
        return matcher

    def _read_words(self) -> Vocabulary:
        """The vocabulary; only while ``_reading`` is held."""
        if self._words is None:
            self._words = Vocabulary(self._tokenizer)
        return self._words

    def _read_vocabulary(self, param: str) -> llguidance.LLTokenizer:
        with self._reading:
            if self._vocabulary is None:
                if not self._tokenizer.end_ids:
                    raise InvalidRequest(
                        f"'{param}' cannot be honoured: the model has no token that ends an answer.",
                        code="unsupported_value",
                        param=param,
                    )
                words = self._read_words()
                self._barred_ids = np.setdiff1d(
                    np.array(words.special_token_ids, dtype=np.intp), self._end_ids
                )
                self._vocabulary = llguidance_tokenizer(words)
            return self._vocabulary

    def _on_deep_stack(self, work: Callable[[], Result]) -> Result:
        results: list[Result] = []
        errors: list[BaseException] = []

        def run() -> None:
            try:
                results.append(work())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name="grammar", daemon=True)
        with self._lock:
            # The size is the process's: a thread that starts elsewhere just now gets a larger stack too, which does no harm.
            before = threading.stack_size(_STACK_BYTES)
            try:
                thread.start()
            finally:
                threading.stack_size(before)
        thread.join()
        if errors and not isinstance(errors[0], Exception):
            # A panic of the compiler is the request's misfortune; by its class it would end the daemon.
            raise RuntimeError("the grammar compiler panicked") from errors[0]
        if errors:
            raise errors[0]
        return results[0]


def _matcher(vocabulary: llguidance.LLTokenizer, source: str) -> llguidance.LLMatcher:
    limits = llguidance.LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=100_000,
        max_items_in_row=4_000,
        max_lexer_states=50_000,  # one to two kilobytes each
        max_grammar_size=500_000,
        verbose_errors=False,  # no part of the answer in an error
    )
    return llguidance.LLMatcher(vocabulary, source, log_level=0, limits=limits)


def _json_grammar(schema: dict[str, Any]) -> str:
    return llguidance.LLMatcher.grammar_from_json_schema(
        json.dumps(schema, ensure_ascii=False),
        overrides={"whitespace_pattern": WHITE_SPACE, "lenient": False, "coerce_one_of": False},
    )


def _choice_grammar(choices: list[str]) -> str:
    # JSON's escapes are Lark's too. The texts stand in rules as literals, never in names.
    return "start: " + " | ".join(json.dumps(choice) for choice in choices)


def _bad_grammar(param: str, reason: str) -> InvalidRequest:
    text = " ".join(reason.replace("<non-verbose/>", "").split())
    text = text if len(text) <= _MESSAGE_CHARS else text[: _MESSAGE_CHARS - 1] + "…"
    return InvalidRequest(f"'{param}' cannot be used: {text}", code="invalid_grammar", param=param)
