"""One benchmark from its plan to its results: start what is to be started, run the works, look at memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx2

from stretto.bench.process import Restartable, started
from stretto.bench.rounds import Results, Target, run_rounds
from stretto.bench.wire import Wire, model_of
from stretto.bench.works import Figure, Work

_READY = Figure("ready", "s", "lower")
_IDLE = Figure("idle", "MB", "lower")
_PEAK = Figure("peak", "MB", "lower")
_STEP_S = 600.0  # longest wait for one piece of an answer


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """One server. With ``command`` it is started and stopped here, and its start and memory are measured too.

    Attributes:
        name: in the results.
        url: its base URL, without ``/v1``.
        command: its command line, or None when it runs already.
        model: the model id to ask for, or None for the first one that it lists.
    """

    name: str
    url: str
    command: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured.

    Attributes:
        servers: the first is compared with each other one.
        works: see ``WORKS``.
        rounds: how often each work counts.
        warm_ups: how often each is done before, uncounted.
        seed: decides all texts and draws.
        start_limit_s: longest time a server may take until it answers.
    """

    servers: Sequence[ServerPlan]
    works: Sequence[Work]
    rounds: int
    seed: str
    warm_ups: int = 1
    start_limit_s: float = 300.0


async def measure(
    plan: Plan,
    *,
    tell: Callable[[str], None] = lambda text: None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Results, dict[str, str]]:
    """Carry a plan out.

    Returns:
        The results, and the model that each server was asked for.

    Raises:
        BenchError: see ``run_rounds`` and ``started``.
    """
    starts: dict[str, list[float]] = {
        server.name: [] for server in plan.servers if server.command is not None
    }
    for number in range(plan.rounds - 1):  # the last start is the one that stays for the works
        for server in plan.servers:
            if server.command is not None:
                tell(f"start {number + 1}/{plan.rounds}: {server.name}")
                async with started(
                    server.command, server.url, limit_s=plan.start_limit_s, clock=clock
                ) as child:
                    starts[server.name].append(child.ready_s)
    models: dict[str, str] = {}
    children: dict[str, Restartable] = {}
    idle_bytes: dict[str, int] = {}
    async with AsyncExitStack() as held:
        targets = []
        for server in plan.servers:
            if server.command is not None:
                tell(f"start {plan.rounds}/{plan.rounds}: {server.name}")
                own = children[server.name] = await held.enter_async_context(
                    Restartable(server.command, server.url, limit_s=plan.start_limit_s, clock=clock)
                )
                starts[server.name].append(own.ready_s)
                idle_bytes[server.name] = own.peak_bytes()
            http = await held.enter_async_context(
                httpx2.AsyncClient(
                    base_url=server.url,
                    timeout=httpx2.Timeout(_STEP_S, connect=10.0),
                    # A connection kept alive may be closed, after so many requests or seconds, just as it is used again.
                    limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
                    trust_env=False,
                )
            )
            models[server.name] = server.model or await model_of(http)
            restart = children[server.name].restart if server.name in children else None
            targets.append(Target(server.name, Wire(http, models[server.name], clock, restart)))
        results = await run_rounds(
            targets, plan.works, rounds=plan.rounds, warm_ups=plan.warm_ups, seed=plan.seed, tell=tell
        )
        for name, values in starts.items():
            results.row("start", _READY).values[name] = values
        for name, own in children.items():
            results.row("memory", _IDLE).values[name] = [idle_bytes[name] / 1e6]
            results.row("memory", _PEAK).values[name] = [own.peak_bytes() / 1e6]
    return results, models
