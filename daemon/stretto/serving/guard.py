"""One request and its HTTP/1.1 connection state, on hypercorn's internals, with their faults cured.

hypercorn 0.18.0 on trio lets one bad request end the process, shields its writes so that a client which stops reading blocks
shutdown for ever, delivers ``http.disconnect`` through the queue that nobody drains, and speaks WebSocket and h2c to whoever asks.
Its private names are therefore overridden here and in ``connection.py``, the only modules that import it, and its version is
pinned; a test fails when the names move. What hypercorn still does: the h11 state machine's glue, the ASGI scope, the order of ASGI messages.

Three rules make it hold. The connection's reader is one loop that can be woken (``wake``) and owns every deadline. Whatever
follows a write is done without a checkpoint, so no cancellation can fall between a reply and its clean-up. And a write that was
cut, by a deadline or a cancellation, ends the connection, since nobody knows how much of it went out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Event, RawData
from hypercorn.protocol.events import (
    Body,
    EndBody,
    Response,
    StreamClosed,
)
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Request as StreamRequest
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, ConnectionState, Scope
from starlette.types import ASGIApp

from stretto.serving.inbox import Inbox
from stretto.serving.limits import Counters, Limits
from stretto.serving.replies import Header, Refusal, RefusalBody, refusal_reply
from stretto.serving.request_head import judge_head, malformed, too_large_body

logger = logging.getLogger(__name__)

_FAILED = Refusal(500, "internal_error", "The server failed to answer this request; its log has the details.")


class Owner(Protocol):
    """The connection, as its protocol sees it."""

    app: AppWrapper
    config: Config
    context: WorkerContext
    state: dict[str, Any]
    task_group: GuardedTaskGroup
    limits: Limits
    counters: Counters
    refusal_body: RefusalBody
    ending: bool

    async def protocol_send(self, event: Event) -> None:
        """Write, or learn that a reply is complete."""

    def wake(self) -> None:
        """Have the reader look at the state again."""

    def end(self) -> None:
        """Have the reader close the connection."""


class GuardedTaskGroup(TaskGroup):
    """Runs the application of each request, and keeps its failures and its inbox to that request."""

    def __init__(self, before_body_wait: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._before_body_wait = before_body_wait
        self.inbox: Inbox | None = None

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Start the application; returns what puts events into its inbox."""
        assert self._nursery is not None
        self.inbox = inbox = Inbox(self._before_body_wait)
        self._nursery.start_soon(_run_app, cast(ASGIApp, app), scope, inbox, send)
        return inbox.put


async def _run_app(
    app: ASGIApp, scope: Scope, inbox: Inbox, send: Callable[[ASGISendEvent | None], Awaitable[None]]
) -> None:
    try:
        await app(cast("dict[str, Any]", scope), inbox.receive, cast(Any, send))
    except* Exception:
        logger.exception("The application failed on a request")
    await send(None)


