"""The routes, and the public application that serves them over TCP."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.api.answers import AnswerRoute
from stretto.api.auth import BearerGuard
from stretto.api.cache import cache_routes
from stretto.api.envelopes import refusal_body
from stretto.api.health import HealthRoute
from stretto.api.key_guard import KeyGuard
from stretto.api.listing import flat_listing, ledger_routes
from stretto.api.memory import memory_routes
from stretto.api.models import ModelDetail, ModelList, beside_entries
from stretto.api.mounts import MOUNTS, Parts
from stretto.api.ports import EmbedderPort, PipelinePort, RerankerPort
from stretto.api.replies import ErrorReplies, RequestTag, no_such_route
from stretto.api.retries import Retries
from stretto.cache import AnswerCache
from stretto.ledger import Ledger
from stretto.memory import SessionMemory
from stretto.serving import CrossOrigin, HostGuard


def shared_routes(
    pipeline: PipelinePort,
    *,
    ping_interval_s: float,
    compat: Collection[str] = tuple(MOUNTS),
    embedder: EmbedderPort | None = None,
    reranker: RerankerPort | None = None,
    ledger: Ledger | None = None,
    memory: SessionMemory | None = None,
    retries: Retries | None = None,
    cache: AnswerCache | None = None,
) -> list[BaseRoute]:
    """The routes that the public port and the Unix socket both have; of the dialects, those named in ``compat``."""
    answer = partial(AnswerRoute, pipeline=pipeline, ping_interval_s=ping_interval_s, retries=retries)
    parts = Parts(pipeline, answer, embedder, ledger, reranker, retries)
    mounted = [route for name in compat for route in MOUNTS[name](parts)]
    more = None if ledger is None else flat_listing(ledger)
    beside = beside_entries(embedder, reranker)
    return [
        *(() if ledger is None else ledger_routes(pipeline, ledger)),
        Route("/health", HealthRoute(pipeline, "live"), methods=["GET"]),
        Route("/health/live", HealthRoute(pipeline, "live"), methods=["GET"]),
        Route("/health/ready", HealthRoute(pipeline, "ready"), methods=["GET"]),
        Route("/v1/models", ModelList(pipeline, beside, more), methods=["GET"]),
        Route("/v1/models/{model_id:path}", ModelDetail(pipeline, beside, more), methods=["GET"]),
        *mounted,
        *memory_routes(memory),
        *cache_routes(cache),
    ]


class Routes:
    """A router whose refusals are exceptions, for ErrorReplies to answer."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._router = Router(routes, redirect_slashes=False, default=no_such_route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route the request."""
        scope["app"] = self  # with it, Starlette raises for a wrong method instead of answering in plain text
        await self._router(scope, receive, send)


def public_app(
    pipeline: PipelinePort,
    *,
    api_key: str | None = None,
    ledger: Ledger | None = None,
    ping_interval_s: float = 10.0,
    compat: Collection[str] = tuple(MOUNTS),
    bound_host: str = "127.0.0.1",
    allowed_hosts: Iterable[str] = (),
    cors_origins: Iterable[str] = (),
    embedder: EmbedderPort | None = None,
    reranker: RerankerPort | None = None,
    memory: SessionMemory | None = None,
    retries: Retries | None = None,
    cache: AnswerCache | None = None,
) -> ASGIApp:
    """The application for the public port.

    From the outside in: every reply gets its request id; the Host must be ours (403); origins named in ``cors_origins``, and no
    others, get CORS headers; errors become JSON; ``/v1`` asks for the key.

    Args:
        pipeline: does the work.
        api_key: guards ``/v1``; None leaves it open.
        ledger: whose keys guard ``/v1`` in place of ``api_key``, and whose routes there are then.
        ping_interval_s: longest silence in a stream.
        compat: dialects that are served, by their names in ``MOUNTS``.
        bound_host: the address that is listened on.
        allowed_hosts: further names by which clients may call us.
        cors_origins: origins of web pages that may read replies.
        embedder: computes embeddings, if there is one.
        reranker: scores documents, if there is one.
        memory: what is remembered between requests, if anything is.
        retries: lets a retry join the run of the request before; None runs each by itself.
        cache: what was answered before, if it is kept.
    """
    routes = Routes(
        shared_routes(
            pipeline,
            ping_interval_s=ping_interval_s,
            compat=compat,
            embedder=embedder,
            reranker=reranker,
            ledger=ledger,
            memory=memory,
            cache=cache,
            retries=retries,
        )
    )
    guarded = BearerGuard(routes, api_key=api_key) if ledger is None else KeyGuard(routes, ledger)
    answering = ErrorReplies(guarded)
    return RequestTag(
        HostGuard(
            CrossOrigin(answering, allowed=cors_origins),
            bound_host=bound_host,
            names=allowed_hosts,
            refusal_body=refusal_body,
        )
    )
