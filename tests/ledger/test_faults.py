"""What can go wrong under the ledger: a full or read-only disk, a dead process, a clock that jumps back. Nothing is lost or paid twice."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

import stretto.ledger.accounts
import stretto.ledger.journal
import stretto.ledger.reservations
from stretto.errors import StartupError, StoreError
from stretto.ledger import Used
from stretto.store import Store
from support.ledger_books import ALICE, BOB, ask, open_books, require_balanced, reservations, usd

HOLD = usd("0.0002")
WHOLE = Used(100, 0, 50)


async def pragma(store: Store, text: str) -> None:
    await store.write(lambda connection: connection.execute(f"PRAGMA {text}").fetchone())


async def fill_up(store: Store) -> None:
    """From now on the file may not grow, and what is free in it is used up."""
    await store.write(lambda connection: connection.execute("CREATE TABLE filler (data BLOB)").fetchone())
    await pragma(store, "max_page_count = 1")  # SQLite takes the size there is

    async def add() -> None:
        await store.write(
            lambda connection: connection.execute("INSERT INTO filler VALUES (zeroblob(300))").fetchone()
        )

    await until_refused(add)


async def make_room(store: Store) -> None:
    await pragma(store, "max_page_count = 1000000")
    await store.write(lambda connection: connection.execute("DROP TABLE filler").fetchone())


async def until_refused(call: Callable[[], Awaitable[object]]) -> StoreError:
    """Call until the disk is full: room in pages that are there already is used first."""
    for _ in range(500):
        try:
            await call()
        except StoreError as error:
            return error
    raise AssertionError("never refused")


@pytest.mark.parametrize("way", ["full", "readonly"])
async def test_a_disk_that_cannot_be_written_refuses_and_loses_nothing(tmp_path: Path, way: str) -> None:
    async with open_books(tmp_path) as (ledger, store):
        alice, bob = ledger.authenticate(ALICE.encode()), ledger.authenticate(BOB.encode())
        finished, cancelled, failed = [
            await ledger.reserve(alice, ask(request=name)) for name in ("finished", "cancelled", "failed")
        ]
        if way == "full":
            await fill_up(store)
        else:
            await pragma(store, "query_only = ON")
        code, status = {"full": ("store_full", 507), "readonly": ("store_readonly", 500)}[way]

        tries = itertools.count()
        error = await until_refused(
            lambda: ledger.give("topup", bob.name, 1, idempotency=f"try {next(tries)}", note="x" * 400)
        )
        assert (error.code, error.status) == (code, status)
        error = await until_refused(lambda: ledger.reserve(bob, ask()))
        assert error.code == code

        for close in (
            lambda: ledger.settle(finished, WHOLE, "finished"),
            lambda: ledger.settle(cancelled, WHOLE, "cancelled"),
            lambda: ledger.release(failed),
        ):
            with pytest.raises(StoreError):
                await close()
        assert ledger.stats()["closings_unwritten"] == 3
        assert ledger.authenticate(ALICE.encode()) == alice  # keys are known without the disk

        if way == "full":
            await make_room(store)
        else:
            store._writer._connection.execute("PRAGMA query_only = OFF")
        hold = await ledger.reserve(alice, ask(request="next"))
        assert ledger.stats()["closings_unwritten"] == 0
        await ledger.settle(hold, WHOLE, "finished")
        view = await ledger.view(alice.name)
        assert (view.held, view.spent) == (0, 2 * HOLD)  # the cancelled one and the next
        for name, expected in {
            "finished": ("released", "failed", None),  # its client was told of a failure
            "cancelled": ("settled", "cancelled", HOLD),
            "failed": ("released", "failed", None),
            "next": ("settled", "finished", HOLD),
        }.items():
            assert reservations(tmp_path / "stretto.db")[name] == expected


async def test_what_a_dead_process_left_open_is_released_at_the_next_start(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        alice = ledger.authenticate(ALICE.encode())
        await ledger.settle(await ledger.reserve(alice, ask(request="paid")), WHOLE, "finished")
        for number in range(3):
            await ledger.reserve(alice, ask(request=f"open {number}"))
        assert (await ledger.view(alice.name)).held == 3 * HOLD
    async with open_books(tmp_path) as (ledger, _):
        assert ledger.stats()["released_at_start"] == 3
        view = await ledger.view(alice.name)
        assert (view.available, view.held, view.spent) == (usd(1) - HOLD, 0, HOLD)
    found = reservations(tmp_path / "stretto.db")
    assert found["paid"] == ("settled", "finished", HOLD)
    assert {found[f"open {number}"] for number in range(3)} == {("released", "process_ended", None)}


async def test_a_settlement_that_is_cancelled_is_made_all_the_same(tmp_path: Path) -> None:
    async with open_books(tmp_path) as (ledger, _):
        alice = ledger.authenticate(ALICE.encode())
        hold = await ledger.reserve(alice, ask())
        with trio.CancelScope() as scope:
            scope.cancel()
            await ledger.settle(hold, WHOLE, "cancelled")
        assert (await ledger.view(alice.name)).spent == HOLD


async def test_a_clock_that_jumps_back_changes_no_order_and_no_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 2_000_000_000_000_000

    def backwards() -> int:
        nonlocal now
        now -= 3_600_000_000
        return now

    for module in (stretto.ledger.journal, stretto.ledger.accounts, stretto.ledger.reservations):
        monkeypatch.setattr(module, "now_us", backwards)
    async with open_books(tmp_path) as (ledger, _):
        alice = ledger.authenticate(ALICE.encode())
        for number in range(3):
            await ledger.settle(await ledger.reserve(alice, ask(request=str(number))), WHOLE, "finished")
        lines = list(await ledger.lines(alice.name, before=2**62, limit=9, holds=False))
        assert [line.request for line in lines] == ["2", "1", "0", None]
        assert [line.credit_after for line in lines] == [usd(1) - n * HOLD for n in (3, 2, 1, 0)]
        assert lines[0].at_us < lines[-1].at_us
    async with open_books(tmp_path) as (ledger, _):
        assert (await ledger.view(alice.name)).spent == 3 * HOLD


async def test_books_that_do_not_add_up_are_not_opened(tmp_path: Path) -> None:
    async with open_books(tmp_path):
        pass
    path = tmp_path / "stretto.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE ledger_account SET balance = balance + 1 WHERE kind = 'available' AND key = 1"
        )
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StartupError) as caught:
        async with open_books(tmp_path):
            pass
    assert caught.value.code == "ledger_unbalanced"
    assert path.read_bytes() == before
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(
            "UPDATE ledger_account SET balance = balance - 1 WHERE kind = 'available' AND key = 1"
        )
    connection.close()
    require_balanced(path)
