"""The store as the event loop (trio) sees it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import outcome
import trio

from stretto.store.opening import open_writer
from stretto.store.readers import Readers
from stretto.store.schema import Schema
from stretto.store.upkeep import BackupReport, back_up
from stretto.store.writer import Job, Writer

T = TypeVar("T")

READ_THREADS = 4


class Store:
    """One SQLite file: one thread that writes, a few that read.

    Closures get a ``sqlite3.Connection`` inside a transaction. They run on another thread, so they take and return plain values,
    never a cursor; they must not begin, end or nest transactions themselves, and have no effect but on the database: a closure
    whose commit failed may be run again, and only its last run counts.

    What a closure raises is raised to its caller, and undoes what that closure did, nothing else. Where the storage is at fault, that is
    a ``StoreError`` (``store_full``, ``store_readonly``, ``store_busy``, ``store_damaged``, ``store_io_error``, ``store_closed``);
    a ``sqlite3.IntegrityError`` or other error of the statement itself comes as it is.

    Rows are ordered by their integer keys, never by time: stamps (``now_us``) are microseconds of a clock that may be set back.

    Made by ``Store.open``; everything here is called on the event loop.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._writer = Writer(connection)
        self._readers = Readers(path)
        self._read_limiter = trio.CapacityLimiter(READ_THREADS)
        self._reads = 0

    @classmethod
    async def open(cls, path: Path, schemas: Sequence[Schema]) -> Self:
        """Open the file, or make it, and bring its tables up to date.

        The caller holds the lock of the directory; SQLite's own locks keep the file sound even if it does not.

        Args:
            path: the file, e.g. ``stretto.db`` in the state directory, which must be there.
            schemas: of all rooms, whether they are in use or not: what a file has beyond them is newer than this program.

        Raises:
            StartupError: ``store_damaged``, ``store_newer``, ``store_foreign`` or ``store_unusable``. The file is then unchanged.
        """
        return cls(path, await trio.to_thread.run_sync(open_writer, path, schemas))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def write(self, fn: Callable[[sqlite3.Connection], T], durable: bool = False) -> T:
        """Run a closure that changes something, and return what it returns once that is committed.

        Closures are run in the order of the calls. A cancelled call has done nothing: one that has been begun is waited for, and
        then returns as if it had not been cancelled.

        Args:
            fn: see the class.
            durable: whether the commit must survive a loss of power. One that need not survives the death of the process, and is
                on the medium at the latest with the next durable one.

        Raises:
            StoreError: the storage is at fault; nothing of ``fn`` was kept.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()
        token = trio.lowlevel.current_trio_token()

        def done(job: Job) -> None:
            if job.error is None:
                result: outcome.Outcome[Any] = outcome.Value(job.result)
            else:
                result = outcome.Error(job.error)
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(trio.lowlevel.reschedule, task, result)

        def give_up(_: Callable[[], None]) -> trio.lowlevel.Abort:
            return trio.lowlevel.Abort.SUCCEEDED if self._writer.withdraw(job) else trio.lowlevel.Abort.FAILED

        job = Job(fn, durable, done)
        self._writer.submit(job)
        answer: T = await trio.lowlevel.wait_task_rescheduled(give_up)
        return answer

    async def read(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Run a closure that only reads, on a worker thread; it sees one state of the file throughout, with all writes that had
        returned before.

        At most four run at once. It cannot be interrupted: a cancelled call waits for its end.

        Raises:
            StoreError: the storage is at fault. A closure that tries to write fails with ``store_readonly``.
        """
        self._reads += 1
        return await trio.to_thread.run_sync(self._readers.run, fn, limiter=self._read_limiter)

    async def backup(self, target: Path) -> BackupReport:
        """Copy the store as it is now, whatever is written meanwhile; ``target`` appears whole or not at all.

        Raises:
            StartupError: ``store_unusable``: ``target`` is there already, or cannot be written.
        """
        return await trio.to_thread.run_sync(partial(back_up, self.path, target, in_use=True))

    def stats(self) -> dict[str, object]:
        """Sizes, counts and the last fault; plain JSON values."""
        writer = self._writer.stats
        return {
            "path": str(self.path),
            "file_bytes": _size(self.path),
            "wal_bytes": _size(self.path.with_name(f"{self.path.name}-wal")),
            "waiting": self._writer.waiting(),
            "writes_total": writer.writes,
            "write_failures_total": writer.failures,
            "commits_total": writer.commits,
            "durable_commits_total": writer.durable_commits,
            "largest_batch": writer.largest_batch,
            "commit_s": round(writer.commit_s, 6),
            "reads_total": self._reads,
            "reading": self._read_limiter.borrowed_tokens,
            "read_connections": self._readers.opened,
            "last_fault": writer.last_fault,
        }

    async def aclose(self) -> None:
        """Commit what is queued and close the file, even when cancelled. Idempotent; whoever comes later gets ``store_closed``."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._readers.close()
        self._writer.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
