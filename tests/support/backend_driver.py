"""Driving a backend as an engine would: blocks in runs, or shuffled over the whole pool, and sequences fed chunk by chunk."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.backends.base import Backend, Chunk, Float32Array, KVPlan


def silent(phase: str, fraction: float) -> None:
    """A progress report that goes nowhere."""


@dataclass
class RunningSequence:
    """Tokens so far, how many of them are cached, and the blocks they are in, for each layer group."""

    tokens: list[int]
    tables: list[list[int]] = field(default_factory=list)
    cached: int = 0


class Driver:
    """A loaded backend with a trivial block allocator."""

    def __init__(
        self, backend: Backend, *, blocks: int, block_tokens: int = 4, shuffled: bool = False, groups: int = 1
    ) -> None:
        self.backend = backend
        self.block_tokens = block_tokens
        backend.allocate(KVPlan(block_tokens, (blocks,) * groups))
        self._free = [list(range(blocks)) for _ in range(groups)]
        if shuffled:
            for group, free in enumerate(self._free):
                random.Random(blocks + group).shuffle(free)

    def start(self, tokens: Sequence[int], room_tokens: int | None = None) -> RunningSequence:
        """A new sequence with blocks for ``room_tokens`` (its tokens, unless told otherwise)."""
        count = -(-(room_tokens or len(tokens)) // self.block_tokens)
        tables = [free[:count] for free in self._free]
        self._free = [free[count:] for free in self._free]
        assert len(tables[0]) == count, "the test's pool is too small"
        return RunningSequence(list(tokens), tables)

    def step(
        self, parts: Sequence[tuple[RunningSequence, int]], rows: int | None = None
    ) -> list[Float32Array]:
        """Run the next n tokens of each sequence; logits of the last ``rows`` tokens of each (all, unless told)."""
        batch, wanted = [], []
        for sequence, count in parts:
            ids = np.array(sequence.tokens[sequence.cached : sequence.cached + count], dtype=np.int32)
            wanted.append(count if rows is None else min(rows, count))
            tables = tuple(np.array(table, dtype=np.int32) for table in sequence.tables)
            batch.append(Chunk(ids, sequence.cached, tables, wanted[-1]))
        logits = self.backend.forward(batch)
        for sequence, count in parts:
            sequence.cached += count
        assert logits.dtype == np.float32
        assert logits.shape[0] == sum(wanted)
        return np.split(logits, np.cumsum(wanted)[:-1])

    def prefill(self, sequence: RunningSequence, chunk: int) -> Float32Array:
        """Logits of all of a sequence's tokens, computed ``chunk`` tokens at a time."""
        parts = []
        while sequence.cached < len(sequence.tokens):
            parts += self.step([(sequence, min(chunk, len(sequence.tokens) - sequence.cached))])
        return np.concatenate(parts)

    def greedy(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Decode all prompts together; each prompt is prefilled on its own, while those before it already decode."""
        sequences = [self.start(prompt, len(prompt) + new_tokens) for prompt in prompts]
        limits = [len(prompt) + new_tokens for prompt in prompts]

        def decodes(count: int) -> list[tuple[RunningSequence, int]]:
            return [
                (s, 1) for s, limit in zip(sequences[:count], limits, strict=False) if len(s.tokens) < limit
            ]

        for number, sequence in enumerate(sequences):
            self._take([*decodes(number), (sequence, len(sequence.tokens))])
        while parts := decodes(len(sequences)):
            self._take(parts)
        return [s.tokens[len(prompt) :] for s, prompt in zip(sequences, prompts, strict=True)]

    def _take(self, parts: Sequence[tuple[RunningSequence, int]]) -> None:
        for (sequence, _), logits in zip(parts, self.step(parts, rows=1), strict=True):
            sequence.tokens.append(int(logits[-1].argmax()))