class GuardedStream(HTTPStream):
    """One request and its reply."""

    protocol: GuardedProtocol

    async def app_send(self, message: ASGISendEvent | None) -> None:
        """Take one ASGI message; drop it when the client cannot get it any more.

        The end of a reply is written together with its last piece.
        """
        if self.closed:
            if message is not None:
                # An application that never looks at receive() must not hold the loop.
                await trio.lowlevel.checkpoint()
            return
        if message is None:
            if self.state is ASGIHTTPState.REQUEST and self.protocol.client_gone:
                self.state = ASGIHTTPState.CLOSED
            await super().app_send(None)
            return
        more = message["type"] == "http.response.body" and message.get("more_body", False)
        await super().app_send(message)
        if more:
            await self.protocol.flush()

    async def _send_error_response(self, status_code: int) -> None:
        refusal = _FAILED if status_code == 500 else Refusal(status_code, "not_found", "Not found.")
        status, headers, body = self.protocol.refusal_reply(refusal)
        await self.send(Response(stream_id=self.stream_id, headers=headers, status_code=status))
        if self.scope["method"] != "HEAD":
            await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = ASGIHTTPState.CLOSED


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 and nothing else, with limits, JSON refusals, and a lazy ``100 Continue``."""

    connection: h11.Connection

    def __init__(self, owner: Owner, client: tuple[str, int] | None, bound: tuple[str, int] | None) -> None:
        super().__init__(
            owner.app,
            owner.config,
            owner.context,
            owner.task_group,
            ConnectionState(owner.state),
            False,
            client,
            bound,
            owner.protocol_send,
        )
        self._limits = owner.limits
        self._counters = owner.counters
        self._owner = owner
        self._method = b""
        self._path = ""
        self._body_bytes = 0
        self._held = bytearray()
        self.client_gone = False

    async def advance(self) -> None:
        """Act on everything that has been received so far."""
        while not self._owner.ending:
            try:
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self.refuse(malformed(error.error_status_hint, str(error)))
                return
            if isinstance(event, h11.Request):
                self._method = event.method
                self._path = event.target.partition(b"?")[0].decode("latin-1")
                refusal = judge_head(
                    method=event.method,
                    target=event.target,
                    http_version=event.http_version,
                    headers=event.headers,
                    limits=self._limits,
                )
                if refusal is not None:
                    await self.refuse(refusal)
                    return
                await self._create_stream(event)
            elif isinstance(event, h11.Data) and self.stream is not None:
                self._body_bytes += len(event.data)
                if self._body_bytes > self._limits.body_bytes:
                    await self.refuse(too_large_body(self._limits))
                    return
                await self.stream.handle(Body(stream_id=STREAM_ID, data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage) and self.stream is not None:
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return

    async def _create_stream(self, request: h11.Request) -> None:
        # An Upgrade header is no request to leave HTTP/1.1 here: the protocol it names is simply not chosen (RFC 9110, 7.8).
        self._body_bytes = 0
        self._counters.requests_total += 1
        self.stream = stream = GuardedStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        stream.protocol = self
        await stream.handle(
            StreamRequest(
                stream_id=STREAM_ID,
                headers=list(request.headers),
                http_version=request.http_version.decode(),
                method=request.method.decode("ascii"),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        if self.client_gone and self._owner.task_group.inbox is not None:
            self._owner.task_group.inbox.hang_up()  # sent ahead by a client that has since half-closed

    async def stream_send(self, event: StreamEvent) -> None:
        """Send one part of the reply. Parts are held back until ``flush``, so that a short reply is one write."""
        if isinstance(event, Response) and self.connection.their_state is h11.SEND_BODY:
            # The rest of this body will not be read: the connection cannot be used again.
            event = Response(event.stream_id, [*event.headers, (b"connection", b"close")], event.status_code)
        if isinstance(event, StreamClosed):
            await self.flush()
        await super().stream_send(event)

    async def _send_h11_event(self, event: Any) -> None:
        self._held += self.connection.send(event) or b""

    async def flush(self) -> None:
        """Write what is held back."""
        if self._held:
            data, self._held = bytes(self._held), bytearray()
            await self.send(RawData(data=data))

    async def send_continue(self) -> None:
        """Say ``100 Continue``, now that the application wants the body, if the client waits for it."""
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
            await self.flush()
            self._owner.wake()

    async def refuse(self, refusal: Refusal) -> None:
        """Turn the request down, if its reply has not begun, and end the connection."""
        self._counters.refused_total += 1
        self.abandon()
        self._held.clear()
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            bodiless = self.connection.our_state is h11.SEND_RESPONSE and self._method == b"HEAD"
            status, headers, body = self.refusal_reply(refusal)
            headers.extend(self.config.response_headers("h11"))
            await self._send_h11_event(h11.Response(status_code=status, headers=headers))
            if not bodiless:
                await self._send_h11_event(h11.Data(data=body))
            await self._send_h11_event(h11.EndOfMessage())
            await self.flush()
        self._owner.end()

    def refusal_reply(self, refusal: Refusal) -> tuple[int, list[Header], bytes]:
        """Status, header fields and body of a refusal that ends the connection."""
        status, headers, body = refusal_reply(refusal, self._path, self._owner.refusal_body)
        return status, [*headers, (b"connection", b"close")], body

    def abandon(self) -> None:
        """The reply cannot reach the client any more: tell the application, drop what it still sends. No checkpoint."""
        self.hang_up()
        if self.stream is not None:
            self.stream.closed = True
            self.stream = None

    def hang_up(self) -> None:
        """The client sends no more. What the application still sends is written, in case the client listens."""
        self.client_gone = True
        inbox = self._owner.task_group.inbox
        if inbox is not None:
            inbox.hang_up()
