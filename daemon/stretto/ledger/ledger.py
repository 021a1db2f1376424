"""The ledger as the event loop sees it: who has which key, what it may spend, and what it has spent."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self, TypeVar

import trio

from stretto.errors import AuthenticationError, InsufficientCredits, InvalidRequest, StartupError, StoreError
from stretto.ledger import accounts, reservations
from stretto.ledger.accounts import Given, GivenKind, KeyView, Line, NewKey
from stretto.ledger.checks import trial_balance
from stretto.ledger.keys import Key, KeyRing, digest_of, hint_of, name_of, new_key
from stretto.ledger.prices import Used
from stretto.ledger.provider import GivenKey, Offer, Provider
from stretto.ledger.reservations import Ask, Closing, Hold, ReleaseReason, SettleReason
from stretto.store import Store

T = TypeVar("T")
_Close = Callable[[sqlite3.Connection], Closing]


@dataclass(frozen=True, slots=True)
class CreatedKey:
    """A key that an administrator made. ``secret`` is the key itself, told this once; None when it had been made before."""

    view: KeyView
    secret: str | None


class Ledger:
    """Prepaid credits, on the store. One for the daemon's life; everything here is called on the event loop.

    A request is paid in two steps: ``reserve`` before it runs, then ``settle`` or ``release``. What moves money out or in is on the medium
    when the call returns; a reservation need not be, since one that is lost is one that would be released.

    What cannot be written down when a reservation ends is remembered, and written before the next one is made; if the process dies before
    that, the reservation is released at the next start. So nobody ever pays for what is not in the books.
    """

    def __init__(self, store: Store, provider: Provider, offer: Offer, keys: KeyRing, resolved: int) -> None:
        self.offer = offer
        self._store = store
        self._provider = provider
        self._keys = keys
        self._resolved = resolved
        self._unwritten: dict[int, _Close] = {}
        self._open: set[int] = set()
        self._refused = 0

    @classmethod
    async def open(cls, store: Store, provider: Provider, offer: Offer) -> Self:
        """Bring the books up to date: keys of the file that are new to them get their balance, and what a dead process left
        open is released.

        Raises:
            StartupError: ``ledger_unbalanced``, or a key has a plan that the file has no prices for (``plan_unknown``).
            StoreError: the storage is at fault.
        """
        keys, resolved = await store.write(partial(_begin, given=provider.keys), durable=True)
        lost = sorted(
            {key.plan for key in keys if key.plan and not key.revoked and key.plan not in offer.plans}
        )
        if lost:
            raise StartupError(
                f"Keys in the ledger have the plan '{lost[0]}', and {provider.path} has no prices of it for '{offer.id}'.",
                code="plan_unknown",
                remedy=f"Add models.{offer.id}.plans.{lost[0]}, or revoke the keys.",
            )
        return cls(store, provider, offer, KeyRing(keys), resolved)

    # Who asks ------------------------------------------------------------------------------------------------------

    def authenticate(self, given: bytes) -> Key:
        """The key that this text is.

        Raises:
            AuthenticationError: it is none, or one that was revoked.
        """
        key = self._keys.find(given)
        if key is None:
            raise AuthenticationError(
                "Incorrect API key provided." if given else "No API key was provided.",
                remedy="Send your key in the header 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            )
        if key.revoked:
            raise reservations.revoked_error()
        return key

    def is_admin(self, token: bytes) -> bool:
        """Whether this is the admin token; takes the same time wherever they differ."""
        return self._provider.is_admin(token)

    def key_named(self, name: str) -> Key | None:
        """The key of a tenant."""
        return self._keys.named(name)

    def find_offer(self, names: Sequence[str]) -> Offer | None:
        """The offer for another model than the one that answers, if the file has one."""
        return self._provider.find_offer(names)

    # Requests ------------------------------------------------------------------------------------------------------

    async def reserve(self, key: Key, ask: Ask) -> Hold:
        """Hold the most that a request can cost.

        Raises:
            InsufficientCredits: the key cannot pay it.
            AuthenticationError: the key has been revoked.
            StoreError: the storage is at fault; nothing is held.
        """
        hold = await self._paying(partial(reservations.reserve, key=key.id, ask=ask), durable=False)
        self._open.add(hold.id)
        return hold

    async def settle(self, hold: Hold, used: Used, reason: SettleReason) -> Closing:
        """Pay what was used and give back the rest; even when cancelled. Idempotent.

        Raises:
            StoreError: it could not be written. A finished answer is then released as soon as that can be, since its client is
                told of a failure; of a cancelled one, whose client has gone, what was made is paid then.
        """
        close = partial(reservations.settle, reservation=hold.id, used=used, reason=reason)
        instead = partial(reservations.release, reservation=hold.id, reason="failed")
        return await self._close(hold, close, instead if reason == "finished" else close, durable=True)

    async def release(self, hold: Hold, reason: ReleaseReason = "failed") -> Closing:
        """Give everything back; even when cancelled. Idempotent.

        Raises:
            StoreError: it could not be written, and will be as soon as it can.
        """
        close = partial(reservations.release, reservation=hold.id, reason=reason)
        return await self._close(hold, close, close, durable=False)

    async def charge(self, key: Key, offer: Offer, request: str, used: Used) -> Closing:
        """Pay for an answer that is there already.

        Raises:
            InsufficientCredits, AuthenticationError, StoreError: as ``reserve``; nothing is paid.
        """
        pay = partial(
            reservations.charge,
            key=key.id,
            request=request,
            model=offer.id,
            prices=offer.prices_of(key.plan),
            used=used,
        )
        return await self._paying(pay, durable=True)

    async def _paying(self, fn: Callable[[sqlite3.Connection], T], *, durable: bool) -> T:
        if self._unwritten:
            await self._catch_up()
        try:
            return await self._store.write(fn, durable)
        except InsufficientCredits:
            self._refused += 1
            raise

    async def _close(self, hold: Hold, close: _Close, instead: _Close, *, durable: bool) -> Closing:
        with trio.CancelScope(shield=True):
            try:
                closing = await self._store.write(close, durable)
            except StoreError:
                self._unwritten[hold.id] = instead
                raise
        self._open.discard(hold.id)
        return closing

    async def _catch_up(self) -> None:
        """Write down what could not be written."""
        late = dict(self._unwritten)

        def close_all(connection: sqlite3.Connection) -> None:
            for close in late.values():
                close(connection)

        await self._store.write(close_all, durable=True)
        for number in late:
            self._unwritten.pop(number, None)
            self._open.discard(number)

    # Administration ------------------------------------------------------------------------------------------------

    async def create(
        self, *, label: str, plan: str | None, balance: int, idempotency: str | None
    ) -> CreatedKey:
        """Make a key.

        Raises:
            InvalidRequest: ``plan_unknown``, ``amount_too_large``, or ``idempotency_conflict`` (409).
            StoreError: the storage is at fault; there is no such key.
        """
        if plan is not None and plan not in self.offer.plans:
            raise InvalidRequest(
                f"There are no prices of the plan '{plan}' for '{self.offer.id}'.",
                code="plan_unknown",
                param="plan",
                remedy="The plans are in the provider file.",
            )
        secret = new_key()
        digest = digest_of(secret.encode())
        new = NewKey(digest, hint_of(secret), label, plan, "admin", balance, idempotency)
        view, before = await self._store.write(partial(accounts.create, new=new), durable=True)
        if before:
            return CreatedKey(view, None)
        self._keys.put(Key(view.id, view.name, digest, view.label, view.plan, revoked=False))
        return CreatedKey(view, secret)

    async def give(self, kind: GivenKind, name: str, amount: int, *, idempotency: str, note: str) -> Given:
        """Top a key up, or adjust what it has; see ``accounts.give``."""
        give = partial(accounts.give, kind=kind, name=name, amount=amount, idempotency=idempotency, note=note)
        return await self._store.write(give, durable=True)

    async def revoke(self, name: str) -> KeyView:
        """Refuse a key from now on; see ``accounts.revoke``."""
        view = await self._store.write(partial(accounts.revoke, name=name), durable=True)
        key = self._keys.named(name)
        assert key is not None
        self._keys.put(Key(key.id, key.name, key.digest, key.label, key.plan, revoked=True))
        return view

    async def view(self, name: str) -> KeyView:
        """One key. Raises NotFound."""
        return await self._store.read(partial(accounts.view, name=name))

    async def views(self, *, after: int = 0, limit: int) -> Sequence[KeyView]:
        """Keys in the order in which they were made, from the one after row ``after`` on."""
        return await self._store.read(partial(accounts.views, after=after, limit=limit))

    async def lines(self, name: str, *, before: int, limit: int, holds: bool) -> Sequence[Line]:
        """A key's entries, the newest first; see ``accounts.lines``."""
        return await self._store.read(
            partial(accounts.lines, name=name, before=before, limit=limit, holds=holds)
        )

    async def house(self) -> dict[str, int]:
        """Sums of all accounts by kind, in picodollars; together they are zero."""
        return await self._store.read(accounts.house)

    def stats(self) -> dict[str, object]:
        """Counts since the start; plain JSON values."""
        return {
            "model": self.offer.id,
            "keys": len(self._keys),
            "reservations_open": len(self._open),
            "closings_unwritten": len(self._unwritten),
            "refused_total": self._refused,
            "released_at_start": self._resolved,
        }


def _begin(connection: sqlite3.Connection, given: Sequence[GivenKey]) -> tuple[list[Key], int]:
    problems = trial_balance(connection)
    if problems:
        raise StartupError(
            f"The credit ledger does not add up: {problems[0]}.",
            code="ledger_unbalanced",
            remedy="`stretto db check` has the details. Put a backup in the store's place.",
        )
    known = {key.digest for key in accounts.all_keys(connection)}
    for key in given:
        if key.digest in known:
            accounts.describe(connection, name_of(key.digest), key.label, key.plan)
        else:
            accounts.create(
                connection, NewKey(key.digest, key.hint, key.label, key.plan, "file", key.balance)
            )
    resolved = reservations.resolve(connection)
    return accounts.all_keys(connection), resolved
