"""What can be wrong with the file, the disk and the power: nothing is lost, nothing is overwritten, and it is said why."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import trio

from stretto.errors import StartupError, StoreError
from stretto.store import Schema, Step, Store, check
from support.small_disk import small_disk
from support.store_tables import PARTS, SCHEMAS, THINGS, add, contents, names

NEWER = Schema("things", (*THINGS.steps, Step("colours", ("ALTER TABLE thing ADD COLUMN colour TEXT",))))


async def filled(path: Path, count: int = 40) -> None:
    async with await Store.open(path, SCHEMAS) as store:
        for number in range(count):
            await store.write(add(f"thing {number}", data=bytes(2000)))


async def refused(path: Path, schemas: tuple[Schema, ...] = SCHEMAS) -> StartupError:
    """The refusal to open a file, which must be left as it was."""
    before = contents(path.parent)
    with pytest.raises(StartupError) as caught:
        await Store.open(path, schemas)
    assert contents(path.parent) == before
    assert str(path) in caught.value.message
    return caught.value


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    draw = random.Random(7)
    acknowledged: set[str] = set()
    for turn in range(6):
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "support.store_writer",
                str(path),
                str(turn * 1_000_000),
                "durable" if turn % 2 else "plain",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout is not None
        for _ in range(draw.randrange(1, 200)):
            line = process.stdout.readline()
            assert line, "the writer ended by itself"
            acknowledged.add(line.strip())
        process.send_signal(signal.SIGKILL)
        # What it said before it died counts too; a last line may be cut short.
        rest = process.communicate()[0]
        acknowledged.update(rest.split("\n")[:-1])
        assert process.returncode == -signal.SIGKILL
    report = check(path, SCHEMAS)
    assert report.problems == ()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        kept = set(names(connection))
    assert acknowledged
    assert acknowledged <= kept


ANOTHER_PROCESS = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT count(*) FROM thing').fetchone(); c.close()"


@pytest.mark.parametrize("use", ["read", "backup"])
async def test_another_process_that_closes_the_store_does_not_take_itself_for_the_last(
    tmp_path: Path, use: str
) -> None:
    path = tmp_path / "stretto.db"
    async with await Store.open(path, SCHEMAS) as store:
        await store.write(add("before"), durable=True)
        if use == "read":
            assert await store.read(names) == ["before"]
        else:
            await store.backup(tmp_path / "copy.db")
        await trio.run_process([sys.executable, "-c", ANOTHER_PROCESS, str(path)])
        log = tmp_path / "stretto.db-wal"
        assert log.exists()
        await store.write(add("after"), durable=True)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert names(connection) == ["before", "after"]
        left = tmp_path / "left"
        shutil.copytree(tmp_path, left)  # as kill -9 would leave it
    with contextlib.closing(sqlite3.connect(left / "stretto.db")) as connection:
        assert names(connection) == ["before", "after"]


async def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    async with await Store.open(path, (NEWER, PARTS)) as store:
        await store.write(add("a"))
    assert (await refused(path)).code == "store_newer"
    assert (await refused(path, (NEWER,))).code == "store_newer"  # a whole room that is not known
    renamed = Schema("things", (Step("other", THINGS.steps[0].change),))
    assert (await refused(path, (renamed, PARTS))).code == "store_newer"
    async with await Store.open(path, (NEWER, PARTS)) as again:
        assert await again.read(names) == ["a"]


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    await filled(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    error = await refused(path)
    assert (error.code, "format 2" in error.message) == ("store_newer", True)


async def test_steps_are_applied_once_and_an_older_file_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    await filled(path, 1)
    for _ in range(2):
        async with await Store.open(path, (NEWER, PARTS)) as store:
            assert await store.read(lambda c: c.execute("SELECT name, colour FROM thing").fetchall()) == [
                ("thing 0", None)
            ]


@pytest.mark.parametrize(
    "change",
    [
        ("CREATE TABLE more (id INTEGER PRIMARY KEY) STRICT", "INSERT INTO nowhere VALUES (1)"),
        ("CREATE TABLE more (id INTEGER PRIMARY KEY) STRICT", "INSERT INTO part (thing) VALUES (99)"),
    ],
)
async def test_a_step_that_fails_leaves_all_as_it_was(tmp_path: Path, change: tuple[str, ...]) -> None:
    path = tmp_path / "stretto.db"
    await filled(path, 3)
    broken = Schema("more", (Step("tables", change),))
    assert (await refused(path, (*SCHEMAS, broken))).code == "store_damaged"
    async with await Store.open(path, SCHEMAS) as store:
        assert len(await store.read(names)) == 3


@pytest.mark.parametrize("kept", [100, 4096, 4096 * 9, -4096, -1000])
async def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "stretto.db"
    await filled(path)
    os.truncate(path, kept if kept > 0 else path.stat().st_size + kept)
    assert (await refused(path)).code == "store_damaged"


async def test_a_file_without_its_beginning_is_refused_even_when_its_log_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "live" / "stretto.db"
    path.parent.mkdir()
    async with await Store.open(path, SCHEMAS) as store:
        await store.write(add("a"))
        copy = tmp_path / "copy"
        shutil.copytree(path.parent, copy)
    assert (copy / "stretto.db-wal").stat().st_size > 0
    os.truncate(copy / "stretto.db", 0)
    assert (await refused(copy / "stretto.db")).code == "store_damaged"
    os.unlink(copy / "stretto.db")
    assert (await refused(copy / "stretto.db")).code == "store_damaged"


async def test_rubbish_inside_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    await filled(path)
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 4))
    assert (await refused(path)).code == "store_damaged"


async def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    path.write_text("a letter to a friend")
    assert (await refused(path)).code == "store_damaged"
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipe (name TEXT)")
    assert (await refused(path)).code == "store_foreign"


async def test_a_file_that_is_taken_away_costs_the_reader_and_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    async with await Store.open(path, SCHEMAS) as store:
        path.rename(tmp_path / "elsewhere.db")
        with pytest.raises(StoreError) as caught:
            await store.read(names)
        assert caught.value.code == "store_io_error"
        await store.write(add("a"))


async def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    path.touch()
    await filled(path, 1)
    assert check(path, SCHEMAS).ok


async def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(StartupError) as caught:
        await Store.open(tmp_path / "none" / "stretto.db", SCHEMAS)
    assert caught.value.code == "store_unusable"


async def test_a_full_store_refuses_what_does_not_fit_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "stretto.db"
    async with await Store.open(path, SCHEMAS) as store:
        await store.write(add("before"), durable=True)
        await store.write(lambda c: c.execute("PRAGMA max_page_count = 40").fetchone())
        outcomes: dict[str, str] = {}

        async def write(name: str, size: int) -> None:
            try:
                await store.write(add(name, data=bytes(size)))
                outcomes[name] = "kept"
            except StoreError as error:
                outcomes[name] = f"{error.status} {error.code}"

        # Together in one commit: the large one must not take the small ones with it.
        async with trio.open_nursery() as nursery:
            for name, size in (("small 1", 10), ("large", 1_000_000), ("small 2", 10)):
                nursery.start_soon(write, name, size)
        assert outcomes == {"small 1": "kept", "large": "507 store_full", "small 2": "kept"}
        assert sorted(await store.read(names)) == ["before", "small 1", "small 2"]
        assert store.stats()["last_fault"] == "store_full"
        await store.write(lambda c: c.execute("PRAGMA max_page_count = 100000").fetchone())
        await store.write(add("after", data=bytes(1_000_000)))
    assert check(path, SCHEMAS).ok


async def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk"):
        path = tmp_path / "disk" / "stretto.db"
        kept: list[str] = []

        async def fill() -> None:
            for number in range(1000):
                name = f"thing {number}"
                await store.write(add(name, data=bytes(5000)), durable=number % 2 == 0)
                kept.append(name)

        async with await Store.open(path, SCHEMAS) as store:
            with pytest.raises(StoreError) as caught:
                await fill()
            assert caught.value.code == "store_full"
            assert await store.read(names) == kept
        async with await Store.open(path, SCHEMAS) as again:
            assert await again.read(names) == kept
        assert check(path, SCHEMAS).ok


AS_NOBODY = """
import os, sys, trio
from pathlib import Path
from stretto.errors import StartupError
from stretto.store import Store
from support.small_disk import small_disk
from support.store_tables import SCHEMAS
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
try:
    trio.run(Store.open, Path(sys.argv[1]), SCHEMAS)
except StartupError as error:
    print(error.code)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_what_cannot_be_written_is_refused() -> None:
    # The super-user can write everything: ask as somebody else, in a place that anybody may look into.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        trio.run(filled, place / "stretto.db")
        place.chmod(0o755)
        (place / "stretto.db").chmod(0o644)
        before = contents(place)
        for file in ("stretto.db", "new.db"):
            done = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, str(place / file)],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            assert done.stdout == "store_unusable\n", done.stderr
        assert contents(place) == before
