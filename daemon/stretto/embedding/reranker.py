"""The reranker as the event loop sees it: a query and documents in, scores out, computed in worker threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import trio

from stretto.embedding.cross_encoder import CrossEncoder
from stretto.embedding.embedder import batches
from stretto.embedding.encoder import Float32Array
from stretto.errors import EngineError, InvalidRequest


@dataclass(frozen=True, slots=True)
class Ranking:
    """How well documents answer a query.

    Attributes:
        scores: float32 [documents], from 0 to 1, in the order given.
        token_counts: tokens that were read with each document, those of the query included.
    """

    scores: Float32Array
    token_counts: tuple[int, ...]


@dataclass(slots=True)
class RerankerStats:
    """Totals since the start; ``busy_s`` is summed over the threads."""

    queries: int = 0
    documents: int = 0
    tokens: int = 0
    batches: int = 0
    truncated: int = 0
    refused: int = 0
    failed: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Token ids of query and document together, the query's share of them, and how many documents were cut."""

    ids: list[list[int]]
    query_tokens: int
    cut: int


class Reranker:
    """Computes scores for everybody in the daemon.

    Args:
        model: opened.
        name: what clients call it; aliases: other names for the same.
        created: Unix seconds at which it was installed.
        threads: batches computed at once.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        model: CrossEncoder,
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
        self._totals = RerankerStats()

    @property
    def max_tokens(self) -> int:
        """Longest query and document together, their three control tokens included."""
        return self._model.config.max_tokens

    async def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Ranking:
        """Score each document against the query.

        Args:
            query: what is looked for.
            documents: any number of them.
            truncate: cut documents that are too long, rather than refuse them. A query is never cut.

        Raises:
            InvalidRequest: ``context_length_exceeded`` with both numbers; ``param`` is ``query`` or ``documents[index]``.
            EngineError: the weights gave a score that is none (``rerank_failed``).
        """
        try:
            pairs = await trio.to_thread.run_sync(
                self._pairs, query, documents, truncate, limiter=self._limiter
            )
        except InvalidRequest:
            self._totals.refused += 1
            raise
        scores = await self._all(pairs)
        counts = tuple(map(len, pairs.ids))
        self._totals.queries += 1
        self._totals.documents += len(counts)
        self._totals.tokens += sum(counts)
        self._totals.truncated += pairs.cut
        return Ranking(scores, counts)

    def stats(self) -> dict[str, object]:
        """For ``GET /admin/status``."""
        return {
            "model": self.name,
            "max_tokens": self.max_tokens,
            "weight_bytes": self._model.encoder.resident_bytes,
            "threads": self._threads,
            **asdict(self._totals) | {"busy_s": round(self._totals.busy_s, 3)},
        }

    def close(self) -> None:
        """Give the weights back."""
        self._model.close()

    async def _all(self, pairs: _Pairs) -> Float32Array:
        """float32 [pairs]; as many batches at once as there are threads."""
        scores = np.empty(len(pairs.ids), dtype=np.float32)
        parts = batches(pairs.ids)
        failures: list[Exception] = []

        async def work() -> None:
            try:
                for part in parts:
                    found, took_s = await trio.to_thread.run_sync(
                        self._compute, [pairs.ids[index] for index in part], pairs.query_tokens,
                        limiter=self._limiter,
                    )  # fmt: skip
                    self._totals.busy_s += took_s
                    self._totals.batches += 1
                    if not np.isfinite(found).all():
                        self._totals.failed += 1
                        raise EngineError(
                            f"The reranking model '{self.name}' computed values that are not finite.",
                            code="rerank_failed",
                        )
                    scores[part] = found
            except Exception as error:  # raised in a nursery it would come out in a group
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for _ in range(self._threads):
                nursery.start_soon(work)
        if failures:
            raise failures[0]
        return scores

    # In a worker thread ----------------------------------------------------------------------------------------------

    def _pairs(self, query: str, documents: Sequence[str], truncate: bool) -> _Pairs:
        texts = self._model.texts
        asked = texts.encode([query], param="query")[0]
        # Room for the second text's control token and one token of it.
        room = self.max_tokens - len(asked.ids)
        if asked.cut or room < 2:
            raise _too_long("query", len(asked.ids), asked.cut, self.max_tokens - 2, "Send a shorter query.")
        ids, cut = [], 0
        for index, found in enumerate(texts.encode(documents, param="documents")):
            document = found.ids[1:]  # the query's first control token is that of both
            if len(document) > room:
                if not truncate:
                    raise _too_long(
                        f"documents[{index}]", len(document), found.cut, room,
                        "Send shorter documents, or truncate: true to have the rest of each left out.",
                    )  # fmt: skip
                document = [*document[: room - 1], texts.last_id]
                cut += 1
            ids.append([*asked.ids, *document])
        return _Pairs(ids, len(asked.ids), cut)

    def _compute(self, pairs: Sequence[Sequence[int]], query_tokens: int) -> tuple[Float32Array, float]:
        began = self._clock()
        with np.errstate(all="ignore"):  # what is not finite is found by looking at the result
            scores = self._model.scores(pairs, [query_tokens] * len(pairs))
        return scores, self._clock() - began


def _too_long(param: str, tokens: int, more: bool, limit: int, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' has {f'some {tokens} tokens or more' if more else f'{tokens} tokens'}; this model reads at most {limit} there.",
        code="context_length_exceeded",
        param=param,
        remedy=remedy,
    )
