"""Billing a request: its most is held before it runs, and what it used is paid before its client learns of its end.

A client pays for a finished answer, for one that is replayed, and, when an answer is cancelled by anyone, for what was made of it: the prompt
as far as it was read, and every token. An answer that ends in an error of ours is free. Requests without a tenant are not billed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from stretto.conversation.events import Usage
from stretto.conversation.messages import Request
from stretto.errors import AuthenticationError, NotFound, RequestCancelled, StoreError, StrettoError
from stretto.ledger import Ask, Closing, Hold, Key, Ledger, Offer, Used, format_usd

CREDITS_REMAINING = b"x-stretto-credits-remaining"
"""What the key can spend now, in US dollars; in the head of a stream, beside what this request holds."""

MAX_TOKENS = b"x-stretto-max-tokens"
"""The limit of each answer, where the key cannot pay for as many tokens as there is room for."""

Headers = list[tuple[bytes, bytes]]


class Billing:
    """Makes a bill for every request.

    Args:
        ledger: who keeps the books, or None: then everything is free.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger

    @asynccontextmanager
    async def bill(self, request: Request) -> AsyncIterator[Bill]:
        """A request's bill, for the length of the block. What is still held at its end is paid or released; see ``Bill.leave``.

        Raises:
            AuthenticationError: there is no key of the request's tenant.
        """
        if self._ledger is None or not request.caller.tenant:
            yield Bill()
            return
        key = self._key(request.caller.tenant)
        named = request.max_tokens is not None and not request.lower_max_tokens
        bill = PaidBill(self._ledger, key, self._ledger.offer, request.id, request.drawn, named=named)
        try:
            yield bill
        finally:
            await bill.close()

    @asynccontextmanager
    async def other_bill(self, tenant: str, request_id: str, names: Sequence[str]) -> AsyncIterator[Bill]:
        """The same for another model than the one that answers, by its names; it reads and writes nothing.

        Raises:
            AuthenticationError: there is no key of that tenant.
            NotFound: ``model_not_found``: the provider file does not offer it.
        """
        if self._ledger is None or not tenant:
            yield Bill()
            return
        offer = self._ledger.find_offer(names)
        if offer is None:
            raise NotFound(
                f"The model '{names[0]}' is not offered to holders of keys here.",
                code="model_not_found",
                param="model",
            )
        bill = PaidBill(self._ledger, self._key(tenant), offer, request_id, 1, named=True)
        try:
            yield bill
        finally:
            await bill.close()

    def _key(self, tenant: str) -> Key:
        assert self._ledger is not None
        key = self._ledger.key_named(tenant)
        if key is None:
            raise AuthenticationError(f"The ledger has no key '{tenant}'.")
        return key


class Bill:
    """What a request is to pay. This one is nothing."""

    async def reserve(self, prompt_tokens: int, limits: Sequence[int]) -> Sequence[int]:
        """Hold the most that the request can cost, before it runs.

        Args:
            prompt_tokens: of all its prompts.
            limits: most tokens of an answer to each of them.

        Returns:
            The limits: as given, or lower when the client named none and its key cannot pay for so many tokens.

        Raises:
            InsufficientCredits: the key cannot pay it.
            AuthenticationError: the key has been revoked.
            StoreError: the books cannot be written.
        """
        return limits

    async def settle(self, usage: Usage) -> Usage:
        """Pay for the finished answer; to be awaited before its client is told of its end.

        Returns:
            The usage, with its cost.

        Raises:
            StoreError: the books cannot be written. The answer must not end well then, and costs nothing.
        """
        return usage

    async def charge(self, usage: Usage) -> Usage:
        """Pay for an answer that is replayed, like for the one it replays. In place of ``reserve`` and ``settle``.

        Raises:
            InsufficientCredits, AuthenticationError, StoreError: see ``reserve``; nothing is paid.
        """
        return usage

    def leave(self, made: Usage, failure: StrettoError | None) -> None:
        """The answer goes no further. If it was not paid for, ``made`` will be, unless it failed by a fault of ours."""

    def tell(self, headers: Headers) -> None:
        """Let the reply's head say what is left, now and as that changes, and whether the answer's limit was lowered."""


class PaidBill(Bill):
    """A bill of a key.

    Args:
        ledger: who keeps the books.
        key: who pays.
        offer: for which model.
        request_id: names the request in the books.
        answers: how many are drawn for each prompt.
        named: whether the client named ``max_tokens``.

    new ──reserve──► held ──settle──► closed
     └──────charge─────┴──close──────►
    """

    def __init__(
        self, ledger: Ledger, key: Key, offer: Offer, request_id: str, answers: int, *, named: bool
    ) -> None:
        self._ledger = ledger
        self._key = key
        self._offer = offer
        self._request_id = request_id
        self._answers = answers
        self._named = named
        self._hold: Hold | None = None
        self._made: Used | None = None
        self._shown: dict[bytes, bytes] = {}
        self._headers: Headers | None = None

    async def reserve(self, prompt_tokens: int, limits: Sequence[int]) -> Sequence[int]:
        ask = Ask(
            request=self._request_id,
            model=self._offer.id,
            prices=self._offer.prices_of(self._key.plan),
            prompt_tokens=prompt_tokens,
            limits=tuple(limits),
            answers=self._answers,
            named=self._named,
        )
        self._hold = await self._ledger.reserve(self._key, ask)
        self._show(CREDITS_REMAINING, format_usd(self._hold.available))
        if self._hold.limits != tuple(limits):
            self._show(MAX_TOKENS, str(max(self._hold.limits)))
        return self._hold.limits

    async def settle(self, usage: Usage) -> Usage:
        hold, self._hold = self._hold, None  # if it cannot be written, the ledger sees to it
        if hold is None:
            raise RuntimeError("a bill is settled once, after it was reserved")
        return self._paid(usage, await self._ledger.settle(hold, _used(usage), "finished"))

    async def charge(self, usage: Usage) -> Usage:
        closing = await self._ledger.charge(self._key, self._offer, self._request_id, _used(usage))
        return self._paid(usage, closing)

    def leave(self, made: Usage, failure: StrettoError | None) -> None:
        failed = failure is not None and not isinstance(failure, RequestCancelled)
        self._made = None if failed else _used(made)

    def tell(self, headers: Headers) -> None:
        self._headers = headers
        for name, value in self._shown.items():
            self._show(name, value.decode())

    async def close(self) -> None:
        """Pay for what was made, or give everything back. What cannot be written now, the ledger writes later."""
        hold, self._hold = self._hold, None
        if hold is None:
            return
        with suppress(StoreError):
            if self._made is None or self._made.nothing:
                await self._ledger.release(hold)
            else:
                await self._ledger.settle(hold, self._made, "cancelled")

    def _paid(self, usage: Usage, closing: Closing) -> Usage:
        self._show(CREDITS_REMAINING, format_usd(closing.available))
        return replace(usage, cost_pico=closing.cost)

    def _show(self, name: bytes, value: str) -> None:
        self._shown[name] = value.encode()
        if self._headers is not None:
            others = [field for field in self._headers if field[0] != name]
            self._headers[:] = [*others, (name, self._shown[name])]


def _used(usage: Usage) -> Used:
    return Used(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
