"""``stretto db``."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from click.testing import Result

import stretto.tables
from stretto.serving import LockFile
from stretto.store import Store
from support.store_tables import SCHEMAS, add

Run = Callable[..., Result]


async def fill(path: Path) -> None:
    async with await Store.open(path, SCHEMAS) as store:
        await store.write(add("a", data=b"\x00\xff"))
        await store.write(add("é\x1b[2J"))


@pytest.fixture
def path(own_place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two things, where commands look for it."""
    monkeypatch.setattr(stretto.tables, "SCHEMAS", SCHEMAS)
    path = own_place / "state" / "stretto" / "stretto.db"
    path.parent.mkdir(parents=True)
    trio.run(fill, path)
    return path


@pytest.mark.parametrize("command", ["check", "vacuum", "export"])
def test_no_store(run: Run, command: str) -> None:
    result = run("db", command)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: There is no s")


def test_backup(run: Run, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "monday.db"
    result = run("db", "backup", str(target), "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"path": str(target), "size_bytes": target.stat().st_size}
    connection = sqlite3.connect(target)
    assert connection.execute("SELECT count(*) FROM thing").fetchone() == (2,)
    connection.close()
    again = run("db", "backup", str(target))
    assert again.exit_code == 1
    assert "it is there already" in again.stderr
    assert run("db", "backup", str(tmp_path / "none" / "x.db")).exit_code == 1


def test_check_of_a_sound_store(run: Run, path: Path) -> None:
    result = run("db", "check")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == ["TABLE", "ROWS"]
    assert result.stdout.splitlines()[-1].endswith("is sound")
    document = json.loads(run("db", "check", "--json").stdout)
    assert (document["ok"], document["problems"], document["rows"]["thing"]) == (True, [], 2)


def test_check_tells_a_broken_rule_of_a_room(run: Run, path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE thing SET amount = -1 WHERE id = 2")
        connection.execute("INSERT INTO part (thing) VALUES (77)")
    connection.close()
    result = run("db", "check")
    assert result.exit_code == 1
    assert "damaged: things, amounts: thing 2 is negative" in result.stdout
    assert "damaged: row 1 of part points to a row of thing that is not there" in result.stdout
    assert json.loads(run("db", "check", "--json").stdout)["ok"] is False


def test_check_tells_damage(run: Run, path: Path) -> None:
    os.truncate(path, path.stat().st_size - 4096)
    result = run("db", "check")
    assert result.exit_code == 1
    assert "damaged" in result.stdout


def test_vacuum(run: Run, path: Path) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.executemany(
            "INSERT INTO thing (name, amount, data) VALUES (?, 0, ?)",
            [(str(n), bytes(5000)) for n in range(50)],
        )
    with connection:
        connection.execute("DELETE FROM thing WHERE id > 2")
    connection.close()
    document = json.loads(run("db", "vacuum", "--json").stdout)
    assert document["after_bytes"] < document["before_bytes"]
    assert path.stat().st_size == document["after_bytes"]
    assert run("db", "check").exit_code == 0


def test_vacuum_is_refused_while_a_daemon_runs(run: Run, path: Path) -> None:
    with LockFile(path.parent / "daemon.lock"):
        result = run("db", "vacuum")
    assert result.exit_code == 1
    assert f"process {os.getpid()}" in result.stderr
    assert "stretto stop" in result.stderr


def test_export(run: Run, path: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in run("db", "export").stdout.splitlines()]
    assert [line["row"] for line in lines if line["table"] == "thing"] == [
        {"id": 1, "name": "a", "amount": 0, "data": {"base64": "AP8="}},
        {"id": 2, "name": "é\x1b[2J", "amount": 0, "data": None},
    ]
    target = tmp_path / "all.jsonl"
    result = run("db", "export", str(target), "--json")
    assert json.loads(result.stdout)["rows"]["thing"] == 2
    assert [json.loads(line) for line in target.read_text().splitlines()] == lines
    assert run("db", "export", str(target)).exit_code == 1
    assert [file.name for file in tmp_path.glob("*.tmp")] == []


def test_a_foreign_file_is_refused(run: Run, path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipe (name TEXT)")
    connection.close()
    for command in ("check", "vacuum", "export"):
        result = run("db", command)
        assert result.exit_code == 1
        assert "another program" in result.stderr
