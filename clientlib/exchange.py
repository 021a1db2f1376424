"""One call over a connection: send, read, and try again only where that is safe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

from clientlib.address import Address
from clientlib.connecting import connect
from clientlib.errors import ClientError, ConnectionLost, ProtocolError, error_from_reply
from clientlib.http1 import Head, HttpRequest, Mark
from clientlib.link import Link
from clientlib.pool import ConnectionPool
from clientlib.steps import Flow, Sleep
from clientlib.timing import Budget

T = TypeVar("T")
Watch = Callable[[Link | None], None]

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""No reply of the daemon comes near this; it bounds what a stranger on the port can make us hold."""

_OK = frozenset({200})
_COME_BACK = frozenset({429, 503})


class Call(NamedTuple, Generic[T]):
    """A request and what to make of its reply. Plain data, no I/O.

    Attributes:
        method, target, body: the request; ``body`` is JSON or None.
        parse: reads the reply into the call's result.
        idempotent: doing it twice is the same as doing it once.
        accept: the statuses that ``parse`` understands; any other is an error.
        headers: sent with it, besides those of every request.
    """

    method: str
    target: str
    parse: Callable[[Head, bytes], T]
    body: bytes | None = None
    idempotent: bool = True
    accept: frozenset[int] = _OK
    headers: tuple[tuple[str, str], ...] = ()


class Exchanger:
    """Performs calls at one address.

    Args:
        headers: sent with every request.
        retries: how often a 429 or 503 that says when to come back (``Retry-After``) is tried again.
    """

    def __init__(
        self, address: Address, pool: ConnectionPool, headers: tuple[tuple[str, str], ...], retries: int
    ) -> None:
        self._address = address
        self._pool = pool
        self._headers = headers
        self._retries = retries

    def fetch(self, call: Call[T], budget: Budget) -> Flow[T]:
        """The result of a call whose reply comes as a whole. Raises ClientError."""
        link, head = yield from self.open(call, budget, "application/json")
        body = yield from self._read_body(link, budget)
        return call.parse(head, body)

    def open(
        self, call: Call[T], budget: Budget, media_type: str, watch: Watch | None = None
    ) -> Flow[tuple[Link, Head]]:
        """Send a call and read the head of its reply, which has an accepted status. The caller owns the link.

        ``watch`` is told of each connection before it is used, so that another thread can cut it, and None when it must not.

        Raises:
            ClientError: refused, failed or not reached; the connection is then closed, or back in the pool.
        """
        request = HttpRequest(
            call.method,
            self._address.prefix + call.target,
            self._address.host_header,
            (*self._headers, *call.headers, ("Accept", media_type)),
            call.body,
        )
        tried = 0
        while True:
            link, head = yield from self._begin(request, budget, call.idempotent, watch or _nobody)
            if head.status in call.accept:
                return link, head
            if watch is not None:
                watch(None)
            body = yield from self._read_body(link, budget)
            error = error_from_reply(
                head.status,
                body,
                retry_after=head.header("retry-after"),
                request_id=head.header("x-request-id"),
            )
            pause_s = self._pause_s(error, tried)
            if pause_s is None or not budget.allows(pause_s):
                raise error
            tried += 1
            yield Sleep(pause_s)

    def _pause_s(self, error: ClientError, tried: int) -> float | None:
        """How long to wait before the next try, or None when there is to be none."""
        if tried >= self._retries or error.status not in _COME_BACK:
            return None
        return error.retry_after_s

    def _begin(
        self, request: HttpRequest, budget: Budget, idempotent: bool, watch: Watch
    ) -> Flow[tuple[Link, Head]]:
        """Send on a pooled connection, and once more on a new one if the pooled one turns out dead and that is safe."""
        link = self._pool.take()
        if link is not None:
            watch(link)
            try:
                return link, (yield from self._ask(link, request, budget))
            except ConnectionLost as lost:
                if link.wire.reply_begun or (lost.request_sent and not idempotent):
                    raise
        link = yield from connect(self._address, budget)
        watch(link)
        return link, (yield from self._ask(link, request, budget))

    def _ask(self, link: Link, request: HttpRequest, budget: Budget) -> Flow[Head]:
        """Send the request and read the reply's head. Closes the link on any failure."""
        try:
            unsent = memoryview(link.wire.start(request))
            try:
                while unsent:
                    sent = link.send(unsent)
                    unsent = unsent[sent:]
                    if not sent:
                        yield from budget.writable(link)
            except OSError as error:
                return self._answer_to_unsent(link, error)
            return (yield from self._read_head(link, budget))
        except BaseException:
            link.close()
            raise

    def _answer_to_unsent(self, link: Link, failure: OSError) -> Head:
        """The head that the server sent before it stopped reading (413, 401): it tells more than a broken pipe."""
        link.reusable = False
        with contextlib.suppress(OSError, ClientError):
            while True:
                match link.wire.next_event():
                    case Head() as head:
                        return head
                    case Mark.NEED_DATA if link.receive():
                        continue
                break
        raise ConnectionLost(
            f"The connection broke while the request was being sent ({failure.strerror}).", request_sent=False
        ) from failure

    def _read_head(self, link: Link, budget: Budget) -> Flow[Head]:
        event = yield from next_event(link, budget)
        if not isinstance(event, Head):
            raise ProtocolError("The reply has no head.")
        return event

    def _read_body(self, link: Link, budget: Budget) -> Flow[bytes]:
        """The whole body; the connection then goes back to the pool."""
        try:
            body = bytearray()
            while (event := (yield from next_event(link, budget))) is not Mark.END:
                if isinstance(event, bytes):
                    body += event
                if len(body) > MAX_REPLY_BYTES:
                    raise ProtocolError(f"The reply is longer than {MAX_REPLY_BYTES} bytes.")
        except BaseException:
            link.close()
            raise
        self._pool.give(link)
        return bytes(body)


def _nobody(link: Link | None) -> None:
    """Watches nothing."""


def next_event(link: Link, budget: Budget) -> Flow[Head | bytes | Mark]:
    """The next event of the reply on ``link``; never NEED_DATA. The caller closes the link on failure.

    Raises:
        ConnectionLost, ProtocolError, Timeout
    """
    while True:
        event = link.wire.next_event()
        if event is not Mark.NEED_DATA:
            return event
        try:
            while not link.receive():
                yield from budget.readable(link)
        except OSError as error:
            raise ConnectionLost(
                f"The connection broke before the reply was complete ({error.strerror})."
            ) from error
