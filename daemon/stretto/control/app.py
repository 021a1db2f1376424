"""The application on the Unix socket: everything the public port has, and the admin routes."""

from __future__ import annotations

from collections.abc import Callable, Collection

from starlette.types import ASGIApp

from stretto.api import (
    EmbedderPort,
    ErrorReplies,
    KeyGuard,
    PipelinePort,
    RequestTag,
    RerankerPort,
    Retries,
    Routes,
    shared_routes,
)
from stretto.cache import AnswerCache
from stretto.control.admin import Admin
from stretto.control.cache import cache_admin_routes
from stretto.control.memory import memory_admin_routes
from stretto.control.peers import PeerGuard
from stretto.ledger import Ledger
from stretto.memory import SessionMemory


def control_app(
    pipeline: PipelinePort,
    *,
    on_stop: Callable[[float | None], None],
    on_drain: Callable[[], None],
    ledger: Ledger | None = None,
    ping_interval_s: float = 10.0,
    uids: Collection[int] | None = None,
    embedder: EmbedderPort | None = None,
    reranker: RerankerPort | None = None,
    memory: SessionMemory | None = None,
    retries: Retries | None = None,
    cache: AnswerCache | None = None,
) -> ASGIApp:
    """The application for the Unix socket. There is no key and no Host check: the kernel says who calls.

    Args:
        pipeline: does the work.
        on_stop: begins the daemon's end; gets the grace in seconds, or None for the configured one.
        on_drain: begins refusing new work.
        ledger: adds its routes; a request that brings a key of it is billed to that key, one without is free.
        ping_interval_s: longest silence in a stream.
        uids: user ids that may call; by default the daemon's own and root.
        embedder: computes embeddings, if there is one.
        reranker: scores documents, if there is one.
        memory: what is remembered between requests, if anything is.
        retries: lets a retry join the run of the request before; None runs each by itself.
        cache: what was answered before, if it is kept.
    """
    admin = Admin(pipeline, on_stop=on_stop, on_drain=on_drain)
    shared = shared_routes(
        pipeline,
        ping_interval_s=ping_interval_s,
        embedder=embedder,
        reranker=reranker,
        ledger=ledger,
        memory=memory,
        cache=cache,
        retries=retries,
    )
    routes: ASGIApp = Routes(
        [*shared, *admin.routes(), *memory_admin_routes(memory), *cache_admin_routes(cache)]
    )
    guarded = routes if ledger is None else KeyGuard(routes, ledger, trusted=True)
    return RequestTag(ErrorReplies(PeerGuard(guarded, uids=uids)))
