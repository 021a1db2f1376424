"""The embedder as the event loop sees it: texts in, vectors out, computed in worker threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import trio

from stretto.embedding.encoder import Float32Array
from stretto.embedding.model import EmbeddingModel
from stretto.errors import EngineError, InvalidRequest

BATCH_TOKENS = 1024
"""Tokens computed in one go: enough to keep the processor busy, few enough that a caller who goes is soon rid of."""


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What texts became.

    Attributes:
        vectors: float32 [texts, dimensions], rows of length 1.
        token_counts: tokens that were read of each text, control tokens included.
    """

    vectors: Float32Array
    token_counts: tuple[int, ...]


@dataclass(slots=True)
class EmbedderStats:
    """Totals since the start; ``busy_s`` is summed over the threads."""

    texts: int = 0
    tokens: int = 0
    batches: int = 0
    truncated: int = 0
    refused: int = 0
    failed: int = 0
    busy_s: float = 0.0


class Embedder:
    """Computes vectors for everybody in the daemon; fair to those who want one text beside those who want thousands.

    Args:
        model: opened.
        name: what clients call it; aliases: other names for the same.
        created: Unix seconds at which it was installed.
        threads: batches computed at once.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        *,
        name: str,
        aliases: tuple[str, ...] = (),
        created: int = 0,
        threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.aliases = aliases
        self.created = created
        self._model = model
        self._limiter = trio.CapacityLimiter(threads)
        self._threads = threads
        self._clock = clock
        self._totals = EmbedderStats()

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self._model.config.hidden_size

    @property
    def max_tokens(self) -> int:
        """Longest text, its two control tokens included."""
        return self._model.config.max_tokens

    @property
    def fingerprint(self) -> str:
        """Hexadecimal; vectors are comparable only where it is the same."""
        return self._model.fingerprint

    async def embed(self, inputs: Sequence[str | Sequence[int]], *, truncate: bool = False) -> Embeddings:
        """Compute the vector of each text, or of each list of this model's own token ids.

        Args:
            inputs: any number of them.
            truncate: cut what is too long, rather than refuse it.

        Raises:
            InvalidRequest: ``context_length_exceeded`` with both numbers; ``invalid_value`` for an id that the vocabulary does not
                have. ``param`` is ``input[index]``. Nothing was computed then.
            EngineError: the weights gave a vector that is none (``embedding_failed``).
        """
        try:
            sequences, cut, first = await trio.to_thread.run_sync(
                self._begin, inputs, truncate, limiter=self._limiter
            )
        except InvalidRequest:
            self._totals.refused += 1
            raise
        self._totals.truncated += cut
        vectors = await self._all(sequences) if first is None else self._accounted(*first)
        counts = tuple(map(len, sequences))
        self._totals.texts += len(counts)
        self._totals.tokens += sum(counts)
        return Embeddings(vectors, counts)

    def stats(self) -> dict[str, object]:
        """For ``GET /admin/status``."""
        return {
            "model": self.name,
            "dimensions": self.dimensions,
            "max_tokens": self.max_tokens,
            "weight_bytes": self._model.encoder.resident_bytes,
            "threads": self._threads,
            **asdict(self._totals) | {"busy_s": round(self._totals.busy_s, 3)},
        }

    def close(self) -> None:
        """Give the weights back."""
        self._model.close()

    async def _all(self, sequences: Sequence[Sequence[int]]) -> Float32Array:
        """float32 [sequences, dimensions]; as many batches at once as there are threads."""
        vectors = np.empty((len(sequences), self.dimensions), dtype=np.float32)
        parts = batches(sequences)
        failures: list[Exception] = []

        async def work() -> None:
            try:
                for batch in parts:
                    vectors[batch] = await self._one([sequences[index] for index in batch])
            except Exception as error:  # raised in a nursery it would come out in a group
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(self._threads):
                nursery.start_soon(work)
        if failures:
            raise failures[0]
        return vectors

    async def _one(self, sequences: Sequence[Sequence[int]]) -> Float32Array:
        return self._accounted(
            *await trio.to_thread.run_sync(self._compute, sequences, limiter=self._limiter)
        )

    def _accounted(self, vectors: Float32Array, took_s: float) -> Float32Array:
        """Vectors of a batch, once they are found to be sound."""
        self._totals.busy_s += took_s
        self._totals.batches += 1
        if not np.isfinite(vectors).all():
            self._totals.failed += 1
            raise EngineError(
                f"The embedding model '{self.name}' computed values that are not finite.",
                code="embedding_failed",
            )
        return vectors

    # In a worker thread ----------------------------------------------------------------------------------------------

    def _begin(
        self, inputs: Sequence[str | Sequence[int]], truncate: bool
    ) -> tuple[list[list[int]], int, tuple[Float32Array, float] | None]:
        """Token ids, how many inputs were cut, and if all make one batch its vectors too: short texts cost one way to a thread."""
        sequences, cut = self._prepare(inputs, truncate)
        small = 0 < sum(map(len, sequences)) <= BATCH_TOKENS
        return sequences, cut, self._compute(sequences) if small else None

    def _prepare(self, inputs: Sequence[str | Sequence[int]], truncate: bool) -> tuple[list[list[int]], int]:
        """Token ids that can be computed, and how many of the inputs were cut."""
        texts = [index for index, item in enumerate(inputs) if isinstance(item, str)]
        tokenized = self._model.texts.encode([str(inputs[index]) for index in texts])
        of_text = dict(zip(texts, tokenized, strict=True))
        sequences, shortened = [], 0
        for index, item in enumerate(inputs):
            text = of_text.get(index)
            ids = self._known_ids(index, item) if text is None else text.ids
            if len(ids) > self.max_tokens:
                if not truncate:
                    raise _too_long(index, len(ids), text is not None and text.cut, self.max_tokens)
                ids = self._model.texts.shorten(ids)
                shortened += 1
            sequences.append(ids)
        return sequences, shortened

    def _known_ids(self, index: int, item: str | Sequence[int]) -> list[int]:
        ids = [int(token) for token in item]
        last = self._model.config.vocab_size - 1
        for position, token in enumerate(ids):
            if not 0 <= token <= last:
                raise InvalidRequest(
                    f"'input[{index}][{position}]' is {token}; the token ids of '{self.name}' are 0 to {last}.",
                    param=f"input[{index}]",
                    remedy="Send text, or ids of this model's own vocabulary; those of other models mean nothing to it.",
                )
        return self._model.texts.wrap(ids)

    def _compute(self, sequences: Sequence[Sequence[int]]) -> tuple[Float32Array, float]:
        began = self._clock()
        with np.errstate(all="ignore"):  # what is not finite is found by looking at the result
            vectors = self._model.forward(sequences)
        return vectors, self._clock() - began


def _too_long(index: int, tokens: int, more: bool, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"'input[{index}]' has {f'some {tokens} tokens or more' if more else f'{tokens} tokens'}; this model reads at most {limit} a text.",
        code="context_length_exceeded",
        param=f"input[{index}]",
        remedy="Send shorter pieces, or truncate: true to have the rest of each text left out.",
    )


def batches(sequences: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indices of sequences, sorted by length, in batches of at most ``BATCH_TOKENS`` tokens (or one sequence)."""
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(sequences)), key=lambda index: len(sequences[index])):
        if batch and tokens + len(sequences[index]) > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += len(sequences[index])
    if batch:
        yield batch
