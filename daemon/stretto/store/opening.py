"""Opening the store's file: what is not ours, newer or damaged is refused before a byte of it is changed."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from stretto.errors import StartupError
from stretto.store.faults import storage_fault
from stretto.store.schema import APPLICATION_ID, FORMAT, Schema, migrate, unknown_step

FILE_NAME = "stretto.db"
"""The store's name in the state directory."""

_MAGIC = b"SQLite format 3\x00"
_HEAD_BYTES = 100
_BUSY_TIMEOUT_S = 5.0
_WAL_KEPT_BYTES = 16 << 20
_WRITER_CACHE_KIB = 16 << 10
_RESTORE = "It was left as it is. Put a backup in its place, or move it away to begin with an empty one."


def open_writer(path: Path, schemas: Sequence[Schema]) -> sqlite3.Connection:
    """Open the store for writing; makes it when it is not there, and applies the steps it has not had.

    The connection may be used by any one thread at a time, and begins and ends no transaction by itself. Its file is for its owner alone.

    Raises:
        StartupError: ``store_damaged``, ``store_newer``, ``store_foreign`` or ``store_unusable`` (cannot be read or written, full).
    """
    with _startup_errors(path):
        if _present(path):
            with contextlib.closing(_connect(path, "ro")) as looker:
                _inspect(looker, path, schemas)
        else:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = _connect(path, "rw")
        try:
            _prepare(connection, path, schemas)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path, *, in_use: bool = False) -> sqlite3.Connection:
    """Open a store that is there and sound for reading. The connection may be used by any one thread at a time.

    Args:
        path: the file.
        in_use: whether this process has a connection to it already. Its bytes are then left to SQLite: to close a descriptor of our
            own would drop the locks that SQLite has on the file (https://sqlite.org/howtocorrupt.html, 2.2), and the next process
            that closes the store would take itself for the last one and delete the log under us.

    Raises:
        StartupError: ``store_not_found``, ``store_damaged`` or ``store_unusable``.
    """
    with _startup_errors(path):
        if not in_use and not _present(path):
            raise StartupError(
                f"There is no store at {path}.",
                code="store_not_found",
                remedy="The daemon makes it when a feature that needs it is on; --state-dir names another place.",
            )
        connection = _connect(path, "ro")
        try:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except BaseException:
            connection.close()
            raise
    return connection


def require_known(connection: sqlite3.Connection, path: Path, schemas: Sequence[Schema]) -> None:
    """Refuse a file that another program or a newer Stretto made.

    Raises:
        StartupError: ``store_foreign`` or ``store_newer``.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if (application, version, tables) == (0, 0, 0):
        return  # made, and never written
    if application != APPLICATION_ID:
        raise StartupError(
            f"{path} is a database of another program.",
            code="store_foreign",
            remedy="It was left as it is. Choose another --state-dir.",
        )
    newer = f"format {version}" if version > FORMAT else unknown_step(connection, schemas)
    if newer is not None:
        raise StartupError(
            f"{path} was written by a newer Stretto ({newer} is not known here).",
            code="store_newer",
            remedy="It was left as it is. Run that version, or choose another --state-dir.",
        )


def _present(path: Path) -> bool:
    """Whether there is a file with something in it, which must then be SQLite's and as long as it says."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            size_bytes = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        head, size_bytes = b"", 0
    log = path.with_name(f"{path.name}-wal")
    log_bytes = log.stat().st_size if log.exists() else 0
    if not head:
        # SQLite would delete a log whose database is empty, and what was not yet carried over with it.
        if log_bytes:
            raise _damaged(path, f"it is empty or gone, but {log.name} beside it is not")
        return False
    if not head.startswith(_MAGIC) or len(head) < _HEAD_BYTES:
        raise _damaged(path, "it is no SQLite database")
    # https://sqlite.org/fileformat2.html#the_database_header; 1 stands for 65536. With a log, the log may have the rest.
    page_bytes = int.from_bytes(head[16:18], "big")
    told_bytes = (65536 if page_bytes == 1 else page_bytes) * int.from_bytes(head[28:32], "big")
    if not log_bytes and size_bytes < told_bytes:
        raise _damaged(path, f"it has {size_bytes:,} bytes of {told_bytes:,}")
    return True


def _inspect(connection: sqlite3.Connection, path: Path, schemas: Sequence[Schema]) -> None:
    require_known(connection, path, schemas)
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _damaged(path, verdict)


def _prepare(connection: sqlite3.Connection, path: Path, schemas: Sequence[Schema]) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StartupError(
            f"The file system of {path} has no shared memory, which the store needs (journal mode {mode}).",
            code="store_unusable",
            remedy="Choose a --state-dir on a local disk.",
        )
    for pragma in (
        "synchronous = FULL",
        "fullfsync = ON",  # where fsync alone does not reach the medium (macOS)
        "checkpoint_fullfsync = ON",
        "cell_size_check = ON",
        "secure_delete = ON",  # what was forgotten is gone from the file
        "temp_store = MEMORY",
        f"cache_size = -{_WRITER_CACHE_KIB}",
        f"journal_size_limit = {_WAL_KEPT_BYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
    require_known(connection, path, schemas)  # nothing but a lock keeps others from having been here since
    migrate(connection, schemas)
    # An up-to-date file has not been written to yet: find out now whether it can be.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ROLLBACK")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


@contextlib.contextmanager
def _startup_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        fault = storage_fault(error)
        if fault is None:
            raise _damaged(path, str(error)) from error
        if fault.code == "store_damaged":
            raise _damaged(path, str(error)) from error
        raise StartupError(
            f"The store {path} cannot be used: {fault.message}", code="store_unusable", remedy=fault.remedy
        ) from error
    except OSError as error:
        raise StartupError(
            f"The store {path} cannot be used ({error.strerror}).",
            code="store_unusable",
            remedy="Choose another --state-dir.",
        ) from error


def _damaged(path: Path, what: str) -> StartupError:
    return StartupError(f"The store {path} is damaged: {what}.", code="store_damaged", remedy=_RESTORE)
