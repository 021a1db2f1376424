"""What an answer has to keep to as a whole: reasoning, calls of functions, and the form of its text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from stretto.conversation.constraint import Constraint
from stretto.conversation.messages import ToolSpec
from stretto.conversation.reasoning import ReasoningFormat
from stretto.conversation.tool_dialects import ToolDialect


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """See the module's text.

    Attributes:
        tools: the functions that may be called, each with the request's field that holds its parameters.
        must_call: whether the answer is calls and nothing else.
        parallel: whether it may hold several.
        dialect: how calls are written; None where there are no tools.
        constraint: what its text has to keep to, if it calls nothing.
        reasoning: how the model marks its reasoning, or None.
        budget_tokens: most tokens of reasoning, or None.
        marks: control tokens that are marks, with their texts.
    """

    tools: tuple[tuple[ToolSpec, str], ...] = ()
    must_call: bool = False
    parallel: bool = True
    dialect: ToolDialect | None = None
    constraint: Constraint | None = None
    reasoning: ReasoningFormat | None = None
    budget_tokens: int | None = None
    marks: Mapping[int, str] = field(default_factory=dict)

    @property
    def strict(self) -> bool:
        """Whether the text is held to a grammar from its first character on."""
        return self.must_call or self.constraint is not None

    @property
    def free(self) -> bool:
        """Whether there is nothing to keep to."""
        return not (self.strict or self.tools or self.limits_reasoning)

    @property
    def limits_reasoning(self) -> bool:
        """Whether there is reasoning that may have to be ended."""
        return self.reasoning is not None and self.budget_tokens is not None

    def key(self) -> str:
        """The same for rules that need the same grammars."""
        constraint = None if self.constraint is None else (self.constraint.kind, self.constraint.text)
        tools = [(tool.name, tool.parameters, tool.strict) for tool, _ in self.tools]
        dialect = None if self.dialect is None else self.dialect.name
        return json.dumps([dialect, tools, self.must_call, self.parallel, constraint])
