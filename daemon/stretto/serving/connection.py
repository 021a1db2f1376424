"""One connection, from the first byte to the close: every deadline, every write, and what to do when one is cut."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import sys
from typing import Any, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from hypercorn.utils import parse_socket_addr
from starlette.types import ASGIApp

from stretto.serving.guard import GuardedProtocol, GuardedTaskGroup
from stretto.serving.limits import Counters, Limits
from stretto.serving.replies import RefusalBody
from stretto.serving.request_head import too_slow

logger = logging.getLogger(__name__)

_PIECE_BYTES = 64 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def make_config(limits: Limits) -> Config:
    """hypercorn's own settings, with everything off that is done here."""
    config = Config()
    config.h11_max_incomplete_size = limits.header_bytes
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = None
    config.read_timeout = None
    config.server_names = []
    config.keep_alive_max_requests = sys.maxsize
    return config


def make_context() -> WorkerContext:
    """What all connections of one server share: whether it is stopping."""
    return WorkerContext(None)


class GuardedConnection(TCPServer):
    """One accepted connection, from the first byte to the close."""

    def __init__(
        self,
        app: ASGIApp,
        config: Config,
        context: WorkerContext,
        state: dict[str, Any],
        stream: trio.SocketStream,
        limits: Limits,
        counters: Counters,
        refusal_body: RefusalBody,
    ) -> None:
        super().__init__(cast(AppWrapper, app), config, context, state, cast(Any, stream))
        self.limits = limits
        self.counters = counters
        self.refusal_body = refusal_body
        self.task_group = GuardedTaskGroup(self._before_body_wait)
        self.ending = False
        self._transport = stream
        self._broken = False
        self._reading: trio.CancelScope | None = None
        self._woken = False
        self._unused = True
        self._idle_since = trio.current_time()
        self._idle_limit_s = limits.header_timeout_s
        self._head_began: float | None = None
        self._body_waited_s = 0.0
        self._h11: GuardedProtocol

    async def run(self) -> None:
        """Serve the connection. Nothing but a cancellation comes out of here."""
        try:
            sock = self._transport.socket
            client = parse_socket_addr(sock.family, sock.getpeername())
            bound = parse_socket_addr(sock.family, sock.getsockname())
            async with self.task_group:
                self._h11 = GuardedProtocol(self, client, bound)
                await self._read_data()
                await self._close()
        except* OSError:
            pass
        except* Exception:
            self.counters.failed_total += 1
            logger.exception("A connection failed; the others go on")
        finally:
            self._transport.socket.close()

    def wake(self) -> None:
        """Make the reader look at the connection's state again. No checkpoint; nothing received is lost by it."""
        self._woken = True
        if self._reading is not None:
            self._reading.cancel()

    def drain(self) -> None:
        """Have no further request. A client that has only just connected is given a moment to send its first. No checkpoint."""
        if self._unused:
            self._idle_since = trio.current_time()
            self._idle_limit_s = min(self._idle_limit_s, self.limits.first_request_s)
        self.wake()

    def end(self) -> None:
        """Close the connection as soon as the reader gets to it. No checkpoint."""
        self.ending = True
        self.wake()

    async def protocol_send(self, event: Event) -> None:
        """Take what the protocol has to say to the transport."""
        if isinstance(event, RawData):
            await self._write(event.data)
        elif isinstance(event, Closed):
            self.end()
        else:  # Updated: a reply is complete and the connection may be used again
            self._unused = False
            self._idle_since = trio.current_time()
            self._idle_limit_s = self.limits.keep_alive_s
            self._body_waited_s = 0.0
            self.wake()

    # Reading -----------------------------------------------------------------------------------------------------------

    async def _read_data(self) -> None:
        protocol = self._h11
        connection = protocol.connection
        while True:
            self._woken = False
            await protocol.advance()
            if self.ending or (protocol.client_gone and protocol.stream is None):
                return
            if self.context.terminated.is_set() and self._between_requests():
                return
            if self._woken:
                continue
            inbox = self.task_group.inbox
            state = connection.their_state
            began = trio.current_time()
            data: bytes | None = None
            with trio.CancelScope(deadline=self._deadline(began)) as self._reading:
                if protocol.client_gone or self._hoards():
                    await trio.sleep_forever()
                if inbox is not None and inbox.full:
                    await inbox.wait_room()
                    continue
                try:
                    data = bytes(await self._transport.receive_some(MAX_RECV))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self._break()
            if state is h11.SEND_BODY:
                self._body_waited_s += trio.current_time() - began
            if data is not None:
                connection.receive_data(data)
                if not data:
                    protocol.hang_up()
            elif not self._woken:
                await self._give_up(state)

    def _between_requests(self) -> bool:
        connection = self._h11.connection
        if connection.their_state is not h11.IDLE or connection.trailing_data[0] or self._unused:
            return False
        # A request may lie there that was sent before the end was told.
        return not self._transport.socket.is_readable()

    def _hoards(self) -> bool:
        """Whether the client has sent so far ahead of its turn that no more is read. Its going is then noticed late."""
        connection = self._h11.connection
        reads_on = connection.their_state in (h11.IDLE, h11.SEND_BODY)
        return not reads_on and len(connection.trailing_data[0]) >= _PIECE_BYTES

    def _deadline(self, now: float) -> float:
        """Until when the next byte must have come."""
        connection = self._h11.connection
        if connection.their_state is h11.IDLE:
            if not connection.trailing_data[0]:
                self._head_began = None
                return self._idle_since + self._idle_limit_s
            if self._head_began is None:
                self._head_began = now
            return self._head_began + self.limits.header_timeout_s
        self._head_began = None
        inbox = self.task_group.inbox
        if (
            connection.their_state is not h11.SEND_BODY
            or connection.they_are_waiting_for_100_continue
            or (inbox is not None and inbox.full)
        ):
            return float("inf")
        left_s = self.limits.body_total_timeout_s - self._body_waited_s
        return now + min(self.limits.body_timeout_s, left_s)

    async def _give_up(self, state: object) -> None:
        """The deadline has passed."""
        if state is h11.SEND_BODY:
            self.counters.timed_out_total += 1
            await self._h11.refuse(too_slow("next piece of the request body", self.limits.body_timeout_s))
        elif self._head_began is not None:
            self.counters.timed_out_total += 1
            await self._h11.refuse(too_slow("request head", self.limits.header_timeout_s))
        else:
            self.end()

    async def _before_body_wait(self) -> None:
        await self._h11.send_continue()

    # Writing and closing -------------------------------------------------------------------------------------------------

    async def _write(self, data: bytes) -> None:
        if self._broken:
            await trio.lowlevel.checkpoint()
            return
        async with self.send_lock:
            try:
                for start in range(0, len(data), _PIECE_BYTES):
                    with trio.move_on_after(self.limits.write_timeout_s) as patience:
                        await self._transport.send_all(data[start : start + _PIECE_BYTES])
                    if patience.cancelled_caught:
                        self.counters.timed_out_total += 1
                        logger.info("A client took no data for %g s; cut off", self.limits.write_timeout_s)
                        self._break()
                        return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self._break()
            except BaseException:
                self._break()
                raise

    def _break(self) -> None:
        """The byte stream is spoilt, or its other end is gone: close it at once, unsent data and all. No checkpoint."""
        if not self._broken:
            self._broken = True
            with contextlib.suppress(OSError):
                self._transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._transport.socket.close()
            self._h11.abandon()
            self.end()

    async def _close(self) -> None:
        """Close so that the client can read the last reply.

        A close with unread bytes in the socket makes the kernel send a reset, which may destroy the reply on its way. So
        when the client may still be sending, what comes is thrown away for a short time.
        """
        if self._broken:
            return
        connection = self._h11.connection
        buffered, all_read = connection.trailing_data
        sending = buffered or connection.their_state not in (h11.IDLE, h11.DONE, h11.MUST_CLOSE)
        try:
            await self._transport.send_eof()
            if sending and not all_read:
                with trio.move_on_after(self.limits.linger_s):
                    while await self._transport.receive_some(MAX_RECV):
                        pass
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError):
            pass
        self._transport.socket.close()
