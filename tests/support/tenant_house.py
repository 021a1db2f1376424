"""The whole public application over the echo backend, with memory, cache, ledger and retries on, and two keys that know nothing of
each other."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import trio
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.api import Retries, Routes, public_app, refusal_body
from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoScript, EchoTokenizer
from stretto.cache import AnswerCache, CacheConfig
from stretto.cache.index import Float32Array
from stretto.control import control_app
from stretto.conversation import ChatTemplate
from stretto.engine import EngineClient, EngineConfig, Generation, SequenceRequest
from stretto.ledger import Key, Ledger
from stretto.memory import SessionMemory
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Billing, Pipeline, ServedModel
from stretto.store import Store
from support.cache_requests import BagEmbedder, Vectors
from support.ledger_books import PRICING, open_books
from support.serving_server import Reply, RunningServer, running


class WatchedEngine(EngineClient):
    """Keeps the text of every prompt it is given."""

    prompts: list[str]

    def submit(self, *requests: SequenceRequest) -> Generation:
        self.prompts += [EchoTokenizer().decode(each.prompt_ids, skip_special=False) for each in requests]
        return super().submit(*requests)


@dataclass
class Counted(Vectors):
    token_counts: tuple[int, ...] = ()


@dataclass
class BagModel(BagEmbedder):
    """The embedder of letters as the routes know one."""

    aliases: tuple[str, ...] = ()
    created: int = 0
    max_tokens: int = 256
    log: list[str] = field(default_factory=list)

    async def embed(self, inputs: Sequence[str], *, truncate: bool = False) -> Counted:
        found = await super().embed(inputs)
        return Counted(found.vectors, tuple(len(text.split()) for text in inputs))


@dataclass
class Ranked:
    scores: Float32Array
    token_counts: tuple[int, ...]


@dataclass
class WordsModel:
    """A reranker that scores a document by the share of its words that the query has, as the routes know one."""

    name: str = "words"
    aliases: tuple[str, ...] = ()
    created: int = 0
    max_tokens: int = 256

    async def rank(self, query: str, documents: Sequence[str], *, truncate: bool = False) -> Ranked:
        known = set(query.split())
        words = [text.split() for text in documents]
        scores = np.array([sum(word in known for word in each) / len(each) for each in words], np.float32)
        return Ranked(scores, tuple(len(known) + len(each) for each in words))


class Late:
    """An application that is made when its server runs already: the server counts open files, the store's among them."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@dataclass
class House:
    """Everything, and one server that has a door into it."""

    server: RunningServer
    app: ASGIApp
    ledger: Ledger
    store: Store
    memory: SessionMemory
    cache: AnswerCache
    engine: WatchedEngine

    def key(self, secret: str) -> Key:
        return self.ledger.authenticate(secret.encode())

    async def call(
        self, method: str, target: str, body: Any = None, headers: Sequence[str] = ()
    ) -> tuple[Reply, bytes]:
        """The reply, and what was sent for it."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close", *headers]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        wire = "\r\n".join([*lines, "", ""]).encode() + data
        (reply,) = await self.server.exchange(wire)
        return reply, wire


def routes_of(app: Any) -> set[tuple[str, str]]:
    """Method and path of everything that an application has a route for, from its route table."""
    while not isinstance(app, Routes):
        app = app._app
    found = set()
    for route in app._router.routes:
        assert isinstance(route, Route), f"{route} has no methods of its own"
        found |= {(method, route.path) for method in route.methods or () if method != "HEAD"}
    return found


@asynccontextmanager
async def open_house(
    directory: Path, script: EchoScript | None = None, *, socket: bool = False, **provider: Any
) -> AsyncIterator[House]:
    """A house in a directory; with ``socket`` its door is the Unix socket, else the public port."""
    late = Late()
    priced = {"models": {name: {"pricing": PRICING} for name in ("echo", "bag", "words")}, **provider}
    async with (
        running(
            late, refusal_body=refusal_body, unix_path=directory / "s.sock" if socket else None
        ) as server,
        open_books(directory, **priced) as (ledger, store),
        WatchedEngine(EchoBackend(script or EchoScript()), EngineConfig(max_batch=4)) as engine,
        trio.open_nursery() as nursery,
    ):
        engine.prompts = []
        facts = await engine.load()
        embedder, retries = BagModel(), Retries()
        await nursery.start(retries.run)
        cache = AnswerCache(store, CacheConfig(threshold=0.5, judge_threshold=None), embedder=embedder)
        await cache.load("f")
        memory = SessionMemory(store, top_k=4, max_entries=100)
        memory.on_change = cache.session_changed
        pipeline = Pipeline(
            model=ServedModel("echo", (), 0, facts.max_context_tokens, "echo", "echo", "cpu", "int32"),
            engine=engine,
            tokenizer=EchoTokenizer(),
            template=ChatTemplate(ECHO_CHAT_TEMPLATE),
            admission=Admission(4, 8, waiting=engine.held_back),
            log=LifecycleLog(),
            billing=Billing(ledger),
            memory=memory,
            cache=cache,
            cache_block_tokens=16,
        )
        kept: dict[str, Any] = {
            "ledger": ledger,
            "memory": memory,
            "cache": cache,
            "embedder": embedder,
            "reranker": WordsModel(),
            "retries": retries,
        }
        if socket:
            app = control_app(pipeline, on_stop=lambda grace_s: None, on_drain=lambda: None, **kept)
        else:
            app = public_app(pipeline, **kept)
        late.app = app
        yield House(server, app, ledger, store, memory, cache, engine)
        nursery.cancel_scope.cancel()
