"""Start-up and shutdown order: log, lock, model, sockets, ready; then the same backwards.

The model loads before any port opens, so a client that can connect can be served. Whatever goes wrong on the way up is one
plain line and an exit status; nothing needs cleaning by hand after a crash.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from stretto._version import __version__
from stretto.chosen import ChosenModel, choose_model
from stretto.chosen_embedder import choose_embedder
from stretto.chosen_reranker import choose_reranker
from stretto.engine import EngineClient, EngineFacts, PrefixStore
from stretto.errors import SettingsError, StartupError, StoreError
from stretto.kept import open_kept
from stretto.needs import engine_config
from stretto.observe import DaemonLog, LogConfig, setup_logging
from stretto.prefix_store import open_prefix_store, store_fingerprint
from stretto.serving import LockFile, LockHeld, Notifier, adopt_listen_fds, bind_tcp

if TYPE_CHECKING:
    from stretto.doors import House
    from stretto.pipeline import Pipeline
    from stretto.settings import Settings

_ENGINE_STOP_S = 5.0
_TELL_EVERY_S = 1.0
_END_S = 15.0  # what a stop may take beyond the grace, as the service manager is told


def run(settings: Settings) -> int:
    """Serve until told to stop.

    Returns:
        The exit status: 0 after a stop that was asked for, 1 when something failed, 2 when a setting turned out wrong.
    """
    _open_standard_streams()
    with setup_logging(LogConfig(format=settings.log_format, level=settings.log_level)):
        daemon = Daemon(settings, DaemonLog())
        try:
            status = trio.run(daemon.main)
        except BaseExceptionGroup as group:
            raise _first(group) from None
    if daemon.engine_stuck:
        # A thread in native code cannot be ended, and the interpreter would wait for it, or abort, on its way out.
        with contextlib.suppress(OSError):
            if sys.stdout is not None:
                sys.stdout.flush()
        os._exit(status)
    return status


class Daemon:
    """One run of the daemon. ``main`` is its life."""

    def __init__(self, settings: Settings, log: DaemonLog) -> None:
        self._settings = settings
        self._log = log
        self._notifier = Notifier(os.environ)
        self._stopping = trio.Event()
        self._grace_s = settings.drain_grace_s
        self.engine_stuck = False
        """Whether the engine's thread is still in a step (or a load) that does not end."""

    async def main(self) -> int:
        """From nothing to ready to nothing; see the module's text."""
        status = 0  # what a second signal cuts short was asked to be cut
        async with trio.open_nursery() as nursery:
            await nursery.start(self._watch_signals, nursery.cancel_scope)
            try:
                status = await self._live(nursery)
            except (StartupError, SettingsError, StoreError) as error:
                self._log.error(str(error), code=error.code)
                status = 2 if isinstance(error, SettingsError) else 1
            nursery.cancel_scope.cancel()
        self._log.stopped(status=status)
        return status

    # Up ------------------------------------------------------------------------------------------------------------

    async def _live(self, tasks: trio.Nursery) -> int:
        settings = self._settings
        self._log.starting(
            version=__version__,
            pid=os.getpid(),
            model="echo" if settings.backend == "echo" else settings.model,
            backend=settings.backend,
        )
        with ExitStack() as held:
            held.enter_context(_lock_state(settings.state_dir))
            provider = None
            if settings.provider_config is not None:
                from stretto.ledger import load_provider

                provider = load_provider(settings.provider_config)
            passed = adopt_listen_fds(os.environ)
            if not passed.get("http"):
                # Say now, not after a long load, that the port is taken; it is bound for good once the model is there.
                bind_tcp(settings.host, settings.port).close()
            chosen = await trio.to_thread.run_sync(choose_model, settings)
            held.callback(chosen.close)
            embedder = await trio.to_thread.run_sync(choose_embedder, settings)
            if embedder is not None:
                held.callback(embedder.close)
            reranker = await trio.to_thread.run_sync(choose_reranker, settings)
            if reranker is not None:
                held.callback(reranker.close)
            engine = EngineClient(
                chosen.backend, engine_config(settings), prefix_store=self._prefix_store(chosen)
            )
            async with open_kept(settings, provider, (chosen.name, *chosen.aliases), embedder) as kept:
                try:
                    facts = await self._load(tasks, engine)
                    if facts is None:
                        return 0
                    if kept.ledger is not None:
                        kept.ledger.offer.require_room(facts.max_context_tokens)
                    await trio.to_thread.run_sync(_import_doors)  # waits for what began with the load
                    from stretto.doors import House

                    await self._serve(held, passed, House(chosen, engine, facts, embedder, reranker, kept))
                finally:
                    self.engine_stuck = not await engine.aclose(_ENGINE_STOP_S)
            if self.engine_stuck:
                self._log.error("The engine is stuck in a step and was left behind.")
        return int(self.engine_stuck)

    def _prefix_store(self, chosen: ChosenModel) -> Callable[[EngineFacts], PrefixStore | None] | None:
        """How to open the store of known text once the model is loaded, or None when there is to be none."""
        settings = self._settings
        if "off" in (settings.prefix_store, settings.prefix_cache):
            return None

        def open_store(facts: EngineFacts) -> PrefixStore | None:
            fingerprint = store_fingerprint(chosen.fingerprint, chosen.backend_name, facts.spec, facts.kv)
            return open_prefix_store(settings.state_dir / "prefix", fingerprint, settings.prefix_store_bytes)

        return open_store

    async def _load(self, tasks: trio.Nursery, engine: EngineClient) -> EngineFacts | None:
        """Load the model, or return None when a signal came first."""

        told, told_at = "", -math.inf

        def report(phase: str, fraction: float) -> None:
            nonlocal told, told_at
            self._log.loading(phase, fraction)
            text = f"Loading: {phase}, {fraction:.0%}"
            now = trio.current_time()
            # Reports come as fast as the load goes, and a full queue of the manager's would lose us READY.
            if now - told_at >= _TELL_EVERY_S:
                told_at = now
                self._notifier.extend_timeout(60.0)
                if text != told:
                    told = text
                    self._notifier.status(text)

        facts: EngineFacts | None = None
        self._log.loading("opening", 0.0)
        with trio.CancelScope() as scope:
            # In the outer nursery: one around the load would wrap its errors in groups.
            tasks.start_soon(_cancel_at, self._stopping, scope)
            tasks.start_soon(trio.to_thread.run_sync, _import_doors)
            facts = await engine.load(report)
        return None if self._stopping.is_set() else facts

    async def _serve(self, held: ExitStack, passed: dict[str, list[socket.socket]], house: House) -> None:
        from stretto.doors import Doors

        doors = Doors(
            self._settings,
            self._log,
            house,
            stopping=self._stopping,
            on_stop=self._stop,
            grace_s=lambda: self._grace_s,
        )
        await doors.open(held, passed)
        async with trio.open_nursery() as helpers:
            async with trio.open_nursery() as nursery:
                url, control = await nursery.start(doors.run)
                _collect_garbage()
                self._announce(url, control, house.chosen, house.facts)
                helpers.start_soon(self._feed_watchdog, doors.pipeline)
                await self._stopping.wait()
                self._notifier.stopping("Draining")
                self._notifier.extend_timeout(self._grace_s + _END_S)
            helpers.cancel_scope.cancel()

    def _announce(self, url: str, socket_path: str, chosen: ChosenModel, facts: EngineFacts) -> None:
        """The one line on stdout, for people and for supervisors; flushed at once."""
        words = {
            "url": url,
            "socket": socket_path,
            "model": chosen.name,
            "context": facts.max_context_tokens,
            "backend": chosen.backend_name,
            "device": facts.spec.device,
            "dtype": facts.spec.dtype,
            "kv": f"{facts.kv_bytes / 2**20:.0f}MiB",
        }
        line = "stretto ready " + " ".join(f"{name}={value}" for name, value in words.items())
        if not _say(line):
            self._log.warning("Nobody reads standard output; the ready line was not printed.")
        self._log.ready(**{name: str(value) for name, value in words.items()})
        self._notifier.ready(f"Serving {chosen.name} at {url}")

    # Life ----------------------------------------------------------------------------------------------------------

    async def _watch_signals(
        self, everything: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """The first signal drains, the second stops at once. So does a terminal that is closed, unless nohup says to outlive it."""
        wanted = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            wanted.append(signal.SIGHUP)
        with trio.open_signal_receiver(*wanted) as signals:
            task_status.started()
            async for _ in signals:
                if self._stopping.is_set():
                    everything.cancel()
                    return
                self._stopping.set()

    async def _feed_watchdog(self, pipeline: Pipeline) -> None:
        """Tell the service manager that we live, as long as the engine proves it."""
        interval_s = self._notifier.watchdog_interval_s
        while interval_s is not None:
            if pipeline.health().state not in ("stalled", "engine_lost"):
                self._notifier.watchdog()
            await trio.sleep(interval_s)

    def _stop(self, grace_s: float | None) -> None:
        if grace_s is not None:
            self._grace_s = min(grace_s, self._settings.drain_grace_s)
        self._stopping.set()


def _open_standard_streams() -> None:
    """Open what of 0, 1 and 2 is closed on nothing, lest a socket gets that number and the log is written into it."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def _say(line: str) -> bool:
    """Write a line to standard output unless nobody takes it; never blocks for a full pipe."""
    try:
        if not select.select([], [1], [], 0)[1]:
            return False
        os.write(1, f"{line}\n".encode())
    except OSError:
        return False
    return True


def _lock_state(directory: Path) -> LockFile:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return LockFile(directory / "daemon.lock")
    except LockHeld as held:
        who = f"process {held.pid}" if held.pid is not None else "another process"
        raise StartupError(
            f"A daemon already runs on the state directory {directory} ({who}).",
            code="already_running",
            remedy="Use that one, stop it with `stretto stop`, or give this one another --state-dir and --socket.",
        ) from held
    except OSError as error:
        raise StartupError(
            f"The state directory {directory} cannot be used ({error.strerror}).",
            remedy="Choose another one with --state-dir.",
        ) from error


def _collect_garbage() -> None:
    """Begin to collect garbage, after a start without. What is here now stays for good, so no collection looks through it."""
    gc.freeze()
    gc.enable()


def _import_doors() -> None:
    """Import what serves while the model loads, which takes other threads' time."""
    import stretto.doors  # noqa: F401


async def _cancel_at(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first plain exception in a group, for a traceback that a person can read."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
