"""The grammar of an answer that calls functions, in the dialect of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.conversation.tool_dialects import Syntax, ToolDialect
from stretto.grammar.argument_forms import GemmaArguments, TaggedArguments
from stretto.grammar.lark import LarkWriter, alternatives

MOST_CALLS = 64
"""Of one answer: a model that goes on calling for ever is told to stop."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """A function's name, and the schema that its arguments are held to."""

    name: str
    schema: Mapping[str, Any]


def call_grammar(
    dialect: ToolDialect,
    tools: Sequence[CallableTool],
    *,
    parallel: bool,
    marks: Mapping[int, str],
    loose: bool,
    answer: Callable[[LarkWriter], str] | None = None,
) -> str:
    """Lark source: one call or several, and nothing else; or an answer of another kind.

    Args:
        dialect: how calls are written.
        tools: the functions that may be called; at least one.
        parallel: whether there may be several calls.
        marks: control tokens with their texts.
        loose: whether all of the dialect's forms will do, with more or less white space in them, as for a call that the model began;
            otherwise it is the form that models were trained on.
        answer: writes the body of a rule for what may come in place of calls.
    """
    writer = LarkWriter(marks)
    arguments = [_arguments(writer, dialect.syntax, tool) for tool in tools]
    forms = (dialect.syntax, *dialect.variants) if loose else (dialect.syntax,)
    bodies = [_calls(writer, form, tools, arguments, parallel=parallel, loose=loose) for form in forms]
    start = f"{alternatives(bodies)} /[ \\n]?/"
    return writer.source(start if answer is None else f"{start} | {answer(writer)}")


def _calls(
    writer: LarkWriter,
    form: Syntax,
    tools: Sequence[CallableTool],
    arguments: Sequence[str],
    *,
    parallel: bool,
    loose: bool,
) -> str:
    def text(fixed: str) -> str:
        return writer.text(fixed, loose=loose) if fixed else ""

    def call(tool: CallableTool, its_arguments: str) -> str:
        return f"{text(form.before + tool.name + form.middle)} {its_arguments} {text(form.after)}"

    one = writer.rule(alternatives([writer.rule(call(*pair)) for pair in zip(tools, arguments, strict=True)]))
    more = f"({text(form.between)} {one}){{0,{MOST_CALLS - 1}}}" if parallel else ""
    return writer.rule(f"{text(form.first)} {one} {more} {text(form.last)}")


def _arguments(writer: LarkWriter, form: Syntax, tool: CallableTool) -> str:
    if form.arguments == "xml":
        return writer.rule(TaggedArguments(writer, tool.schema).body())
    if form.arguments == "gemma":
        return writer.rule(GemmaArguments(writer, tool.schema).body())
    return writer.schema(tool.schema)
