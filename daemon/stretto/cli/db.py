"""``stretto db``."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stretto.cli.options import with_settings
from stretto.cli.output import print_json, size_text, table, terminal_safe
from stretto.errors import StartupError
from stretto.settings import LoadedSettings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

_as_json = click.option("--json", "as_json", is_flag=True, help="As one JSON object.")


@click.group()
@with_settings("state_dir")
@click.pass_context
def db(ctx: click.Context, loaded: LoadedSettings) -> int:
    """Look after the store: the file of memories, cached answers and credits in the state directory.

    All but vacuum work while the daemon runs.

    \b
    Examples:
      stretto db backup ~/backups/stretto-monday.db
      stretto db check
      stretto db export | jq -r .table | sort | uniq -c
    """
    from stretto.store import FILE_NAME

    ctx.obj = loaded.settings.state_dir / FILE_NAME
    return 0


@db.command()
@click.argument("target", type=click.Path(path_type=Path))
@_as_json
@click.pass_obj
def backup(path: Path, target: Path, as_json: bool) -> int:
    """Copy the store into a file that is not there yet.

    To restore it: stop the daemon, remove stretto.db, stretto.db-wal and stretto.db-shm from the state directory, and copy the backup
    there as stretto.db.

    \b
    Example:
      stretto db backup ~/backups/stretto-monday.db
    """
    from stretto.store import back_up

    report = back_up(path, target)
    if as_json:
        print_json({"path": str(report.path), "size_bytes": report.size_bytes})
    else:
        click.echo(f"{report.path}")
        click.echo(f"copied {size_text(report.size_bytes)}", err=True)
    return 0


@db.command()
@_as_json
@click.pass_obj
def check(path: Path, as_json: bool) -> int:
    """Look for damage in the store. The exit status is 1 when there is any.

    \b
    Example:
      stretto db check --json | jq .problems
    """
    from stretto.store import check
    from stretto.tables import SCHEMAS

    report = check(path, SCHEMAS)
    if as_json:
        print_json(
            {
                "path": str(report.path),
                "ok": report.ok,
                "size_bytes": report.size_bytes,
                "problems": list(report.problems),
                "rows": dict(report.rows),
            }
        )
        return 0 if report.ok else 1
    if report.rows:
        click.echo(table(["TABLE", "ROWS"], [[name, f"{count:,}"] for name, count in report.rows.items()]))
        click.echo()
    for problem in report.problems:
        click.echo(terminal_safe(f"damaged: {problem}"))
    verdict = "sound" if report.ok else "damaged; put a backup in its place"
    click.echo(f"{report.path} ({size_text(report.size_bytes)}) is {verdict}")
    return 0 if report.ok else 1


@db.command()
@_as_json
@click.pass_obj
def vacuum(path: Path, as_json: bool) -> int:
    """Give back the disk that deleted rows left. The daemon must not be running; it takes as much free disk again.

    \b
    Example:
      stretto db vacuum
    """
    from stretto.store import vacuum
    from stretto.tables import SCHEMAS

    with _lock(path.parent):
        report = vacuum(path, SCHEMAS)
    if as_json:
        print_json(
            {
                "path": str(report.path),
                "before_bytes": report.before_bytes,
                "after_bytes": report.after_bytes,
            }
        )
    else:
        click.echo(f"{size_text(report.before_bytes)} are now {size_text(report.after_bytes)}", err=True)
    return 0


@db.command()
@click.argument("target", type=click.Path(path_type=Path), required=False)
@_as_json
@click.pass_obj
def export(path: Path, target: Path | None, as_json: bool) -> int:
    """Write every row as a line of JSON: to stdout, or to a file that is not there yet.

    Each line is {"table": NAME, "row": {COLUMN: VALUE}}; bytes are {"base64": TEXT}. With --json and a file, the
    number of rows of each table is printed as one JSON object.

    \b
    Examples:
      stretto db export > all.jsonl
      stretto db export all.jsonl
    """
    from stretto.store import export
    from stretto.tables import SCHEMAS

    rows = export(path, SCHEMAS)
    if target is None:
        _write_rows(rows, sys.stdout)
        return 0
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
        ) as file:
            counts = _write_rows(rows, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    if as_json:
        print_json({"path": str(target), "rows": dict(counts)})
    else:
        click.echo(f"wrote {counts.total():,} rows to {target}", err=True)
    return 0


def _write_rows(rows: Iterable[tuple[str, dict[str, object]]], file: TextIO) -> Counter[str]:
    counts: Counter[str] = Counter()
    for name, row in rows:
        file.write(json.dumps({"table": name, "row": row}, ensure_ascii=False) + "\n")
        counts[name] += 1
    return counts


def _lock(directory: Path) -> Any:
    """The daemon's own lock, so that none runs meanwhile."""
    from stretto.serving import LockFile, LockHeld

    if not directory.is_dir():
        raise StartupError(
            f"There is no state directory {directory}.",
            code="store_not_found",
            remedy="Name it with --state-dir.",
        )
    try:
        return LockFile(directory / "daemon.lock")
    except LockHeld as held:
        raise StartupError(
            f"A daemon uses the store (process {held.pid})." if held.pid else "A daemon uses the store.",
            code="already_running",
            remedy="Stop it with `stretto stop` first.",
        ) from held
