"""One sequence's life: what the caller asks of the engine, what the engine gives back, and the states between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from stretto.conversation.messages import SamplingParams
from stretto.conversation.priority import Priority
from stretto.engine.constraint import TokenConstraint
from stretto.errors import StrettoError


class Phase(Enum):
    """Where a sequence is. Terminal: FINISHED, CANCELLED, FAILED."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    GENERATING = "generating"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.PREFILLING, Phase.CANCELLED, Phase.FAILED}),
    Phase.PREFILLING: frozenset(
        {Phase.GENERATING, Phase.FINISHED, Phase.QUEUED, Phase.CANCELLED, Phase.FAILED}
    ),
    Phase.GENERATING: frozenset({Phase.FINISHED, Phase.QUEUED, Phase.CANCELLED, Phase.FAILED}),
    Phase.FINISHED: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.FAILED: frozenset(),
}
"""The only changes of phase there are. Back to QUEUED is preemption; it loses no token."""


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """What the engine needs to know to run one sequence.

    Attributes:
        id: unique among live sequences.
        prompt_ids: token ids of the whole prompt; at least one.
        sampling: see SamplingParams.
        max_tokens: most tokens to generate; 0 only reads the prompt. len(prompt_ids) + max_tokens is at most the context.
        end_token_ids: tokens that end the answer (they are reported, and counted).
        logprobs: alternatives to report for each token, or None.
        extra_key: what changes the KV besides the tokens (an adapter, the digests of images); only sequences with the same one
            share blocks.
        constraint: what the answer must keep to; of this sequence alone.
        prompt_logprobs: alternatives to report for each token of the prompt, or None. With it all of the prompt is computed, known or
            not.
        priority: in which order it starts, and how much of a step its prompt gets; changes nothing of the answer.
        predicted_ids: token ids of a text that much of the answer is expected to repeat; see ``Drafter``.
    """

    id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    end_token_ids: frozenset[int] = frozenset()
    logprobs: int | None = None
    extra_key: bytes = b""
    constraint: TokenConstraint | None = None
    prompt_logprobs: int | None = None
    priority: Priority = "normal"
    predicted_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer or of a prompt. ``logprob`` and ``top`` (id, logprob) only when asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Monotonic seconds spent, for the log and for ``status``."""

    queued_s: float
    prefill_s: float
    decode_s: float


MissReason = Literal["cold", "diverged", "evicted", "partial_block", "disabled", "logprobs"]


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """Why not all of a prompt that could be reused was.

    Attributes:
        position: the first token of the prompt that was not known.
        reason: ``cold``: nothing is known of it. ``diverged``: known text goes on differently there. ``evicted``: it was known,
            and room was needed. ``partial_block``: known text ended there, inside a block, and only full blocks are kept.
            ``disabled``: the cache is off. ``logprobs``: the prompt's log-probabilities were asked for, and known text has none.
    """

    position: int
    reason: MissReason

    def __str__(self) -> str:
        return f"{self.position}:{self.reason}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sequence ended.

    Attributes:
        phase: FINISHED, CANCELLED or FAILED.
        reason: ``stop`` (an end token) or ``length`` when finished, else None.
        cached_tokens: prompt tokens whose KV was found and not computed; a multiple of the block, less than the prompt.
        error: why it failed, else None.
        cache_miss: why the rest of the prompt was computed; None when nothing more could be reused, or nothing was computed.
    """

    phase: Phase
    reason: Literal["stop", "length"] | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    timing: Timing
    error: StrettoError | None = None
    cache_miss: CacheMiss | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """What one engine step (or several, if the reader was slow) gave a sequence.

    ``prefilled_tokens`` is how much of the prompt is in the KV memory so far, not only from these steps; ``cached_tokens`` of
    them were not computed. For ``cache_miss`` see ``Outcome``. ``prompt`` are the prompt's next tokens, where their log-probabilities
    were asked for; the first token of a prompt has none. ``accepted_tokens`` and ``rejected_tokens`` are what became of drafts until now:
    tokens that the model drew itself, and those that it did not.
    """

    id: str
    phase: Phase
    tokens: tuple[Token, ...] = ()
    prefilled_tokens: int = 0
    outcome: Outcome | None = None
    cached_tokens: int = 0
    cache_miss: CacheMiss | None = None
    prompt: tuple[Token, ...] = ()
    accepted_tokens: int = 0
    rejected_tokens: int = 0


Deliver = Callable[[Sequence[Update]], None]
"""Called on the event loop once a step with the updates of all sequences in it."""

Post = Callable[[Callable[[], None]], None]
"""Runs a function on the event loop, from any thread (``TrioToken.run_sync_soon``)."""


@dataclass(slots=True)
class SequenceStats:
    """One live sequence, as ``GET /admin/requests`` shows it."""

    id: str
    phase: str
    prompt_tokens: int
    prefilled_tokens: int
    completion_tokens: int
    max_tokens: int
    kv_blocks: int
    cached_tokens: int = 0
    age_s: float = field(default=0.0)
    priority: Priority = "normal"
