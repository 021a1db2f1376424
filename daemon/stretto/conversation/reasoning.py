"""Reasoning channels: how models mark what they think before they answer, and what their templates read about it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.conversation.messages import Reasoning


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models marks its reasoning.

    Attributes:
        name: for status.
        sign: a text that a template for such models has.
        start, end: around the reasoning.
        answers: marks with which the answer itself may begin; they are not part of it.
        goes_on: control tokens within ``end`` that end an answer elsewhere, and do not end this one.
    """

    name: str
    sign: str
    start: str
    end: str
    answers: tuple[str, ...] = ()
    goes_on: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """All the marks."""
        return self.start, self.end, *self.answers


_FORMATS = (
    ReasoningFormat(
        "harmony",
        "<|channel|>analysis",
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        answers=("<|channel|>final<|message|>",),
        goes_on=("<|end|>",),
    ),
    ReasoningFormat(
        "gemma4", "<|channel>", "<|channel>thought\n", "<channel|>", answers=("<|channel>final\n",)
    ),
    ReasoningFormat("mistral", "[THINK]", "[THINK]", "[/THINK]"),
    ReasoningFormat("seed", "<seed:think>", "<seed:think>", "</seed:think>"),
    ReasoningFormat("think", "</think>", "<think>", "</think>"),
)

_SWITCHES = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"
_BUDGET = "thinking_budget"


def choose_reasoning(source: str) -> ReasoningFormat | None:
    """The format of a template's model, or None where it does not think."""
    return next((known for known in _FORMATS if known.sign in source), None)


def wants_reasoning(reasoning: Reasoning) -> bool | None:
    """Whether a request wants the model to think; None leaves it to the template."""
    if reasoning.enabled is not None:
        return reasoning.enabled
    if reasoning.effort is not None:
        return reasoning.effort not in ("none", "minimal")
    return True if reasoning.budget_tokens else None


def reasoning_variables(reasoning: Reasoning, reads: Collection[str]) -> Mapping[str, Any]:
    """What a request says about reasoning, in the variables that a template reads."""
    values: dict[str, Any] = {}
    wanted = wants_reasoning(reasoning)
    if wanted is not None:
        values.update({name: wanted for name in _SWITCHES if name in reads})
    if reasoning.effort is not None and _EFFORT in reads:
        values[_EFFORT] = reasoning.effort
    if reasoning.budget_tokens is not None and _BUDGET in reads:
        values[_BUDGET] = reasoning.budget_tokens
    return values
