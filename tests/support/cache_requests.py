"""Requests, embedders and judges for tests of the answer cache."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from stretto.cache import AnswerCache, CacheConfig, CachedAnswer, JudgeFailed, Lookup
from stretto.cache.index import Float32Array
from stretto.conversation.caller import Caller
from stretto.conversation.messages import Message, Request, TextPart
from stretto.errors import InvalidRequest
from stretto.store import Store
from stretto.tables import SCHEMAS

DIMENSIONS = 64


def said(role: Any, text: str) -> Message:
    return Message(role, (TextPart(text),))


def asked(question: str, *before: Message, tenant: str = "", cache: Any = "on", **fields: Any) -> Request:
    """A request for an answer to a question, after other messages."""
    return Request(
        id=fields.pop("id", "chatcmpl-1"),
        model="m",
        messages=(*before, said("user", question)),
        caller=Caller(tenant=tenant, cache=cache),
        **fields,
    )


def answered(text: str = "So it is.", tokens: int = 5) -> CachedAnswer:
    return CachedAnswer(text, None, 11, tokens, 3)


@dataclass
class Vectors:
    """What an embedder gives back."""

    vectors: Float32Array


@dataclass
class BagEmbedder:
    """Vectors of the letters in a text: texts that share most of them are neighbours. Counts its calls."""

    name: str = "bag"
    dimensions: int = DIMENSIONS
    longest: int = 200
    failure: Exception | None = None
    seen: list[str] = field(default_factory=list)

    async def embed(self, inputs: Sequence[str]) -> Vectors:
        if self.failure is not None:
            raise self.failure
        self.seen += inputs
        if max(map(len, inputs)) > self.longest:
            raise InvalidRequest("too long", code="context_length_exceeded")
        return Vectors(np.stack([letters(text) for text in inputs]))


def letters(text: str) -> Float32Array:
    vector = np.full(DIMENSIONS, 1e-3, dtype=np.float32)
    for character in text.lower():
        vector[ord(character) % DIMENSIONS] += 1
    return vector / np.float32(np.linalg.norm(vector))


@dataclass
class FixedJudge:
    """Always of the same opinion, or of none."""

    probability: float | None = 1.0
    name: str = "fixed"
    asked: list[tuple[str, str]] = field(default_factory=list)

    async def same(self, request_id: str, cached: str, asked: str) -> float:
        self.asked.append((cached, asked))
        if self.probability is None:
            raise JudgeFailed("no opinion")
        return self.probability


@asynccontextmanager
async def open_cache(
    directory: Path, *, fingerprint: str = "f", embedder: Any = None, judge: Any = None, **config: Any
) -> AsyncIterator[AnswerCache]:
    """A loaded cache on the file in ``directory``."""
    async with await Store.open(directory / "stretto.db", SCHEMAS) as store:
        cache = AnswerCache(
            store, CacheConfig(**({"judge_threshold": None} | config)), embedder=embedder, judge=judge
        )
        await cache.load(fingerprint)
        yield cache


async def look(cache: AnswerCache, request: Request, **how: Any) -> Lookup:
    return await cache.look_up(request, **({"session": None, "max_tokens": None} | how))


async def keep(cache: AnswerCache, request: Request, answer: CachedAnswer | None = None, **how: Any) -> bool:
    """What the pipeline does for a request that is not in the cache: look, answer, keep."""
    lookup = await look(cache, request, **how)
    assert lookup.outcome in ("miss", "refresh"), lookup
    return await cache.keep(lookup, answer or answered())
