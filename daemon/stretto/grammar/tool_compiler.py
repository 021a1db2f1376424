"""Compiling the grammar of calls: schemas that fail are found one by one and widened, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llguidance

from stretto.conversation.constraint import Constraint
from stretto.errors import InvalidRequest
from stretto.grammar.call_grammar import CallableTool, call_grammar
from stretto.grammar.lark import LarkWriter, alternatives
from stretto.grammar.rules import AnswerRules
from stretto.grammar.schema import read_schema
from stretto.grammar.tool_schema import Attempt, arguments_schema, repaired

Compile = Callable[[str], llguidance.LLMatcher]
"""Compiles Lark source."""


def compile_calls(rules: AnswerRules, compile_lark: Compile, attempt: Attempt) -> llguidance.LLMatcher:
    """The grammar of the calls that an answer may or must make; with the other thing that it may be, if there is one.

    Args:
        rules: with at least one function.
        compile_lark: see Compile.
        attempt: compiles a JSON Schema alone.

    Raises:
        InvalidRequest: ``invalid_tool_schema`` with the place; ``invalid_value`` for a grammar of the client's beside functions.
    """
    tools = [CallableTool(tool.name, arguments_schema(tool, param)) for tool, param in rules.tools]
    matcher = compile_lark(_source(rules, tools))
    if not matcher.is_error():
        return matcher
    tools = [_mended(rules, index, tool, compile_lark, attempt) for index, tool in enumerate(tools)]
    matcher = compile_lark(_source(rules, tools))
    if not matcher.is_error():
        return matcher
    # Each can be compiled, all together are too much.
    strict = [tool.strict for tool, _ in rules.tools]
    tools = [
        tool if its_strict else _any_arguments(tool.name)
        for tool, its_strict in zip(tools, strict, strict=True)
    ]
    matcher = compile_lark(_source(rules, tools))
    if matcher.is_error():
        raise InvalidRequest(
            "The schemas of the functions are too much to be honoured together.",
            code="invalid_tool_schema",
            param=rules.tools[0][1].partition("[")[0],
            remedy='Offer fewer functions, or leave out "strict".',
        )
    return matcher


def _mended(
    rules: AnswerRules, index: int, tool: CallableTool, compile_lark: Compile, attempt: Attempt
) -> CallableTool:
    spec, param = rules.tools[index]
    schema = dict(tool.schema)
    error = attempt(schema)
    if error:
        schema = repaired(schema, error, attempt, spec, param)
    mended = CallableTool(tool.name, schema)
    matcher = compile_lark(_source(rules, [mended]))
    if not matcher.is_error():
        return mended
    if spec.strict:
        raise InvalidRequest(
            f"The parameters of the function '{spec.name}' cannot be honoured in the form in which this model writes calls.",
            code="invalid_tool_schema",
            param=param,
            remedy='Simplify them, or leave out "strict".',
        )
    return _any_arguments(spec.name)


def _any_arguments(name: str) -> CallableTool:
    return CallableTool(name, {"type": "object"})


def _source(rules: AnswerRules, tools: list[CallableTool]) -> str:
    assert rules.dialect is not None
    return call_grammar(
        rules.dialect,
        tools,
        parallel=rules.parallel,
        marks=rules.marks,
        loose=not rules.strict,
        answer=None if rules.constraint is None or rules.must_call else _answer_of(rules.constraint),
    )


def _answer_of(constraint: Constraint) -> Callable[[LarkWriter], str]:
    """Writes the rule of a constraint that was found to compile alone."""

    def write(writer: LarkWriter) -> str:
        if constraint.kind == "choice":
            return alternatives([json.dumps(choice) for choice in json.loads(constraint.text)])
        if constraint.kind == "regex":
            return writer.rule(f"/{llguidance.regex_to_lark(constraint.text, 'dw')}/")
        if constraint.kind == "lark":
            raise InvalidRequest(
                f"'{constraint.param}' and functions cannot go together: a grammar has no place for calls.",
                param=constraint.param,
                remedy='Leave one of them out, or send tool_choice "none".',
            )
        schema: dict[str, Any] = {"type": "object"}
        if constraint.kind == "json_schema":
            schema = read_schema(constraint.text, constraint.param)
        return writer.schema(schema)

    return write
