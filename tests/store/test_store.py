"""Writing, reading, cancelling and closing."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from stretto.errors import StartupError, StoreError
from stretto.store import Store
from support.store_tables import SCHEMAS, add, names


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with await Store.open(tmp_path / "stretto.db", SCHEMAS) as opened:
        yield opened


class Gate:
    """A closure that holds the writer's thread until it is opened."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.opened = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> str:
        self.begun.set()
        assert self.opened.wait(90)
        return "through"


async def test_what_was_written_is_read(store: Store) -> None:
    assert await store.write(add("a")) == 1
    assert await store.write(add("b"), durable=True) == 2
    assert await store.read(names) == ["a", "b"]
    stats = store.stats()
    assert (stats["writes_total"], stats["commits_total"], stats["durable_commits_total"]) == (2, 2, 1)


async def test_it_is_there_after_opening_again(tmp_path: Path) -> None:
    async with await Store.open(tmp_path / "stretto.db", SCHEMAS) as first:
        await first.write(add("a"))
    async with await Store.open(tmp_path / "stretto.db", SCHEMAS) as second:
        assert await second.read(names) == ["a"]
    assert os.listdir(tmp_path) == ["stretto.db"]
    assert (tmp_path / "stretto.db").stat().st_mode & 0o777 == 0o600


async def test_a_closure_that_raises_undoes_its_own_work_alone(store: Store) -> None:
    gate = Gate()
    failures: list[str] = []

    def half(connection: sqlite3.Connection) -> None:
        add("half")(connection)
        raise LookupError("no more")

    async def expect(fn: object, error: type[Exception]) -> None:
        with pytest.raises(error) as caught:
            await store.write(fn)  # type: ignore[arg-type]
        failures.append(str(caught.value))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.write, gate)
        await trio.to_thread.run_sync(gate.begun.wait)
        nursery.start_soon(store.write, add("a"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(expect, half, LookupError)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(expect, add("a"), sqlite3.IntegrityError)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(store.write, add("b"))
        await trio.testing.wait_all_tasks_blocked()
        assert store.stats()["waiting"] == 4
        gate.opened.set()
    assert await store.read(names) == ["a", "b"]
    assert sorted(failures) == ["UNIQUE constraint failed: thing.name", "no more"]
    assert store.stats()["commits_total"] == 2  # the gate's, and one for the four that waited
    assert store.stats()["largest_batch"] == 4


async def test_writes_keep_the_order_of_their_calls(store: Store) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(300):
            nursery.start_soon(store.write, add(str(number)))
            await trio.lowlevel.checkpoint()
    rows = await store.read(names)
    assert sorted(rows, key=int) == [str(number) for number in range(300)]
    assert await store.read(lambda c: c.execute("SELECT count(*) FROM thing").fetchone()) == (300,)


async def test_a_cancelled_write_that_waits_is_never_done(store: Store) -> None:
    gate = Gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.write, gate)
        await trio.to_thread.run_sync(gate.begun.wait)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as doomed:
                doomed.start_soon(store.write, add("never"))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        assert scope.cancelled_caught
        gate.opened.set()
    assert await store.read(names) == []


async def test_a_cancelled_write_that_was_begun_is_done_and_says_so(store: Store) -> None:
    gate = Gate()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            results: list[str] = []

            async def write() -> None:
                results.append(await store.write(gate))

            nursery.start_soon(write)
            await trio.to_thread.run_sync(gate.begun.wait)
            scope.cancel()
            gate.opened.set()
    assert results == ["through"]


async def test_readers_cannot_write_and_see_one_state(store: Store) -> None:
    await store.write(add("a"))
    with pytest.raises(StoreError) as caught:
        await store.read(add("b"))
    assert caught.value.code == "store_readonly"
    between = threading.Event()
    begun = threading.Event()

    def twice(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
        first = names(connection)
        begun.set()
        assert between.wait(90)
        return first, names(connection)

    async with trio.open_nursery() as nursery:

        async def reader() -> None:
            assert await store.read(twice) == (["a"], ["a"])

        nursery.start_soon(reader)
        await trio.to_thread.run_sync(begun.wait)
        await store.write(add("c"))
        between.set()
    assert await store.read(names) == ["a", "c"]


async def test_a_statement_of_its_own_fault_comes_as_it_is(store: Store) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await store.read(lambda c: c.execute("SELECT * FROM missing").fetchall())
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
        await store.write(lambda c: c.execute("INSERT INTO part (thing) VALUES (7)").rowcount)
    with pytest.raises(sqlite3.IntegrityError, match="cannot store TEXT"):
        await store.write(
            lambda c: c.execute("INSERT INTO thing (name, amount) VALUES ('a', 'many')").rowcount
        )


async def test_a_closure_that_ends_the_transaction_is_told_and_the_writer_lives(store: Store) -> None:
    with pytest.raises(RuntimeError, match="ended the transaction"):
        await store.write(lambda c: c.execute("ROLLBACK").rowcount)
    await store.write(add("a"))
    assert await store.read(names) == ["a"]


async def test_closing_does_what_is_queued_and_refuses_the_rest(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "stretto.db", SCHEMAS)
    gate = Gate()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.write, gate)
        await trio.to_thread.run_sync(gate.begun.wait)
        nursery.start_soon(store.write, add("last"))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(store.aclose)
        await trio.testing.wait_all_tasks_blocked()
        gate.opened.set()
    await store.aclose()
    for late in (store.write(add("late")), store.read(names)):
        with pytest.raises(StoreError) as caught:
            await late
        assert (caught.value.code, caught.value.status) == ("store_closed", 503)
    async with await Store.open(tmp_path / "stretto.db", SCHEMAS) as again:
        assert await again.read(names) == ["last"]


async def test_a_backup_holds_what_was_there_and_replaces_nothing(store: Store, tmp_path: Path) -> None:
    await store.write(add("a", data=b"\x00\xff"))
    target = tmp_path / "copies" / "monday.db"
    target.parent.mkdir()
    report = await store.backup(target)
    await store.write(add("b"))
    assert report.size_bytes == target.stat().st_size
    assert os.listdir(target.parent) == ["monday.db"]
    connection = sqlite3.connect(target)
    assert names(connection) == ["a"]
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    with pytest.raises(StartupError, match="it is there already"):
        await store.backup(target)
    async with await Store.open(target, SCHEMAS) as restored:
        assert await restored.read(names) == ["a"]
