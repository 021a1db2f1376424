"""What serves a loaded model: the pipeline, the answer cache, the HTTP and the control door, until the daemon is told to stop.

Imported while the weights are packed: most of the daemon's code is here or behind it, and none of it is needed to load a model.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import trio

from stretto.api import Retries, public_app, refusal_body
from stretto.control import control_app
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Billing, Pipeline, ServedModel
from stretto.serving import Counters, Limits, bind_tcp, bind_unix
from stretto.serving.server import serve

if TYPE_CHECKING:
    from stretto.cache import AnswerCache
    from stretto.chosen import ChosenModel
    from stretto.embedding import Embedder, Reranker
    from stretto.engine import EngineClient, EngineFacts
    from stretto.kept import Kept
    from stretto.observe import DaemonLog
    from stretto.settings import Settings


@dataclass(frozen=True, slots=True)
class House:
    """What stands behind the doors, loaded and open.

    Attributes:
        facts: of the loaded model.
        kept: what is kept between requests.
    """

    chosen: ChosenModel
    engine: EngineClient
    facts: EngineFacts
    embedder: Embedder | None
    reranker: Reranker | None
    kept: Kept


class Doors:
    """The doors of one daemon.

    Args:
        log: where the daemon's life is told.
        stopping: set when no new requests are to be taken.
        on_stop: what a stop asked for at the control door does, with the grace that was asked for, in seconds.
        grace_s: how long running answers have at a stop; asked when it comes.
    """

    def __init__(
        self,
        settings: Settings,
        log: DaemonLog,
        house: House,
        *,
        stopping: trio.Event,
        on_stop: Callable[[float | None], None],
        grace_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._log = log
        self._house = house
        self._stopping = stopping
        self._on_stop = on_stop
        self._grace_s = grace_s
        self._cache: AnswerCache | None = None
        self._retries = Retries(grace_s=settings.retry_grace_s)
        self._control: list[socket.socket] = []
        self._http: list[socket.socket] = []
        self.pipeline: Pipeline
        """The way of all requests; there once ``open`` has returned."""

    async def open(self, held: ExitStack, passed: dict[str, list[socket.socket]]) -> None:
        """Open what is kept of answers, and bind the sockets that were not passed.

        Args:
            held: closes what is bound here, when the daemon ends.
            passed: sockets from the service manager, by name.

        Raises:
            StartupError: an address is taken or may not be bound.
            StoreError: the storage is at fault.
        """
        settings = self._settings
        self._cache = await self._open_cache()
        self.pipeline = self._make_pipeline()
        self._control = passed.get("control") or [held.enter_context(bind_unix(settings.socket)).socket]
        self._http = passed.get("http") or [held.enter_context(bind_tcp(settings.host, settings.port))]

    async def run(self, *, task_status: trio.TaskStatus[tuple[str, str]] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until ``stopping`` is set and what ran has ended, or its grace is over. ``open`` comes first.

        Args:
            task_status: told the URL and the path of the control socket once connections are being accepted.
        """
        settings, house, pipeline = self._settings, self._house, self.pipeline
        counters = {"http": Counters(), "control": Counters()}
        pipeline.report("connections", lambda: {name: counter.stats() for name, counter in counters.items()})
        for name, report in self._reports().items():
            pipeline.report(name, report)
        public = public_app(
            pipeline,
            api_key=settings.api_key,
            ledger=house.kept.ledger,
            ping_interval_s=settings.ping_interval_s,
            compat=settings.api_compat,
            bound_host=settings.host,
            allowed_hosts=settings.allowed_hosts,
            cors_origins=settings.cors_origins,
            embedder=house.embedder,
            reranker=house.reranker,
            memory=house.kept.memory,
            retries=self._retries,
            cache=self._cache,
        )
        private = control_app(
            pipeline,
            on_stop=self._on_stop,
            on_drain=self._drain_asked,
            ledger=house.kept.ledger,
            ping_interval_s=settings.ping_interval_s,
            embedder=house.embedder,
            reranker=house.reranker,
            memory=house.kept.memory,
            retries=self._retries,
            cache=self._cache,
        )
        serving = partial(
            serve,
            limits=self._limits(),
            stopping=self._stopping,
            grace_s=self._grace_s,
            while_draining=pipeline.wait_idle,
            refusal_body=refusal_body,
        )
        async with trio.open_nursery() as helpers:
            await helpers.start(self._retries.run)
            async with trio.open_nursery() as nursery:
                urls = await nursery.start(partial(serving, public, self._http, counters=counters["http"]))
                doors = await nursery.start(
                    partial(serving, private, self._control, counters=counters["control"])
                )
                task_status.started((urls[0], doors[0].removeprefix("unix:")))
                await self._stopping.wait()
                self._drain()
                self._log.draining("stop", requests=len(pipeline.requests()), grace_s=self._grace_s())
            helpers.cancel_scope.cancel()

    def _drain(self) -> None:
        """Take no new requests; those that run go on."""
        self.pipeline.drain()
        self._retries.drain()

    def _drain_asked(self) -> None:
        self._drain()
        self._log.draining("asked", requests=len(self.pipeline.requests()))

    async def _open_cache(self) -> AnswerCache | None:
        """The answer cache, if it is on; memory tells it when what answers were made with has changed."""
        house = self._house
        store, memory = house.kept.store, house.kept.memory
        if self._settings.semantic_cache == "off" or store is None:
            return None
        from stretto.kept_answers import open_answer_cache

        cache = await open_answer_cache(
            self._settings, store, house.chosen, house.facts, house.engine, house.embedder, self._log
        )
        if memory is not None:
            memory.on_change = cache.session_changed
        return cache

    def _make_pipeline(self) -> Pipeline:
        settings, house = self._settings, self._house
        chosen, facts = house.chosen, house.facts
        model = ServedModel(
            id=chosen.name,
            aliases=tuple(dict.fromkeys((*chosen.aliases, *settings.model_alias))),
            created=chosen.created,
            context_tokens=facts.max_context_tokens,
            family=facts.spec.family,
            backend=chosen.backend_name,
            device=facts.spec.device,
            dtype=facts.spec.dtype,
        )
        return Pipeline(
            model=model,
            engine=house.engine,
            tokenizer=chosen.tokenizer,
            template=chosen.template,
            admission=Admission(settings.max_batch, settings.queue_limit, waiting=house.engine.held_back),
            log=LifecycleLog(),
            billing=Billing(house.kept.ledger),
            step_deadline_s=settings.step_deadline_s,
            default_max_tokens=settings.default_max_tokens,
            memory=house.kept.memory,
            cache=self._cache,
            cache_block_tokens=settings.block_tokens if settings.prefix_cache == "on" else 0,
            tool_dialect=settings.tool_dialect,
        )

    def _reports(self) -> dict[str, Callable[[], object]]:
        """Entries for ``/admin/status``."""
        house = self._house
        parts = {
            "embedder": house.embedder,
            "reranker": house.reranker,
            "retries": self._retries,
            "answer_cache": self._cache,
        }
        return house.kept.reports() | {name: part.stats for name, part in parts.items() if part is not None}

    def _limits(self) -> Limits:
        settings = self._settings
        return Limits(
            max_connections=settings.max_connections,
            body_bytes=settings.max_body_bytes,
            header_timeout_s=settings.header_timeout_s,
            body_timeout_s=settings.body_timeout_s,
            write_timeout_s=settings.write_timeout_s,
            drain_grace_s=settings.drain_grace_s,
        )
