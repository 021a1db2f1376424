"""A sequence while the engine has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from stretto.backends.base import Chunk, Int32Array
from stretto.conversation.priority import PRIORITIES
from stretto.engine.drafts import Drafter
from stretto.engine.prefix import PrefixNode
from stretto.engine.sampler import SamplerState
from stretto.engine.sequence import (
    TRANSITIONS,
    CacheMiss,
    Outcome,
    Phase,
    SequenceRequest,
    SequenceStats,
    Timing,
    Token,
    Update,
)
from stretto.errors import StrettoError

NO_DRAFT: Int32Array = np.empty(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class LiveSequence:
    """A request, how far it got, and the KV blocks it holds.

    Attributes:
        request: what was asked.
        prompt: int32, the prompt's token ids.
        sampler: draws its tokens.
        submitted_at: clock time of each stage, None before it.
        phase: changed by ``advance`` only.
        prefilled: tokens of the prompt that are in the KV memory.
        tokens: the answer so far.
        block_tables: blocks held, one array a layer group; empty while queued and after the end. -1 stands for a block that its
            window has left behind.
        chain: the known blocks that it holds, from its first token on.
        digests: of its blocks from the first on, as far as they were needed.
        cached_tokens: of ``prefilled``, those that were found and not computed.
        cache_miss, explained: why the others are computed, once that was asked.
        unpublished: what it computes is told to nobody any more.
        restoring: more of its prompt is about to be read from a store, so nothing of it is computed yet.
        cancelled: the caller wants it ended; it ends at the next chance.
        rank: the place of its priority among ``PRIORITIES``, 0 the most urgent; less once it has waited too long.
        drafter: guesses what its answer says next, once that was asked.
        accepted_tokens, rejected_tokens: see Update.
    """

    request: SequenceRequest
    prompt: Int32Array
    sampler: SamplerState
    submitted_at: float
    phase: Phase = Phase.QUEUED
    prefilled: int = 0
    tokens: list[int] = field(default_factory=list)
    block_tables: tuple[Int32Array, ...] = ()
    chain: list[PrefixNode] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    cached_tokens: int = 0
    cache_miss: CacheMiss | None = None
    explained: bool = False
    unpublished: bool = False
    restoring: bool = False
    cancelled: bool = False
    drafter: Drafter | None = None
    accepted_tokens: int = 0
    rejected_tokens: int = 0
    started_at: float | None = None
    first_token_at: float | None = None
    rank: int = field(init=False)
    _prompt_bytes: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.rank = PRIORITIES.index(self.request.priority)
        self._prompt_bytes = self.prompt.tobytes()

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def reserved_tokens(self) -> int:
        """Tokens for which it needs KV memory before it starts."""
        return len(self.prompt) + self.request.max_tokens

    @property
    def unread_tokens(self) -> int:
        """Tokens of the prompt that are not in the KV memory yet."""
        return len(self.prompt) - self.prefilled

    @property
    def computed_tokens(self) -> int:
        """Tokens whose KV is in the memory. That of the last token drawn is not: it is computed with the next step."""
        return self.prefilled if not self.tokens else len(self.prompt) + len(self.tokens) - 1

    def token_bytes(self, start: int, end: int) -> bytes:
        """Ids of prompt and answer from one position to another, int32."""
        size = self.prompt.itemsize
        ids = self._prompt_bytes[start * size : end * size]
        beyond = end - len(self.prompt)
        if beyond > 0:
            answer = self.tokens[max(0, start - len(self.prompt)) : beyond]
            ids += np.array(answer, dtype=np.int32).tobytes()
        return ids

    @property
    def ended(self) -> bool:
        """Whether its phase is terminal."""
        return not TRANSITIONS[self.phase]

    def advance(self, phase: Phase) -> None:
        """Change the phase.

        Raises:
            RuntimeError: the table of transitions does not have the change.
        """
        if phase not in TRANSITIONS[self.phase]:
            raise RuntimeError(f"a sequence cannot go from {self.phase.value} to {phase.value}")
        self.phase = phase

    def chunk(self, count: int, draft: Int32Array = NO_DRAFT) -> Chunk:
        """Its part of a step: the next ``count`` tokens of its prompt, or the last token of its answer and a draft of the next ones."""
        if self.phase is Phase.GENERATING:
            ids = np.array([self.tokens[-1], *draft], dtype=np.int32)
            return Chunk(ids, len(self.prompt) + len(self.tokens) - 1, self.block_tables, len(ids))
        end = self.prefilled + count
        if self.request.prompt_logprobs is not None:
            rows = count
        else:
            rows = 1 if end == len(self.prompt) and self.request.max_tokens else 0
        return Chunk(self.prompt[self.prefilled : end], self.prefilled, self.block_tables, rows)

    def outcome(
        self,
        now: float,
        *,
        reason: Literal["stop", "length"] | None = None,
        error: StrettoError | None = None,
    ) -> Outcome:
        """How it ended, once its phase is terminal."""
        started = now if self.started_at is None else self.started_at
        first = now if self.first_token_at is None else self.first_token_at
        return Outcome(
            phase=self.phase,
            reason=reason,
            prompt_tokens=len(self.prompt),
            completion_tokens=len(self.tokens),
            cached_tokens=self.cached_tokens,
            timing=Timing(started - self.submitted_at, max(0.0, first - started), max(0.0, now - first)),
            error=error,
            cache_miss=self.cache_miss,
        )

    def update(
        self,
        tokens: tuple[Token, ...] = (),
        outcome: Outcome | None = None,
        prompt: tuple[Token, ...] = (),
    ) -> Update:
        """What a step gave it."""
        return Update(
            self.id, self.phase, tokens, self.prefilled, outcome, self.cached_tokens, self.cache_miss, prompt,
            self.accepted_tokens, self.rejected_tokens,
        )  # fmt: skip

    def stats(self, now: float) -> SequenceStats:
        """For ``GET /admin/requests``."""
        return SequenceStats(
            id=self.id,
            phase=self.phase.value,
            prompt_tokens=len(self.prompt),
            prefilled_tokens=self.prefilled,
            completion_tokens=len(self.tokens),
            max_tokens=self.request.max_tokens,
            kv_blocks=sum(int((table >= 0).sum()) for table in self.block_tables),
            cached_tokens=self.cached_tokens,
            age_s=now - self.submitted_at,
            priority=self.request.priority,
        )
