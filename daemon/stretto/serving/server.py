"""The serve loop: accept, cap, drain. One call serves one application on any number of listening sockets."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio
from starlette.types import ASGIApp

from stretto.serving.connection import GuardedConnection, make_config, make_context
from stretto.serving.drain import Drain
from stretto.serving.limits import Counters, Limits
from stretto.serving.peer import peer_of
from stretto.serving.replies import Refusal, RefusalBody, plain_body, raw_reply

logger = logging.getLogger(__name__)

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_RESOURCE_PAUSE_S = 0.1
_TURNING_AWAY_AT_ONCE = 64
_TURN_AWAY_S = 1.0


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    limits: Limits,
    *,
    stopping: trio.Event,
    grace_s: Callable[[], float] | None = None,
    while_draining: Callable[[], Awaitable[None]] | None = None,
    counters: Counters | None = None,
    refusal_body: RefusalBody = plain_body,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until ``stopping`` is set and the requests in flight have ended. Cancel it to stop at once.

    At ``stopping`` the listeners close, idle connections too (unused ones after ``limits.first_request_s``). Requests in flight go on for the grace; then ``Drain.ending`` is
    set, and ``limits.end_margin_s`` later whatever is left is cut. Each request's scope has in its ``state``: ``peer`` (a
    ``Peer`` on a Unix socket, else None) and ``drain`` (see ``drain_of``). There is no lifespan protocol.

    With ``while_draining`` the listeners stay open until that returns and the requests in flight have ended. Who connects in that time has
    one request answered, so that the application can say that it takes no new work; nobody waits for such a connection.

    Args:
        app: an ASGI application for ``http`` scopes.
        sockets: bound and listening; closed by this call.
        limits: bounds on every connection.
        stopping: asks for the drain.
        grace_s: asked for the grace once at ``stopping``; without it ``limits.drain_grace_s`` holds.
        while_draining: returns when work that requests of other servers have in flight has ended too.
        counters: counted into, for whoever reports them.
        refusal_body: how requests are refused that no application answers for; see RefusalBody.
        task_status: told the addresses (``http://127.0.0.1:8080``, ``unix:/path``) once connections are being accepted.
    """
    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]
    drain = Drain(stopping)
    door = _Door(app, limits, drain, counters or Counters(), refusal_body)
    try:
        async with trio.open_nursery() as late:
            async with trio.open_nursery() as helpers:
                async with trio.open_nursery() as connections:
                    door.nursery = connections
                    helpers.start_soon(door.accept_all, listeners)
                    task_status.started([address_of(sock) for sock in sockets])
                    await stopping.wait()
                    if while_draining is None:
                        await door.shut()
                    grace = limits.drain_grace_s if grace_s is None else grace_s()
                    helpers.start_soon(_end_after, drain, grace)
                    connections.cancel_scope.deadline = trio.current_time() + grace + limits.end_margin_s
                    door.nursery = late
                    await door.close_idle()
                    if while_draining is not None:
                        await while_draining()
                await door.shut()
                helpers.cancel_scope.cancel()
            late.cancel_scope.deadline = trio.current_time() + limits.end_margin_s
    finally:
        for listener in listeners:
            listener.socket.close()


async def _end_after(drain: Drain, grace_s: float) -> None:
    await trio.sleep(grace_s)
    drain.ending.set()


class _Door:
    """Lets connections in, as many as the limit allows."""

    def __init__(
        self, app: ASGIApp, limits: Limits, drain: Drain, counters: Counters, refusal_body: RefusalBody
    ) -> None:
        self._app = app
        self._limits = limits
        self._drain = drain
        self._counters = counters
        self._refusal_body = refusal_body
        self._config = make_config(limits)
        self._context = make_context()
        self._inside: set[GuardedConnection] = set()
        self._turning_away = 0
        self._closing = trio.Event()
        self._closed = trio.Event()
        self.nursery: trio.Nursery | None = None
        """Where connections run that are accepted from now on."""
        self._full_house = raw_reply(
            Refusal(
                503,
                "too_many_connections",
                f"{limits.max_connections} connections are open, the limit. Try again shortly.",
                retry_after_s=1,
            )
        )

    async def accept_all(self, listeners: Sequence[trio.SocketListener]) -> None:
        """Accept on all listeners until ``shut``."""
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept, listener)
                await self._closing.wait()
                nursery.cancel_scope.cancel()
        finally:
            for listener in listeners:
                listener.socket.close()
            self._closed.set()

    async def shut(self) -> None:
        """Close the listeners. Idempotent."""
        self._closing.set()
        await self._closed.wait()

    async def _accept(self, listener: trio.SocketListener) -> None:
        starved = False
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                if not starved:  # once an episode, not ten times a second
                    logger.error("Cannot accept connections: %s; waiting for others to close", error.strerror)
                starved = True
                await trio.sleep(_RESOURCE_PAUSE_S)
                continue
            starved = False
            assert self.nursery is not None
            if len(self._inside) >= self._limits.max_connections:
                self._counters.turned_away_total += 1
                if self._turning_away < _TURNING_AWAY_AT_ONCE:
                    self.nursery.start_soon(self._turn_away, stream)
                else:
                    stream.socket.close()
                continue
            try:
                connection = self._open(stream)
            except OSError as error:
                logger.warning("A connection without a known peer was closed: %s", error)
                stream.socket.close()
                continue
            self.nursery.start_soon(self._run, connection)

    def _open(self, stream: trio.SocketStream) -> GuardedConnection:
        state: dict[str, Any] = {"peer": peer_of(stream.socket), "drain": self._drain}
        connection = GuardedConnection(
            self._app,
            self._config,
            self._context,
            state,
            stream,
            self._limits,
            self._counters,
            self._refusal_body,
        )
        self._inside.add(connection)
        self._counters.accepted_total += 1
        self._counters.open += 1
        return connection

    async def _run(self, connection: GuardedConnection) -> None:
        try:
            await connection.run()
        finally:
            self._inside.discard(connection)
            self._counters.open -= 1

    async def _turn_away(self, stream: trio.SocketStream) -> None:
        self._turning_away += 1
        try:
            with trio.move_on_after(_TURN_AWAY_S):
                await stream.send_all(self._full_house)
                await stream.send_eof()
                while await stream.receive_some(4096):
                    pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self._turning_away -= 1
            stream.socket.close()

    async def close_idle(self) -> None:
        """From now on no connection is used for another request; those between two are closed. New ones have one each."""
        await self._context.terminated.set()
        for connection in self._inside:
            connection.drain()


def address_of(sock: socket.socket) -> str:
    """A listening socket's address, as a person writes it."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if sock.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"
