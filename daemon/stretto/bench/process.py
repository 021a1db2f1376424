"""A server that the benchmark starts itself: how long until it answers, and how much memory it takes."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import httpx2
import psutil
import trio

from stretto.bench.wire import BenchError

_POLL_S = 0.02
_STOP_S = 20.0


class Server:
    """A child process that answers.

    Attributes:
        pid: its process id.
        ready_s: from the start of the process to the first 200 of ``/v1/models``.
    """

    def __init__(self, pid: int, ready_s: float) -> None:
        self.pid = pid
        self.ready_s = ready_s

    def peak_bytes(self) -> int:
        """The most resident memory of it and its children; see ``peak_rss_bytes``."""
        return peak_rss_bytes(self.pid)


@asynccontextmanager
async def started(
    command: str, url: str, *, limit_s: float, clock: Callable[[], float]
) -> AsyncIterator[Server]:
    """Run a command line (no shell reads it) for the length of a block; then SIGTERM, and SIGKILL if that does not help.

    Raises:
        BenchError: somebody answers at ``url`` already, the command cannot be run, it ends early, or it does not answer
            within ``limit_s``.
    """
    async with httpx2.AsyncClient(base_url=url, timeout=5.0, trust_env=False) as http:
        if await _answers(http):
            raise BenchError(f"A server answers at {url} already.", remedy="Stop it, or choose another port.")
        words = shlex.split(command)
        began_s = clock()
        try:
            process = subprocess.Popen(  # noqa: ASYNC220  (milliseconds, before anything is measured)
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        except (OSError, IndexError) as error:
            raise BenchError(f"'{command}' cannot be run: {error}.") from error
        try:
            with trio.move_on_after(limit_s) as scope:
                while not await _answers(http):
                    if process.poll() is not None:
                        raise BenchError(
                            f"'{command}' ended with status {process.returncode} before it answered at {url}."
                        )
                    await trio.sleep(_POLL_S)
            if scope.cancelled_caught:
                raise BenchError(f"'{command}' did not answer at {url} within {limit_s:g} s.")
            yield Server(process.pid, clock() - began_s)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(_end, process)


class Restartable:
    """A server as ``started`` runs it, which can be stopped and started again in between."""

    def __init__(self, command: str, url: str, *, limit_s: float, clock: Callable[[], float]) -> None:
        self._start = partial(started, command, url, limit_s=limit_s, clock=clock)
        self._held = AsyncExitStack()
        self._server: Server | None = None
        self._peak_bytes = 0

    async def __aenter__(self) -> Restartable:
        """Start it. Raises BenchError, see ``started``."""
        self._server = await self._held.enter_async_context(self._start())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Stop it."""
        self._server = None
        await self._held.aclose()

    async def restart(self) -> None:
        """Stop it as a service manager does, and wait until it answers again. Raises BenchError."""
        self._peak_bytes = self.peak_bytes()
        await self.__aexit__()
        await self.__aenter__()

    @property
    def ready_s(self) -> float:
        """Of the last start."""
        assert self._server is not None
        return self._server.ready_s

    def peak_bytes(self) -> int:
        """The largest of all its lives."""
        assert self._server is not None
        return max(self._peak_bytes, self._server.peak_bytes())


def peak_rss_bytes(pid: int) -> int:
    """The peak of a process's resident memory, plus those of its children that live.

    Where the system keeps no peak (it is ``VmHWM`` of Linux), the memory it has now. A process that has gone counts nothing.
    """
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0
    for process in family:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            peak_kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
            total += int(peak_kib) * 1024
        except (OSError, StopIteration):
            try:
                total += int(process.memory_info().rss)
            except psutil.Error:
                continue
    return total


async def _answers(http: httpx2.AsyncClient) -> bool:
    """Whether the server lists its models; one that still loads answers 503, or not at all."""
    try:
        return (await http.get("/v1/models")).status_code == 200 and (
            await http.get("/health")
        ).status_code == 200
    except httpx2.HTTPError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
