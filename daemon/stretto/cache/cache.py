"""The answer cache as the event loop (trio) sees it."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from stretto.cache import rows
from stretto.cache.answer import CachedAnswer
from stretto.cache.gate import compare_readings
from stretto.cache.index import CacheIndex, Float32Array
from stretto.cache.judge import Judge, JudgeFailed
from stretto.cache.key import CacheKey, cache_key, why_not_cached
from stretto.cache.reading import read_question
from stretto.conversation.messages import Request
from stretto.errors import EngineError, InvalidRequest, NotFound, StoreError
from stretto.store import MICROSECONDS, Store, age_us, now_us

_log = logging.getLogger(__name__)

CANDIDATES = 3
"""Most cached questions that are looked at closely for one new question."""

Outcome = Literal["hit", "miss", "refresh", "bypass"]


class EmbeddingsLike(Protocol):
    """See ``stretto.embedding.Embeddings``."""

    @property
    def vectors(self) -> Float32Array: ...


class EmbedderLike(Protocol):
    """See ``stretto.embedding.Embedder``."""

    @property
    def name(self) -> str: ...
    @property
    def dimensions(self) -> int: ...
    async def embed(self, inputs: Sequence[str]) -> EmbeddingsLike: ...


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """How the cache decides.

    Attributes:
        threshold: least cosine similarity of a candidate.
        judge_threshold: least probability that makes a candidate a hit; None asks no judge.
        ttl_s: age at which an answer is given no more, or None.
        max_entries: most answers that are kept; the oldest make room.
    """

    threshold: float = 0.8
    judge_threshold: float | None = 0.9
    ttl_s: float | None = None
    max_entries: int = 10_000


@dataclass(slots=True)
class Lookup:
    """What came of looking for an answer.

    Attributes:
        outcome: ``hit``; ``miss``; ``refresh``: not looked for, since a new one is wanted; ``bypass``: neither looked for nor kept.
        reason: of a bypass, in a word.
        answer: of a hit.
        match: how a hit was found.
        similarity: cosine of a semantic hit.
        key: what the new answer is kept under, if it is to be kept.
        vector: the question's, if it was computed.
        epoch: how often the tenant's answers had been forgotten by then.
    """

    outcome: Outcome
    reason: str | None = None
    answer: CachedAnswer | None = None
    match: Literal["exact", "semantic"] | None = None
    similarity: float | None = None
    key: CacheKey | None = None
    vector: Float32Array | None = None
    epoch: int = 0


class AnswerCache:
    """Answers by question, in the store, with their keys in memory.

    Nothing here ever fails a request: what the storage, the embedder or the judge cannot do is a miss, or an answer that is not
    kept, and counts as a fault.

    Args:
        store: open, with this room's tables.
        config: see CacheConfig.
        embedder: for questions in other words; None finds only those that are the same word for word.
        judge: has the last word about those; None leaves it to the gate.
    """

    def __init__(
        self,
        store: Store,
        config: CacheConfig,
        *,
        embedder: EmbedderLike | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.config = config
        self._store = store
        self._embedder = embedder
        self._judge = judge if config.judge_threshold is not None else None
        self._index = CacheIndex(0 if embedder is None else embedder.dimensions)
        self._counts: Counter[str] = Counter()
        self._refusals: Counter[str] = Counter()
        self._hits: Counter[int] = Counter()
        self._doomed: set[int] = set()
        """Rows that are forgotten, and could not be deleted yet: they would be back after a restart."""
        self._epochs: Counter[str | None] = Counter()
        """How often a tenant's answers were forgotten, and under None those of all."""

    async def load(self, fingerprint: str) -> int:
        """Read the keys of what is kept; once, before anything else.

        Args:
            fingerprint: of everything that is the same for all requests and shapes their answers. What was kept under another one
                is dropped.

        Returns:
            How many answers were dropped.

        Raises:
            StoreError: the storage is at fault.
        """
        dropped = await self._store.write(lambda connection: rows.adopt(connection, fingerprint))
        for key in await self._store.read(rows.keys):
            self._index.add(key)
        await self._evict(self._expired() + self._surplus())
        return dropped

    # The walk of a request -------------------------------------------------------------------------------------------

    async def look_up(self, request: Request, *, session: str | None, max_tokens: int | None) -> Lookup:
        """Look for an answer to a request.

        Args:
            request: as the client sent it.
            session: the memory that is recalled for it; None without memory.
            max_tokens: most tokens that an answer may have, or None.
        """
        reason = why_not_cached(request)
        if reason is not None:
            self._counts["bypassed"] += 1
            return Lookup("bypass", reason)
        key = cache_key(request, session=session)
        epoch = self._epoch(key.tenant)
        if request.caller.cache == "refresh":
            self._counts["refreshed"] += 1
            return Lookup("refresh", key=key, epoch=epoch)
        lookup = Lookup("miss", key=key, epoch=epoch)
        try:
            await self._find(lookup, request.id, math.inf if max_tokens is None else max_tokens)
        except (StoreError, EngineError) as error:
            self._fault("looking an answer up", error)
        self._counts[f"{lookup.match}_hits" if lookup.outcome == "hit" else "misses"] += 1
        return lookup

    async def keep(self, lookup: Lookup, answer: CachedAnswer) -> bool:
        """Keep the answer that was made where none was found.

        Returns:
            False when it was not: the tenant's answers were forgotten while it was being made, or it could not be.
        """
        key = lookup.key
        if key is None or lookup.outcome == "hit" or lookup.epoch != self._epoch(key.tenant):
            return False
        try:
            if lookup.vector is None:
                lookup.vector = await self._embed(key.question)
            vector = None if lookup.vector is None else lookup.vector.astype("<f4").tobytes()
            stamp = now_us()
            row_id = await self._store.write(
                lambda connection: rows.put(connection, key, answer, stamp, vector)
            )
            if lookup.epoch != self._epoch(key.tenant):
                await self._evict([row_id])
                return False
            before = self._index.exact(key.exact)
            if before is not None:
                self._hits.pop(before.id, None)
            self._index.add(
                rows.StoredKey(
                    row_id,
                    key.tenant,
                    key.session,
                    key.exact,
                    key.context,
                    stamp,
                    answer.completion_tokens,
                    vector,
                )
            )
            self._counts["kept"] += 1
            await self._evict(self._surplus())
        except (StoreError, EngineError) as error:
            self._fault("keeping an answer", error)
            return False
        return True

    async def _find(self, lookup: Lookup, request_id: str, most_tokens: float) -> None:
        key = lookup.key
        assert key is not None
        exact = self._index.exact(key.exact)
        if exact is not None and self._usable(exact, most_tokens):
            found = await self._exchanges([exact.id])
            if exact.id in found:
                self._take(lookup, exact.id, found[exact.id][1], "exact", None)
                return
        lookup.vector = await self._embed(key.question)
        if lookup.vector is None:
            return
        candidates = self._index.near(
            key.context,
            lookup.vector,
            threshold=self.config.threshold,
            allowed=lambda row: self._usable(row, most_tokens),
            limit=CANDIDATES,
        )
        if not candidates:
            return
        found = await self._exchanges([candidate.id for candidate in candidates])
        reading = read_question(key.question)
        for candidate in candidates:
            if candidate.id not in found:
                continue
            question, answer = found[candidate.id]
            refusal = compare_readings(read_question(question), reading)
            if refusal is not None:
                self._refusals[refusal.reason] += 1
            elif await self._same(request_id, question, key.question):
                self._take(lookup, candidate.id, answer, "semantic", candidate.similarity)
                return

    async def _exchanges(self, ids: Sequence[int]) -> dict[int, tuple[str, CachedAnswer]]:
        """Questions and answers; rows that are gone are gone from the index too."""
        found = await self._store.read(partial(rows.exchanges, ids=ids))
        for row_id in ids:
            if row_id not in found:
                self._index.remove(row_id)
        return found

    async def _same(self, request_id: str, question: str, asked: str) -> bool:
        if self._judge is None or self.config.judge_threshold is None:
            return True
        self._counts["judge_calls"] += 1
        try:
            probability = await self._judge.same(request_id, question, asked)
        except JudgeFailed as error:
            self._fault("judging", error)
            return False
        if probability < self.config.judge_threshold:
            self._refusals["judge"] += 1
            return False
        return True

    def _take(
        self,
        lookup: Lookup,
        row_id: int,
        answer: CachedAnswer,
        match: Literal["exact", "semantic"],
        similarity: float | None,
    ) -> None:
        key = lookup.key
        if key is None or lookup.epoch != self._epoch(key.tenant):
            return  # it was forgotten while it was being looked at
        self._hits[row_id] += 1
        lookup.outcome, lookup.answer, lookup.match, lookup.similarity = "hit", answer, match, similarity

    async def _embed(self, question: str) -> Float32Array | None:
        """The question's vector; None without an embedder, and for a question too long for it."""
        if self._embedder is None:
            return None
        try:
            vector: Float32Array = (await self._embedder.embed([question])).vectors[0]
        except InvalidRequest:
            self._counts["too_long_to_embed"] += 1
            return None
        return vector

    def _usable(self, row: rows.StoredKey, most_tokens: float) -> bool:
        return row.completion_tokens <= most_tokens and not self._is_old(row)

    # Forgetting ------------------------------------------------------------------------------------------------------

    async def forget(self, tenant: str, session: str | None = None) -> int:
        """Forget what was answered to a tenant; with a session, only what was made with that session's memory.

        Returns:
            How many answers those were.

        Raises:
            StoreError: the storage is at fault; some may be forgotten already.
        """
        self._epochs[tenant] += 1
        return await self._evict(
            self._index.matching(
                lambda row: row.tenant == tenant and (session is None or row.session == session)
            )
        )

    async def session_changed(self, tenant: str, session: str) -> None:
        """Forget what was made with a session's memory, which is not what it was. Never fails."""
        try:
            await self.forget(tenant, session)
        except StoreError as error:
            self._fault("forgetting the answers of a session", error)

    async def clear(self) -> int:
        """Forget everything; returns how many answers that was. Raises StoreError."""
        self._epochs[None] += 1
        return await self._evict(self._index.matching(lambda row: True))

    async def page(
        self, *, before: int | None = None, limit: int = 100, tenant: str | None = None
    ) -> list[tuple[rows.Entry, int]]:
        """Entries with how often each was given since the start, newest first. For the administrator alone. Raises StoreError."""
        entries = await self._store.read(lambda connection: rows.page(connection, before, limit, tenant))
        return [(entry, self._hits[entry.id]) for entry in entries]

    async def entry(self, row_id: int) -> tuple[rows.Entry, int]:
        """One entry, with how often it was given since the start.

        Raises:
            NotFound: ``cache_entry_not_found``.
            StoreError: the storage is at fault.
        """
        found = await self._store.read(lambda connection: rows.entry(connection, row_id))
        if found is None:
            raise NotFound(
                f"The cache has no entry {row_id}.",
                code="cache_entry_not_found",
                remedy="`stretto cache inspect` lists those it has.",
            )
        return found, self._hits[row_id]

    def stats(self) -> dict[str, object]:
        """Settings, sizes, and counts since the start; plain JSON values."""
        config = self.config
        names = (
            "exact_hits", "semantic_hits", "misses", "refreshed", "bypassed", "kept", "dropped", "judge_calls",
            "too_long_to_embed", "faults",
        )  # fmt: skip
        return {
            "embedder": None if self._embedder is None else self._embedder.name,
            "judge": None if self._judge is None else self._judge.name,
            "threshold": config.threshold,
            "judge_threshold": config.judge_threshold,
            "ttl_s": config.ttl_s,
            "max_entries": config.max_entries,
            **self._index.stats(),
            **{name: self._counts[name] for name in names},
            "refused": dict(sorted(self._refusals.items())),
        }

    async def _evict(self, ids: Sequence[int]) -> int:
        # Out of the index first: from this moment on nobody is given them.
        for row_id in ids:
            self._index.remove(row_id)
            self._hits.pop(row_id, None)
        self._doomed.update(ids)
        for piece in rows.in_pieces(sorted(self._doomed)):
            await self._store.write(partial(rows.delete, ids=piece))
            self._doomed.difference_update(piece)
        self._counts["dropped"] += len(ids)
        return len(ids)

    def _epoch(self, tenant: str) -> int:
        return self._epochs[tenant] + self._epochs[None]

    def _surplus(self) -> list[int]:
        return self._index.oldest(max(0, len(self._index) - self.config.max_entries))

    def _expired(self) -> list[int]:
        return self._index.matching(self._is_old)

    def _is_old(self, row: rows.StoredKey) -> bool:
        ttl_s = self.config.ttl_s
        return ttl_s is not None and age_us(row.created_us, now_us()) > ttl_s * MICROSECONDS

    def _fault(self, doing: str, error: Exception) -> None:
        self._counts["faults"] += 1
        code = getattr(error, "code", type(error).__name__)
        _log.warning("the answer cache failed at %s (%s); the request goes on without it", doing, code)
