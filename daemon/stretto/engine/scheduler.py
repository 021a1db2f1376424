"""Who runs in the next step. Pure: no clock, no thread, no backend.

Blocks for the whole prompt and the longest answer are promised before a sequence starts, so a running sequence never runs out
and nothing is ever preempted. What does not fit waits, first come first served among those of one rank: a large one at the head is
overtaken by more urgent ones alone, and rises in time (see ``precedence``), so it cannot starve. Background work leaves one place free.

Of prompts that begin alike, one computes what they share, block by block, and the others take it over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stretto.backends.base import Int32Array, KVPlan
from stretto.engine.budget import WindowNeed
from stretto.engine.kv import KVCache
from stretto.engine.live import NO_DRAFT, LiveSequence
from stretto.engine.pacing import MIN_PREFILL_TOKENS
from stretto.engine.precedence import BACKGROUND, LOWER_SHARE, Rising, share_by_rank
from stretto.engine.sequence import Phase


@dataclass(frozen=True, slots=True)
class Part:
    """One sequence's part of a step: ``count`` tokens, and whether they give it its next token.

    ``draft``, int32 [count - 1], are the tokens behind the last one of an answer, which the model may or may not draw itself.
    """

    sequence: LiveSequence
    count: int
    prefill: bool
    gives_token: bool
    draft: Int32Array = field(default_factory=lambda: NO_DRAFT)


Speculate = Callable[[Sequence[LiveSequence]], Sequence[Int32Array]]
"""A draft, maybe empty, for each sequence that decodes."""


class Scheduler:
    """The queue, the running sequences and the blocks they hold."""

    def __init__(
        self,
        plan: KVPlan,
        max_batch: int,
        *,
        windows: Sequence[WindowNeed | None] = (),
        prefix_cache: bool = True,
    ) -> None:
        """``windows``: see KVCache."""
        self._max_batch = max_batch
        self.kv = KVCache(plan, windows=windows, prefix_cache=prefix_cache)
        self._live: dict[str, LiveSequence] = {}
        self._queue: deque[LiveSequence] = deque()
        self._held_back = 0
        self._running: list[LiveSequence] = []
        self._rising = Rising()

    @property
    def busy(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self._live)

    @property
    def queued(self) -> int:
        """Sequences that wait."""
        return len(self._queue)

    @property
    def held_back(self) -> int:
        """Sequences that wait although a step could have taken them: what has come since the last ``admit`` is not among them."""
        return min(self._held_back, len(self._queue))

    @property
    def running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def decoding(self) -> bool:
        """Whether any answer is being generated that is no less urgent than all the prompts being read."""
        first = min((sequence.rank for sequence in self.reading()), default=BACKGROUND)
        return any(s.phase is Phase.GENERATING and s.rank <= first for s in self._running)

    @property
    def raised(self) -> int:
        """Sequences that have waited so long that they came to count as more urgent."""
        return self._rising.raised

    @property
    def scoring(self) -> bool:
        """Whether a prompt is being read whose log-probabilities are wanted: logits of each of its tokens."""
        return any(
            sequence.phase is Phase.PREFILLING and sequence.request.prompt_logprobs is not None
            for sequence in self._running
        )

    def reading(self) -> list[LiveSequence]:
        """Sequences whose prompt is not read to its end, by rank and then by age."""
        reading = [sequence for sequence in self._running if sequence.phase is Phase.PREFILLING]
        return sorted(reading, key=_rank)

    def get(self, sequence_id: str) -> LiveSequence | None:
        """The live sequence of that id."""
        return self._live.get(sequence_id)

    def live(self) -> list[LiveSequence]:
        """All live sequences: the running ones by age, then the queued ones in order."""
        return [*self._running, *sorted(self._queue, key=_rank)]

    def enqueue(self, sequence: LiveSequence) -> None:
        """Add a sequence at the end of those of its rank.

        Raises:
            ValueError: a live sequence has its id.
        """
        if sequence.id in self._live:
            raise ValueError(f"a sequence with the id {sequence.id!r} is live already")
        self._live[sequence.id] = sequence
        self._queue.append(sequence)

    def admit(self, now: float) -> None:
        """Start queued sequences, in order, as long as there are places and blocks for all that each may need."""
        if not self._has_place(BACKGROUND):
            self._rising.had_turn(BACKGROUND, now)
        self._rising.raise_some(self._queue, now)
        while self._queue and len(self._running) < self._max_batch:
            sequence = min(self._queue, key=_rank)  # of equal ones the first
            if not self._has_place(sequence.rank) or not self.kv.start(sequence):
                break
            self._queue.remove(sequence)
            self._rising.had_turn(sequence.rank, now)
            sequence.started_at = now
            sequence.advance(Phase.PREFILLING)
            self._running.append(sequence)
        self._held_back = len(self._queue)

    def _has_place(self, rank: int) -> bool:
        """Whether one of a rank may take a free place; background work leaves one to others where there are more than one."""
        if rank != BACKGROUND:
            return True
        return sum(s.rank == BACKGROUND for s in self._running) < max(1, self._max_batch - 1)

    def plan(self, prefill_tokens: int, speculate: Speculate | None = None) -> list[Part]:
        """The next step: every answer's next token, and at most so many tokens of the prompts.

        With no prompt to read, answers may get on by more than a token: ``speculate`` is asked for drafts.
        """
        reading = self.reading()
        decoding = [sequence for sequence in self._running if sequence.phase is Phase.GENERATING]
        if speculate is None or reading or not decoding:
            parts = [Part(sequence, 1, False, True) for sequence in decoding]
        else:
            parts = [
                Part(sequence, 1 + len(draft), False, True, draft)
                for sequence, draft in zip(decoding, speculate(decoding), strict=True)
            ]
        for part in parts:
            self.kv.grow(part.sequence, part.count)
        for sequence in reading:
            self.kv.extend(sequence)
        reading = [sequence for sequence in reading if not sequence.restoring]
        for sequence, count in self._share(reading, self._allowance(reading, prefill_tokens)):
            self.kv.explain(sequence)
            last = count == sequence.unread_tokens
            parts.append(Part(sequence, count, True, last and sequence.request.max_tokens > 0))
        for part in parts:
            self.kv.prepare(part.sequence, part.count)
        return parts

    def _allowance(self, reading: Sequence[LiveSequence], prefill_tokens: int) -> int:
        """Prompt tokens for a step: fewer where an answer is more urgent than all of the prompts, so that it hardly slows down."""
        first = min((sequence.rank for sequence in reading), default=0)
        if not any(s.phase is Phase.GENERATING and s.rank < first for s in self._running):
            return prefill_tokens
        return min(prefill_tokens, max(MIN_PREFILL_TOKENS, prefill_tokens // LOWER_SHARE))

    def _share(self, reading: Sequence[LiveSequence], prefill_tokens: int) -> list[tuple[LiveSequence, int]]:
        """Who of the prompts gets how many tokens, those with any.

        A prompt waits while another, which has got further or came first, computes the very block that it needs next; but only if
        that one gets on in this step. So of those in each other's way one always does, and no prompt waits for one that waits. Who
        computes for a more urgent one is as urgent.
        """
        leaders = self._leaders(reading)
        ranks = {sequence: sequence.rank for sequence in reading}
        for sequence, leader in leaders.items():
            ranks[leader] = min(ranks[leader], sequence.rank)

        def shared(active: Sequence[LiveSequence]) -> list[int]:
            unread = [sequence.unread_tokens for sequence in active]
            return share_by_rank(unread, [ranks[sequence] for sequence in active], prefill_tokens)

        active = [sequence for sequence in reading if sequence not in leaders]
        shares = shared(active)
        moving = {sequence for sequence, count in zip(active, shares, strict=True) if count}
        if any(leader not in moving for leader in leaders.values()):
            active = [sequence for sequence in reading if leaders.get(sequence) not in moving]
            shares = shared(active)
        return [(sequence, count) for sequence, count in zip(active, shares, strict=True) if count]

    def _leaders(self, reading: Sequence[LiveSequence]) -> dict[LiveSequence, LiveSequence]:
        """For each prompt that could wait, the one that computes its next block."""
        first: dict[bytes, LiveSequence] = {}
        leaders: dict[LiveSequence, LiveSequence] = {}
        for sequence in sorted(reading, key=lambda sequence: -sequence.prefilled):
            digest = self.kv.current_digest(sequence)
            if digest is None:
                continue
            leader = first.setdefault(digest, sequence)
            if leader is not sequence and self.kv.can_follow(sequence):
                leaders[sequence] = leader
        return leaders

    def remove(self, sequence: LiveSequence) -> None:
        """Forget a sequence and give its blocks back."""
        del self._live[sequence.id]
        if sequence in self._running:
            self._running.remove(sequence)
        else:
            self._queue.remove(sequence)
        self.kv.release(sequence)

    def clear(self) -> list[LiveSequence]:
        """Forget everything, blocks included, whatever state it is in; returns what was live."""
        forgotten = list(self._live.values())
        self._live.clear()
        self._queue.clear()
        self._running.clear()
        self.kv.clear()
        for sequence in forgotten:
            sequence.block_tables = ()
            sequence.chain = []
        return forgotten


def _rank(sequence: LiveSequence) -> int:
    return sequence.rank
