"""The one thread that writes: closures in the order they come, several to a commit."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from stretto.errors import StoreError
from stretto.store.faults import storage_fault

_log = logging.getLogger(__name__)

MAX_BATCH = 64
"""Most closures in one commit: what one waits for is bounded."""


@dataclass(slots=True, eq=False)
class Job:
    """A closure and what became of it.

    Attributes:
        run: gets the connection, inside a transaction.
        durable: whether its commit must be on the medium before it counts as done.
        done: called once, on the writer's thread, when ``result`` or ``error`` is final.
    """

    run: Callable[[sqlite3.Connection], Any]
    durable: bool
    done: Callable[[Job], None]
    result: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class WriterStats:
    """Counts since the store was opened; seconds are the sum of all commits."""

    writes: int = 0
    failures: int = 0
    commits: int = 0
    durable_commits: int = 0
    largest_batch: int = 0
    commit_s: float = 0.0
    last_fault: str | None = None


class _Lost(Exception):
    """The transaction is gone, and what was done in it with it."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class _Queue:
    waiting: deque[Job] = field(default_factory=deque)
    closing: bool = False


class Writer:
    """Owns the write connection and its thread, from construction to ``close``.

    Jobs that are waiting when the thread is free are committed together. Each has a savepoint, so one that raises undoes its own
    work alone. When the commit itself fails (a full disk), the jobs are run again one by one, each in a transaction of its own, so
    that one that is too large harms no other.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.stats = WriterStats()
        self._connection = connection
        self._synchronous = ""
        self._queue = _Queue()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._live, name="stretto-store", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job.

        Raises:
            StoreError: ``store_closed``.
        """
        with self._changed:
            if self._queue.closing:
                raise closed_error()
            self._queue.waiting.append(job)
            self._changed.notify()

    def withdraw(self, job: Job) -> bool:
        """Take back a job that has not been begun; False when it has."""
        with self._changed:
            try:
                self._queue.waiting.remove(job)
            except ValueError:
                return False
            return True

    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue.waiting)

    def close(self) -> None:
        """Do what is queued, close the connection and end the thread; waits for it. Idempotent."""
        with self._changed:
            self._queue.closing = True
            self._changed.notify()
        self._thread.join()

    # The thread ----------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            while batch := self._next_batch():
                try:
                    self._run(batch)
                except (
                    BaseException
                ) as error:  # a closure ended the transaction: nobody can say what was kept
                    self._roll_back()
                    for job in batch:
                        self._fail(job, error)
                for job in batch:
                    self.stats.writes += 1
                    self.stats.failures += job.error is not None
                    job.done(job)
        finally:
            with contextlib.suppress(sqlite3.Error):  # a favour to later queries, no more
                self._connection.execute("PRAGMA optimize")
            try:
                self._connection.close()
            except sqlite3.Error as error:
                _log.warning("the store was not closed in order (%s)", error)

    def _next_batch(self) -> Sequence[Job]:
        with self._changed:
            while not self._queue.waiting and not self._queue.closing:
                self._changed.wait()
            waiting = self._queue.waiting
            return [waiting.popleft() for _ in range(min(MAX_BATCH, len(waiting)))]

    def _run(self, batch: Sequence[Job]) -> None:
        try:
            self._begin(any(job.durable for job in batch))
        except sqlite3.Error as error:
            for job in batch:
                self._fail(job, error)
            return
        try:
            for job in batch:
                self._run_one(job)
            self._commit()
        except _Lost as lost:
            self._roll_back()
            if len(batch) == 1:
                self._fail(batch[0], lost.cause)
                return
            for job in batch:
                self._run([job])
            return
        self.stats.largest_batch = max(self.stats.largest_batch, len(batch))

    def _begin(self, durable: bool) -> None:
        synchronous = "FULL" if durable else "NORMAL"
        if synchronous != self._synchronous:
            self._connection.execute(f"PRAGMA synchronous = {synchronous}")
            self._synchronous = synchronous
        self._connection.execute("BEGIN IMMEDIATE")

    def _run_one(self, job: Job) -> None:
        connection = self._connection
        job.result, job.error = None, None
        try:
            connection.execute("SAVEPOINT job")
            try:
                job.result = job.run(connection)
            except BaseException as error:
                if not connection.in_transaction:
                    raise _Lost(error) from error
                connection.execute("ROLLBACK TO job")
                self._fail(job, error)
            if not connection.in_transaction:
                raise RuntimeError("a closure given to the store ended the transaction it was run in")
            connection.execute("RELEASE job")
        except sqlite3.Error as error:
            raise _Lost(error) from error

    def _commit(self) -> None:
        started = time.perf_counter()
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise _Lost(error) from error
        self.stats.commit_s += time.perf_counter() - started
        self.stats.commits += 1
        self.stats.durable_commits += self._synchronous == "FULL"

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                _log.error("a transaction of the store cannot be rolled back (%s)", error)

    def _fail(self, job: Job, error: BaseException) -> None:
        job.result = None
        job.error = error
        if isinstance(error, sqlite3.Error):
            fault = storage_fault(error)
            if fault is not None:
                fault.__cause__ = error
                job.error = fault
                self.stats.last_fault = fault.code


def closed_error() -> StoreError:
    """What is told to whoever comes too late."""
    return StoreError("The store is closed: the daemon is ending.", code="store_closed", status=503)
