"""What SQLite's errors mean for a caller."""

from __future__ import annotations

import sqlite3

from stretto.errors import StoreError

# Primary result codes, https://sqlite.org/rescode.html: our code, HTTP status, what is wrong, what helps.
_MEANINGS: dict[int, tuple[str, int, str, str]] = {
    sqlite3.SQLITE_FULL: (
        "store_full",
        507,
        "The disk, the quota or the store itself is full.",
        "Free some space; nothing that was stored before is lost.",
    ),
    sqlite3.SQLITE_READONLY: (
        "store_readonly",
        500,
        "The store cannot be written to.",
        "Check the permissions of the state directory and of the file system it is on.",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "store_readonly",
        500,
        "The store's files cannot be opened.",
        "Check the permissions of the state directory and how many files may be open.",
    ),
    sqlite3.SQLITE_BUSY: (
        "store_busy",
        503,
        "Another process holds the store.",
        "Wait until the tool that works on it has ended.",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "store_damaged",
        500,
        "The store is damaged.",
        "Stop the daemon, and put a backup in its place.",
    ),
    sqlite3.SQLITE_NOTADB: (
        "store_damaged",
        500,
        "The store is no database any more.",
        "Stop the daemon, and put a backup in its place.",
    ),
    sqlite3.SQLITE_IOERR: (
        "store_io_error",
        500,
        "The disk would not read or write the store.",
        "Look at the system's log for what is wrong with the disk, or at the limits on file sizes.",
    ),
}
_ALIASES = {
    sqlite3.SQLITE_LOCKED: sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_PERM: sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PROTOCOL: sqlite3.SQLITE_BUSY,
}


def storage_fault(error: sqlite3.Error) -> StoreError | None:
    """The error for a caller when the storage is at fault, or None when the statement is (a constraint, a wrong name)."""
    number = getattr(error, "sqlite_errorcode", None)
    if number is None:
        return None
    primary = number & 0xFF
    meaning = _MEANINGS.get(_ALIASES.get(primary, primary))
    if meaning is None:
        return None
    code, status, message, remedy = meaning
    return StoreError(
        f"{message} (SQLite: {error.sqlite_errorname})",
        code=code,
        status=status,
        remedy=remedy,
        retry_after_s=1.0 if code == "store_busy" else None,
    )
