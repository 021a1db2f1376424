"""Read-only connections, taken and given back by worker threads."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from stretto.errors import StartupError, StoreError
from stretto.store.faults import storage_fault
from stretto.store.opening import open_reader
from stretto.store.writer import closed_error

T = TypeVar("T")


class Readers:
    """A pool of connections to one file. Thread-safe; opens another connection when all are in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self.opened = 0
        """Connections made so far."""

    def run(self, fn: Callable[[sqlite3.Connection], T]) -> T:
        """Call ``fn`` with a connection that sees one state of the file throughout.

        Raises:
            StoreError: the storage is at fault, or the pool is closed.
        """
        with self._taken() as connection:
            try:
                connection.execute("BEGIN")
                try:
                    return fn(connection)
                finally:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                fault = storage_fault(error)
                if fault is None:
                    raise
                raise fault from error

    def close(self) -> None:
        """Close what is idle, and what is in use once it is given back. Idempotent."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        try:
            connection = open_reader(self._path, in_use=True)
        except StartupError as error:  # it is not the start any more, and whoever reads can do without
            raise StoreError(error.message, remedy=error.remedy) from error
        self.opened += 1
        return connection

    @contextmanager
    def _taken(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._closed:
                raise closed_error()
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._open()
        try:
            yield connection
        finally:
            with self._lock:
                keep = not self._closed
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()
