"""The credit ledger: keys, what they have, and what they paid. Everything that comes back is the daemon's JSON; amounts are decimal
strings of US dollars."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Protocol, TypeVar

from clientlib.credit_calls import (
    create_call,
    give_call,
    key_call,
    keys_call,
    ledger_call,
    page_data,
    revoke_call,
)
from clientlib.replies import JsonObject
from clientlib.session import Session
from clientlib.steps import Flow

if TYPE_CHECKING:
    from clientlib.credit_calls import Amount

T = TypeVar("T")


class _Run(Protocol):
    def __call__(self, flow: Flow[T], /) -> T: ...


class _RunAsync(Protocol):
    def __call__(self, flow: Flow[T], /) -> Awaitable[T]: ...


class Credits:
    """``client.admin.credits``: on the Unix socket, or over TCP with the admin token as ``api_key``. NotFound when the daemon bills nobody.

    A key is named by its ``id``, which begins with ``key_``; the key itself is shown once, by create().
    """

    def __init__(self, session: Session, run: _Run) -> None:
        self._session = session
        self._run = run

    def list(self) -> list[JsonObject]:
        """All keys, in the order in which they were made."""
        return self._run(_all_keys(self._session))

    def accounts(self) -> JsonObject:
        """The sums of all accounts by kind; together they are zero."""
        return self._run(_accounts(self._session))

    def show(self, key: str) -> JsonObject:
        """One key."""
        return self._run(self._session.fetch(key_call(key)))

    def create(
        self,
        *,
        label: str = "",
        plan: str | None = None,
        balance: Amount = "0",
        idempotency_key: str | None = None,
    ) -> JsonObject:
        """Make a key. The key itself is in ``key`` of this reply, and nowhere else; None when ``idempotency_key`` had made it before."""
        return self._run(self._session.fetch(create_call(label, plan, balance, idempotency_key)))

    def topup(
        self, key: str, amount: Amount, *, idempotency_key: str | None = None, note: str = ""
    ) -> JsonObject:
        """Give a key more, once for each ``idempotency_key``: name one if you may call this again for the same payment."""
        return self._run(self._session.fetch(give_call("topup", key, amount, idempotency_key, note)))

    def adjust(
        self, key: str, amount: Amount, *, idempotency_key: str | None = None, note: str = ""
    ) -> JsonObject:
        """Correct what a key has, up or down, never below zero. Otherwise as topup()."""
        return self._run(self._session.fetch(give_call("adjust", key, amount, idempotency_key, note)))

    def revoke(self, key: str) -> JsonObject:
        """Refuse a key from now on; what it has stays in the books."""
        return self._run(self._session.fetch(revoke_call(key)))

    def ledger(
        self, key: str, *, limit: int = 100, before: int | None = None, holds: bool = False
    ) -> JsonObject:
        """A page of a key's entries, the newest first: ``data``, and ``next_before`` for the next page. ``holds`` adds what was held for
        running requests and released."""
        return self._run(self._session.fetch(ledger_call(key, limit, before, holds)))


class AsyncCredits:
    """As Credits, awaited."""

    def __init__(self, session: Session, run: _RunAsync) -> None:
        self._session = session
        self._run = run

    async def list(self) -> list[JsonObject]:
        """All keys, in the order in which they were made."""
        return await self._run(_all_keys(self._session))

    async def accounts(self) -> JsonObject:
        """The sums of all accounts by kind; together they are zero."""
        return await self._run(_accounts(self._session))

    async def show(self, key: str) -> JsonObject:
        """One key."""
        return await self._run(self._session.fetch(key_call(key)))

    async def create(
        self,
        *,
        label: str = "",
        plan: str | None = None,
        balance: Amount = "0",
        idempotency_key: str | None = None,
    ) -> JsonObject:
        """Make a key; see Credits.create()."""
        return await self._run(self._session.fetch(create_call(label, plan, balance, idempotency_key)))

    async def topup(
        self, key: str, amount: Amount, *, idempotency_key: str | None = None, note: str = ""
    ) -> JsonObject:
        """Give a key more; see Credits.topup()."""
        return await self._run(self._session.fetch(give_call("topup", key, amount, idempotency_key, note)))

    async def adjust(
        self, key: str, amount: Amount, *, idempotency_key: str | None = None, note: str = ""
    ) -> JsonObject:
        """Correct what a key has; see Credits.adjust()."""
        return await self._run(self._session.fetch(give_call("adjust", key, amount, idempotency_key, note)))

    async def revoke(self, key: str) -> JsonObject:
        """Refuse a key from now on; what it has stays in the books."""
        return await self._run(self._session.fetch(revoke_call(key)))

    async def ledger(
        self, key: str, *, limit: int = 100, before: int | None = None, holds: bool = False
    ) -> JsonObject:
        """A page of a key's entries; see Credits.ledger()."""
        return await self._run(self._session.fetch(ledger_call(key, limit, before, holds)))


def _all_keys(session: Session) -> Flow[list[JsonObject]]:
    found: list[JsonObject] = []
    after: int | None = None
    while True:
        page = yield from session.fetch(keys_call(after))
        found += page_data(page)
        after = page.get("next_after")
        if not isinstance(after, int):
            return found


def _accounts(session: Session) -> Flow[JsonObject]:
    page = yield from session.fetch(keys_call(None))
    accounts: JsonObject = page.get("accounts", {})
    return accounts
