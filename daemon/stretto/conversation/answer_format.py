"""How one model's answers are written: its tool dialect and its reasoning channel, and what both mean for prompts and answers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stretto.conversation.channels import ChannelReader
from stretto.conversation.described_tools import described
from stretto.conversation.messages import Message, Reasoning, Request, ToolSpec
from stretto.conversation.reasoning import (
    ReasoningFormat,
    choose_reasoning,
    reasoning_variables,
    wants_reasoning,
)
from stretto.conversation.template import ChatTemplate
from stretto.conversation.tokenizer import Tokenizer
from stretto.conversation.tool_dialects import TOOL_DIALECTS, ToolDialect, choose_tool_dialect
from stretto.conversation.turn_order import TurnOrder
from stretto.conversation.volatile import without_volatile_lines

AUTO = "auto"

Thinking = Literal["none", "possible", "open"]
"""Whether an answer is its text from the beginning, may begin with reasoning, or begins within it."""

_LOOKED_BACK_TOKENS = 48


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """See the module's text.

    Attributes:
        dialect: how it writes calls.
        reasoning: how it marks reasoning, or None.
        reads: the variables that its template reads.
        marks: control tokens that are marks of either, with their texts.
        order: in which its template takes turns.
    """

    dialect: ToolDialect
    reasoning: ReasoningFormat | None
    reads: frozenset[str]
    marks: Mapping[int, str]
    order: TurnOrder = field(default_factory=TurnOrder)

    @classmethod
    def of(cls, template: ChatTemplate, tokenizer: Tokenizer, dialect_name: str = AUTO) -> AnswerFormat:
        """The format of a model, from its template; ``dialect_name`` is one of TOOL_DIALECTS, or AUTO."""
        dialect = (
            choose_tool_dialect(template.source, template.reads)
            if dialect_name == AUTO
            else TOOL_DIALECTS[dialect_name]
        )
        reasoning = choose_reasoning(template.source)
        texts = (*dialect.openers, *dialect.syntax.texts, *dialect.marks)
        texts += () if reasoning is None else reasoning.texts
        marks = {}
        for special in tokenizer.special_texts:
            if special and any(special in text for text in texts):
                ids = tokenizer.encode(special, allow_special=True)
                if len(ids) == 1:
                    marks[ids[0]] = special
        return cls(dialect, reasoning, template.reads, marks, TurnOrder.of(template))

    def prepared(self, request: Request) -> Request:
        """A request as the template is to see it: without volatile lines, with its wishes about reasoning in the template's own variables,
        with turns in an order that the template takes, and with tools in a form that it can write."""
        messages = self.order.without_late_system(without_volatile_lines(request.messages))
        tools = offered_tools(request)
        if self.dialect.described:
            messages, tools = described(messages, tools, self.dialect), ()
        elif self.dialect.id_chars is not None:
            messages = tuple(_with_short_ids(message, self.dialect.id_chars) for message in messages)
        variables = reasoning_variables(request.reasoning, self.reads)
        return replace(
            request,
            messages=self.order.joined(messages),
            tools=tuple(tools),
            template_kwargs={**variables, **request.template_kwargs},
        )

    def end_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The tokens that end an answer: those that end one anywhere, but for those that a mark of the reasoning is made of."""
        goes_on = () if self.reasoning is None else self.reasoning.goes_on
        return tokenizer.end_ids - {token_id for token_id, text in self.marks.items() if text in goes_on}

    def thinking_after(self, prompt_ids: Sequence[int], tokenizer: Tokenizer) -> Thinking:
        """Where a prompt leaves the reasoning: it can be begun by the template, or begun and ended at once."""
        if self.reasoning is None:
            return "none"
        data = b"".join(
            self.marks[token_id].encode() if token_id in self.marks else tokenizer.token_bytes(token_id)
            for token_id in prompt_ids[-_LOOKED_BACK_TOKENS:]
        )
        end = data.decode("utf-8", "replace").rstrip()
        if end.endswith(self.reasoning.start.rstrip()):
            return "open"
        return "none" if end.endswith(self.reasoning.end.rstrip()) else "possible"

    def reasoning_budget(self, wish: Reasoning) -> int | None:
        """Most tokens of reasoning that a request wants; None leaves it to the model."""
        if self.reasoning is None:
            return None
        return 0 if wants_reasoning(wish) is False else wish.budget_tokens

    def channels(self, request: Request, *, opened: bool) -> ChannelReader | None:
        """What tells the channels of an answer apart; None where all of it is text."""
        tools = callable_tools(request)
        if self.reasoning is None and not tools:
            return None
        return ChannelReader(
            reasoning=self.reasoning,
            opened=opened,
            dialect=self.dialect,
            tools=tools,
            calls_in_reasoning=request.tool_choice.mode == "auto",
        )


def offered_tools(request: Request) -> tuple[ToolSpec, ...]:
    """The functions that the model is told of."""
    return () if request.tool_choice.mode == "none" else request.tools


def callable_tools(request: Request) -> tuple[ToolSpec, ...]:
    """The functions that the answer may call."""
    allowed = request.tool_choice.allowed
    return tuple(tool for tool in offered_tools(request) if allowed is None or tool.name in allowed)


def _with_short_ids(message: Message, chars: int) -> Message:
    """Ids of calls in the form that a template insists on; the same id always becomes the same."""

    def short(call_id: str) -> str:
        if len(call_id) == chars and call_id.isalnum() and call_id.isascii():
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:chars]

    return replace(
        message,
        tool_calls=tuple(replace(call, id=short(call.id)) for call in message.tool_calls),
        tool_call_id=None if message.tool_call_id is None else short(message.tool_call_id),
    )
