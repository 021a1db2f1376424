"""The books as a state machine: whatever is done in whatever order, they agree with a plain sum, and the journal cannot be changed."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stretto.errors import AuthenticationError, InsufficientCredits, InvalidRequest
from stretto.ledger import Used, accounts, reservations
from stretto.ledger.accounts import NewKey
from stretto.ledger.checks import CHECKS
from stretto.ledger.journal import ADJUSTMENTS, FUNDS, accounts_of, post, replay
from stretto.ledger.keys import digest_of
from stretto.ledger.prices import Prices
from stretto.ledger.reservations import Ask
from support.ledger_books import ask, empty_books, usd

PRICE = st.integers(0, 1000)
AMOUNT = st.integers(1, 200_000)
REQUESTS = st.tuples(
    PRICE, PRICE, PRICE, PRICE, st.integers(1, 50), st.integers(0, 50), st.booleans(), st.integers(1, 3)
)


def new_key(connection: sqlite3.Connection, number: int = 1, balance: int = 0) -> str:
    digest = digest_of(f"key {number}".encode())
    view, before = accounts.create(connection, NewKey(digest, "", f"number {number}", None, "admin", balance))
    assert not before
    return view.name


@dataclass
class Expected:
    """What a key should have."""

    id: int
    available: int = 0
    spent: int = 0
    revoked: bool = False
    open: dict[int, tuple[int, Prices, int, int]] = field(default_factory=dict)


class Books(RuleBasedStateMachine):
    """Against Expected, which only adds."""

    @initialize()
    def begin(self) -> None:
        self.connection = empty_books()
        self.keys: dict[str, Expected] = {}
        self.given = 0
        self.count = 0
        for number in range(2):
            name = new_key(self.connection, number)
            self.keys[name] = Expected(accounts.view(self.connection, name).id)

    def teardown(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()

    def pick(self, choice: int) -> tuple[str, Expected]:
        return list(self.keys.items())[choice % len(self.keys)]

    @rule(choice=st.integers(0, 1), amount=AMOUNT, again=st.booleans())
    def topup(self, choice: int, amount: int, again: bool) -> None:
        name, expected = self.pick(choice)
        self.count += 1
        give = partial(
            accounts.give, self.connection, "topup", name, amount, idempotency=f"t{self.count}", note=""
        )
        if expected.revoked:
            with pytest.raises(InvalidRequest):
                give()
            return
        first = give()
        expected.available += amount
        assert not first.replayed
        if again:
            second = give()
            assert (second.entry, second.replayed) == (first.entry, True)

    @rule(choice=st.integers(0, 1), amount=st.integers(-200_000, 200_000).filter(bool))
    def adjust(self, choice: int, amount: int) -> None:
        name, expected = self.pick(choice)
        self.count += 1
        give = partial(
            accounts.give, self.connection, "adjust", name, amount, idempotency=f"a{self.count}", note=""
        )
        if expected.available + amount < 0:
            with pytest.raises(InvalidRequest) as caught:
                give()
            assert caught.value.code == "insufficient_balance"
        else:
            give()
            expected.available += amount

    @rule(choice=st.integers(0, 1), request=REQUESTS)
    def reserve(self, choice: int, request: tuple[int, int, int, int, int, int, bool, int]) -> None:
        _, expected = self.pick(choice)
        prompt, cached, completion, fee, prompt_tokens, max_tokens, named, answers = request
        prices = Prices(prompt, min(prompt, cached), completion, fee)
        wish = Ask("r", "m", prices, prompt_tokens, (max_tokens,), answers, named)
        most = fee + prompt * prompt_tokens + completion * answers * max_tokens
        try:
            hold = reservations.reserve(self.connection, expected.id, wish)
        except InsufficientCredits:
            assert most > expected.available
            return
        except AuthenticationError:
            assert expected.revoked
            return
        assert not expected.revoked
        if named:
            assert hold.limits == (max_tokens,)
        assert hold.amount == fee + prompt * prompt_tokens + completion * answers * hold.limits[0]
        expected.available -= hold.amount
        assert hold.available == expected.available
        expected.open[hold.id] = hold.amount, prices, prompt_tokens, answers * hold.limits[0]

    @rule(
        choice=st.integers(0, 1),
        read=st.integers(0, 50),
        cached=st.integers(0, 50),
        made=st.integers(0, 150),
        again=st.booleans(),
    )
    def settle(self, choice: int, read: int, cached: int, made: int, again: bool) -> None:
        _, expected = self.pick(choice)
        if not expected.open:
            return
        number, (amount, prices, prompt_tokens, answer) = expected.open.popitem()
        read = min(read, prompt_tokens)
        used = Used(read, min(cached, read), min(made, answer) if read else 0)
        closing = reservations.settle(self.connection, number, used, "finished")
        due = 0
        if used.prompt_tokens:
            due = (
                prices.request
                + prices.prompt * (read - used.cached_tokens)
                + prices.cached * used.cached_tokens
            )
            due += prices.completion * used.completion_tokens
        assert closing.cost == due <= amount
        expected.available += amount - due
        expected.spent += due
        if again:
            later = reservations.settle(self.connection, number, Used(50, 0, 50), "finished")
            assert (later.cost, later.available) == (due, expected.available)
            assert reservations.release(self.connection, number, "failed").cost == due

    @rule(choice=st.integers(0, 1), again=st.booleans())
    def release(self, choice: int, again: bool) -> None:
        _, expected = self.pick(choice)
        if not expected.open:
            return
        number, (amount, *_) = expected.open.popitem()
        expected.available += amount
        assert reservations.release(self.connection, number, "failed").available == expected.available
        if again:
            assert reservations.settle(self.connection, number, Used(1, 0, 1), "finished").cost == 0

    @rule(choice=st.integers(0, 1))
    def revoke(self, choice: int) -> None:
        name, expected = self.pick(choice)
        expected.revoked = True
        assert accounts.revoke(self.connection, name).revoked_us is not None

    @rule()
    def restart(self) -> None:
        open_before = sum(len(expected.open) for expected in self.keys.values())
        assert reservations.resolve(self.connection) == open_before
        for expected in self.keys.values():
            expected.available += sum(amount for amount, *_ in expected.open.values())
            expected.open.clear()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "keys"):
            return
        for name, expected in self.keys.items():
            view = accounts.view(self.connection, name)
            held = sum(amount for amount, *_ in expected.open.values())
            assert (view.available, view.held, view.spent) == (expected.available, held, expected.spent)
            assert view.available >= 0
        assert sum(accounts.house(self.connection).values()) == 0
        for check in CHECKS:
            assert check.find(self.connection) == []


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.fixture
def books() -> sqlite3.Connection:
    return empty_books()


def test_an_entry_that_does_not_sum_to_zero_is_never_written(books: sqlite3.Connection) -> None:
    name = new_key(books)
    own = accounts_of(books, accounts.view(books, name).id)
    with pytest.raises(ValueError, match="not to zero"):
        post(books, "topup", 1, {FUNDS: -5, own.available_id: 6})
    assert replay(books) == {}


@pytest.mark.parametrize("table", ["ledger_entry", "ledger_posting"])
def test_the_journal_only_grows(books: sqlite3.Connection, table: str) -> None:
    new_key(books, balance=5)
    for statement in (
        f"DELETE FROM {table}",
        f"UPDATE {table} SET {'note' if table == 'ledger_entry' else 'amount'} = 7",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="only grows"):
            books.execute(statement)


def test_no_account_of_a_key_falls_below_zero_even_by_a_mistake(books: sqlite3.Connection) -> None:
    new_key(books, balance=5)
    own = accounts_of(books, 1)
    with pytest.raises(sqlite3.IntegrityError):
        post(books, "adjust", 1, {ADJUSTMENTS: 6, own.available_id: -6})


def test_a_reservation_is_not_closed_twice_even_by_a_mistake(books: sqlite3.Connection) -> None:
    new_key(books, balance=usd(1))
    hold = reservations.reserve(books, 1, ask())
    reservations.settle(books, hold.id, Used(1, 0, 1), "finished")
    books.execute(
        "UPDATE ledger_reservation SET state = 'held', reason = NULL, cost = NULL WHERE id = ?", (hold.id,)
    )
    books.execute("BEGIN")
    with pytest.raises(sqlite3.IntegrityError):
        reservations.release(books, hold.id, "failed")
    books.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("tampering", "told"),
    [
        (
            "UPDATE ledger_account SET balance = balance + 1 WHERE kind = 'available'",
            "all accounts sum to 0.000000000001",
        ),
        ("UPDATE ledger_account SET balance = balance - 1 WHERE kind = 'held'", "its reservations hold"),
        ("UPDATE ledger_reservation SET cost = cost - 1 WHERE state = 'settled'", "by its tokens and prices"),
        (
            "UPDATE ledger_reservation SET completion_tokens = 9 WHERE state = 'settled'",
            "by its tokens and prices",
        ),
        (
            "UPDATE ledger_reservation SET state = 'released', reason = 'failed' WHERE state = 'held'",
            "the journal has nothing for it",
        ),
        (
            "DROP TRIGGER ledger_posting_no_delete; DELETE FROM ledger_posting WHERE entry = 1 AND account = 1",
            "sum to 0.000001 and not to zero",
        ),
        (
            "DROP TRIGGER ledger_posting_no_delete; DELETE FROM ledger_posting WHERE entry = 1",
            "by the journal",
        ),
        (
            "DROP TRIGGER ledger_entry_no_update; UPDATE ledger_entry SET credit_after = 1",
            "leaves 0.000000000001",
        ),
    ],
)
def test_a_change_by_another_hand_is_found(books: sqlite3.Connection, tampering: str, told: str) -> None:
    new_key(books, balance=10**6)
    prices = Prices(1, 1, 1, 0)
    first = reservations.reserve(books, 1, Ask("a", "m", prices, 100, (100,), 1, named=True))
    reservations.settle(books, first.id, Used(100, 0, 50), "finished")
    reservations.reserve(books, 1, Ask("b", "m", prices, 100, (100,), 1, named=True))
    assert [problem for check in CHECKS for problem in check.find(books)] == []
    books.executescript(tampering)
    problems = [problem for check in CHECKS for problem in check.find(books)]
    assert any(told in problem for problem in problems), problems
