"""The canonical answer: one stream of events for all dialects.

For each choice: an ``Echo`` if one was asked for, any number of ``ReasoningDelta``, ``TextDelta`` and tool calls (a ``ToolCallStart``, then its ``ToolCallDelta``s), then
exactly one ``Finish``. The last event of all is ``Done``, with the usage. An error raises out of the stream (a ``StrettoError``) and ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class TopLogprob:
    """One alternative at a position. ``token`` is text, ``data`` its bytes (a token may be half a character)."""

    token: str
    logprob: float
    data: bytes


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The token at a position and its alternatives, most likely first. The first token of a prompt has no ``logprob``."""

    token: str
    logprob: float | None
    data: bytes
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Echo:
    """A choice begins with its prompt. ``logprobs`` has an entry for each token of it, or is empty when none were asked for.

    An entry's ``data`` is what the token adds to ``text``, control tokens included; nothing for a BOS that was added.
    """

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """The next piece of a choice's text; never empty except to carry logprobs. ``logprobs`` is empty when none were asked for."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """The next piece of what a choice thinks before it answers; never empty."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A choice calls a function. ``call`` counts the choice's calls from 0; calls do not interleave."""

    index: int
    call: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """The next piece of a call's arguments: JSON text; never empty."""

    index: int
    call: int
    arguments: str


@dataclass(frozen=True, slots=True)
class Finish:
    """A choice has ended. ``stop_string`` is the stop string that ended it, if one did."""

    index: int
    reason: FinishReason
    stop_string: str | None = None


_PICO = 10**12


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request, always counted, never estimated.

    ``completion_tokens`` are the tokens of all choices, up to and with the one that ended each (end token and stop string
    included). ``cached_tokens`` of the prompt were not computed again; ``stored_tokens`` of it were computed and are kept, while there is
    room, for requests that begin alike. ``accepted_tokens`` of the completion were guessed before the model came to them, and
    ``rejected_tokens`` were guessed wrongly, which changes nothing but the time. ``cost_pico`` is what was paid, in 1e-12 US dollars, or None where nothing is billed.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    stored_tokens: int = 0
    cost_pico: int | None = None
    accepted_tokens: int = 0
    rejected_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def cost(self) -> dict[str, float]:
        """What was paid, for the ``usage`` of a reply: ``cost`` in US dollars, as OpenRouter has it; empty where nothing is billed."""
        return {} if self.cost_pico is None else {"cost": self.cost_pico / _PICO}


@dataclass(frozen=True, slots=True)
class Done:
    """All choices have ended."""

    usage: Usage


Event = Echo | TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | Finish | Done
