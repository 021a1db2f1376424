"""Server-sent events: frames out as they are made, a comment by the wall clock when none were. Pure ASGI."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import trio
from starlette.types import Receive, Scope, Send

from stretto.serving.client_watch import run_until_disconnect
from stretto.serving.drain import drain_error, drain_of
from stretto.serving.replies import Header

PING = b": ping\n\n"

_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class EventStream:
    """One event stream. An ASGI application by itself; use it once.

    The head goes out before the first frame is asked for. Frames are written in the order they come, each at once; several
    frames in one piece of bytes make one write, so a producer that has more at hand should join them. The ping does not
    depend on the producer: it also comes while the producer waits.

    Args:
        frames: whole SSE frames. Closed by this object, whatever ends the stream.
        error_frame: makes the last frames of a stream that failed. It gets what ``frames`` raised, or the drain's error when
            the server's grace has run out.
        ping_interval_s: longest silence on the wire.
        headers: further header fields.
        ping: what breaks the silence.
    """

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        error_frame: Callable[[Exception], bytes],
        ping_interval_s: float = 10.0,
        headers: Sequence[Header] = (),
        ping: bytes = PING,
    ) -> None:
        self._frames = frames
        self._error_frame = error_frame
        self._ping_interval_s = ping_interval_s
        self._ping_frame = ping
        self._headers = [*_HEADERS, *headers]
        self._lock = trio.Lock()
        self._last_write = 0.0
        self._producing = trio.CancelScope()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the stream until it ends or the client goes.

        Raises:
            ClientDisconnected: the client went first; the producer has been cancelled and closed.
        """

        async def work(watched_send: Send) -> None:
            await self.write(scope, watched_send)

        await run_until_disconnect(receive, send, work)

    async def write(self, scope: Scope, send: Send) -> None:
        """Write the stream, for a caller that watches the client by itself."""
        async with aclosing(self._frames):
            await send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._write(send, b"")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ping, send)
                nursery.start_soon(self._end_with, drain_of(scope).ending)
                failure = await self._produce(send)
                async with self._lock:  # never cut a ping in the middle of its write
                    nursery.cancel_scope.cancel()
            last = b"" if failure is None else self._error_frame(failure)
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _produce(self, send: Send) -> Exception | None:
        with self._producing:
            try:
                async for frame in self._frames:
                    if frame:
                        await self._write(send, frame)
            except Exception as error:
                return error
            return None
        return drain_error()

    async def _write(self, send: Send, data: bytes) -> None:
        async with self._lock:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._last_write = trio.current_time()

    async def _ping(self, send: Send) -> None:
        while True:
            due = self._last_write + self._ping_interval_s
            if trio.current_time() < due:
                await trio.sleep_until(due)
            elif self._lock.locked():
                # A write is under way, and the clock starts again when it ends.
                async with self._lock:
                    pass
            else:
                await self._write(send, self._ping_frame)

    async def _end_with(self, ending: trio.Event) -> None:
        await ending.wait()
        # Cancelling inside a write would break the connection and with it the last word.
        async with self._lock:
            self._producing.cancel()
