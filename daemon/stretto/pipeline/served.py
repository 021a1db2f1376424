"""The one model that this daemon serves, as its callers see it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stretto.conversation import AnswerFormat
from stretto.errors import NotFound


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What ``GET /v1/models`` reports.

    Attributes:
        id: the name clients should use.
        aliases: other names that mean the same model; ``*`` in one stands for any text.
        created: Unix seconds at which the weights were installed.
        context_tokens: the context that is really allocated, for prompt and answer together.
        family: architecture.
        capabilities: what it can do; see ``capabilities_of``.
    """

    id: str
    aliases: tuple[str, ...]
    created: int
    context_tokens: int
    family: str
    backend: str
    device: str
    dtype: str
    capabilities: tuple[str, ...] = ("chat",)

    @property
    def max_output_tokens(self) -> int:
        """The longest answer there can be: all the context but one prompt token."""
        return self.context_tokens - 1

    def resolve(self, name: str) -> None:
        """Accept a model name of a request.

        Raises:
            NotFound: it is neither the id nor an alias; one daemon owns one model.
        """
        if name != self.id and not any(_matches(alias, name) for alias in self.aliases):
            raise NotFound(
                f"The model '{name[:100]}' is not served here; this daemon serves '{self.id}'.",
                code="model_not_found",
                param="model",
                remedy=f"Set model to '{self.id}', or start the daemon with --model or --model-alias.",
            )


def capabilities_of(form: AnswerFormat | None) -> tuple[str, ...]:
    """What a model can do, by the form of its answers; None for one that has no chat template."""
    if form is None:
        return ("completion",)
    reasoning = () if form.reasoning is None else ("reasoning",)
    return ("chat", "completion", "tools", "structured_output", *reasoning)


def _matches(alias: str, name: str) -> bool:
    if "*" not in alias:
        return alias == name
    return re.fullmatch(".*".join(map(re.escape, alias.split("*"))), name, re.DOTALL) is not None
