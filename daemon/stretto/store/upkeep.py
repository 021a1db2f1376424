"""Looking after the store's file: backup, check, vacuum, export. Plain functions of paths, for worker threads and commands.

All but vacuum only read, and work while a daemon writes: SQLite shows them the file as it was when they began.
"""

from __future__ import annotations

import base64
import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stretto.errors import StartupError
from stretto.store.faults import storage_fault
from stretto.store.opening import open_reader, open_writer, require_known
from stretto.store.schema import Schema, applied_steps

_MOST_PROBLEMS = 100


@dataclass(frozen=True, slots=True)
class BackupReport:
    """A copy that was made."""

    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found: at most a hundred problems, in words, and how many rows each table has."""

    path: Path
    size_bytes: int
    problems: tuple[str, ...]
    rows: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum saved."""

    path: Path
    before_bytes: int
    after_bytes: int


def back_up(source: Path, target: Path, *, in_use: bool = False) -> BackupReport:
    """Copy a store, as one state of it, into a single file that was not there before: whole, checked and flushed, or not at all.

    For ``in_use`` see ``open_reader``.

    Raises:
        StartupError: ``store_not_found``, ``store_damaged``, or ``store_unusable``: ``target`` is there or cannot be written.
    """
    if target.exists():
        raise _target_error(
            target, "it is there already", "Name a file that is not; nothing is ever replaced."
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with contextlib.closing(open_reader(source, in_use=in_use)) as reader:
            os.close(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            _copy(reader, temporary, source)
        _place(temporary, target)
    except sqlite3.Error as error:
        fault = storage_fault(error)
        if fault is None:
            raise _target_error(target, str(error), None) from error
        raise _target_error(target, fault.message.rstrip("."), fault.remedy) from error
    except OSError as error:
        raise _target_error(target, error.strerror or str(error), None) from error
    finally:
        temporary.unlink(missing_ok=True)
    return BackupReport(target, target.stat().st_size)


def _copy(reader: sqlite3.Connection, temporary: Path, source: Path) -> None:
    with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as copy:
        reader.backup(copy)  # all pages in one step: a writer meanwhile would make it begin again otherwise
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
        (verdict,) = copy.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StartupError(
            f"The store {source} is damaged: {verdict}.",
            code="store_damaged",
            remedy="No backup was made. An older one may be sound.",
        )


def _place(temporary: Path, target: Path) -> None:
    """Give a finished file its name, durably, replacing nothing."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.link(temporary, target)
    directory = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def check(path: Path, schemas: Sequence[Schema]) -> CheckReport:
    """Look at every page, index and foreign key, and at what each room says is always true.

    Raises:
        StartupError: ``store_not_found``, ``store_foreign``, ``store_newer`` or ``store_unusable``; damage is in the report.
    """
    problems: list[str] = []
    rows: dict[str, int] = {}
    try:
        opened = open_reader(path)
    except StartupError as error:
        if error.code != "store_damaged":
            raise
        return CheckReport(path, _file_bytes(path), (error.message,), rows)
    with contextlib.closing(opened) as reader:
        try:
            reader.execute("BEGIN")
            require_known(reader, path, schemas)
            for (line,) in reader.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})"):
                if line != "ok":
                    problems.append(line)
            for table, row, parent, _ in reader.execute("PRAGMA foreign_key_check"):
                problems.append(f"row {row} of {table} points to a row of {parent} that is not there")
            rows = {table: _count(reader, table) for table in tables(reader)}
            present = applied_steps(reader)
            for schema in schemas:
                if schema.room in present:
                    for rule in schema.checks:
                        problems += [
                            f"{schema.room}, {rule.name}: {problem}" for problem in rule.find(reader)
                        ]
        except sqlite3.Error as error:
            problems.append(str(error))
    return CheckReport(path, path.stat().st_size, tuple(problems[:_MOST_PROBLEMS]), rows)


def vacuum(path: Path, schemas: Sequence[Schema]) -> VacuumReport:
    """Write the file anew without the room that deleted rows left. It needs as much free disk again, and nobody else at the store:
    the caller holds the lock of its directory.

    Raises:
        StartupError: see ``open_writer``; or ``store_unusable`` when there is no room for it. The file is then as it was.
    """
    before_bytes = _file_bytes(path)
    if before_bytes == 0:
        open_reader(path).close()  # says that there is none
    connection = open_writer(path, schemas)
    try:
        for schema in schemas:
            for statement in schema.upkeep:
                connection.execute(statement)
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as error:
        fault = storage_fault(error)
        if fault is None:
            raise
        raise StartupError(
            f"The store {path} cannot be vacuumed: {fault.message}",
            code="store_unusable",
            remedy=fault.remedy,
        ) from error
    finally:
        connection.close()
    return VacuumReport(path, before_bytes, _file_bytes(path))


def export(path: Path, schemas: Sequence[Schema]) -> Iterator[tuple[str, dict[str, object]]]:
    """Every row of every table, as ``(table, {column: value})`` with JSON values; bytes are ``{"base64": text}``.

    Indexes for full-text search are left out: they follow from the rows.

    Raises:
        StartupError: see ``check``.
        StoreError: the storage fails in the middle.
    """
    with contextlib.closing(open_reader(path)) as reader:
        require_known(reader, path, schemas)
        try:
            reader.execute("BEGIN")
            for table in tables(reader):
                cursor = reader.execute(f"SELECT * FROM {_quoted(table)}")
                names = [column[0] for column in cursor.description]
                for row in cursor:
                    yield table, {name: _json_value(value) for name, value in zip(names, row, strict=True)}
        except sqlite3.Error as error:
            fault = storage_fault(error)
            if fault is None:
                raise
            raise fault from error


def tables(connection: sqlite3.Connection) -> list[str]:
    """Names of the ordinary tables, in alphabetical order."""
    found = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return sorted(name for (name,) in found)


def _count(connection: sqlite3.Connection, table: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _json_value(value: object) -> object:
    return {"base64": base64.b64encode(value).decode("ascii")} if isinstance(value, bytes) else value


def _file_bytes(path: Path) -> int:
    wal = path.with_name(f"{path.name}-wal")
    return sum(file.stat().st_size for file in (path, wal) if file.exists())


def _target_error(target: Path, what: str, remedy: str | None) -> StartupError:
    return StartupError(f"The file {target} cannot be written: {what}.", code="store_unusable", remedy=remedy)
