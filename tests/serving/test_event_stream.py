"""Event streams on a fake clock: order, pings by the wall clock, disconnects, errors, back-pressure."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from starlette.types import Message

from stretto.serving import ClientDisconnected, Drain, EventStream
from stretto.serving.event_stream import PING
from support.serving_server import get, hello, parse_replies, running


class Wire:
    """The two ends that a server gives an application, without a server."""

    def __init__(self) -> None:
        self.sent: list[tuple[float, bytes]] = []
        self.head: Message | None = None
        self.ended = False
        self.gone = trio.Event()
        self.open = trio.Event()
        self.open.set()
        self.drain = Drain()
        self.scope: dict[str, Any] = {"type": "http", "state": {"drain": self.drain}}

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.open.wait()
        if message["type"] == "http.response.start":
            self.head = message
            return
        assert self.head is not None
        assert not self.ended
        if message["body"]:
            self.sent.append((round(trio.current_time() - self.began, 3), message["body"]))
        self.ended = not message["more_body"]
        if self.ended:
            self.gone.set()  # as servers do

    async def run(self, frames: AsyncGenerator[bytes, None], **options: Any) -> None:
        self.began = trio.current_time()
        stream = EventStream(frames, error_frame=lambda error: f"error {error!r}".encode(), **options)
        await stream(self.scope, self.receive, self.send)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.sent]


async def test_frames_come_at_once_and_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        for number in range(3):
            yield b"%d" % number
            yield b""  # nothing to say is nothing sent
            await trio.sleep(1)

    wire = Wire()
    await wire.run(frames(), headers=[(b"x-extra", b"1")])
    assert wire.sent == [(0, b"0"), (1, b"1"), (2, b"2")]
    assert wire.ended
    assert wire.head is not None
    headers = dict(wire.head["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"cache-control"] == b"no-cache"
    assert headers[b"x-extra"] == b"1"


async def test_pings_come_by_the_wall_clock_while_the_producer_is_silent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        await trio.sleep(25)
        yield b"a"
        await trio.sleep(9)
        yield b"b"
        await trio.sleep(12)

    wire = Wire()
    await wire.run(frames(), ping_interval_s=10.0)
    assert wire.sent == [(10, PING), (20, PING), (25, b"a"), (34, b"b"), (44, PING)]


async def test_the_longest_silence_is_the_interval_whatever_the_producer_does(
    autojump_clock: trio.testing.MockClock,
) -> None:
    waits = [0.1, 9.99, 10.0, 10.01, 30.0, 3.3, 0.0, 19.9]

    async def frames() -> AsyncGenerator[bytes, None]:
        for wait in waits:
            await trio.sleep(wait)
            yield b"x"

    wire = Wire()
    await wire.run(frames(), ping_interval_s=10.0)
    times = [0.0, *[time for time, _ in wire.sent]]
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) <= 10.001
    assert wire.bodies.count(b"x") == len(waits)


async def test_the_head_goes_out_before_the_first_frame_is_made() -> None:
    wire = Wire()

    async def frames() -> AsyncGenerator[bytes, None]:
        assert wire.head is not None
        yield b"a"

    await wire.run(frames())
    assert wire.bodies == [b"a"]


@pytest.mark.parametrize("where", ["waiting", "writing"])
async def test_a_client_that_goes_cancels_and_closes_the_producer(
    where: str, autojump_clock: trio.testing.MockClock
) -> None:
    closed = trio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            if where == "writing":
                wire.open = trio.Event()  # the next write blocks
                yield b"b"
            await trio.sleep_forever()
        finally:
            closed.set()

    wire = Wire()
    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await trio.sleep(3)
            wire.gone.set()

        nursery.start_soon(leave)
        with pytest.raises(ClientDisconnected):
            await wire.run(frames())
    assert closed.is_set()
    assert not wire.ended
    assert trio.current_time() - wire.began == pytest.approx(3)


async def test_an_error_of_the_producer_becomes_the_last_frame() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"a"
        raise RuntimeError("boom")

    wire = Wire()
    await wire.run(frames())
    assert wire.bodies == [b"a", b"error RuntimeError('boom')"]
    assert wire.ended


async def test_the_end_of_the_grace_becomes_the_last_frame(autojump_clock: trio.testing.MockClock) -> None:
    closed = trio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            await trio.sleep_forever()
        finally:
            closed.set()

    wire = Wire()
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.sleep(5)
            wire.drain.ending.set()

        nursery.start_soon(end)
        await wire.run(frames(), ping_interval_s=100.0)
    assert closed.is_set()
    assert wire.ended
    assert [time for time, _ in wire.sent] == [0, 5]
    assert b"Unavailable" in wire.bodies[-1]


async def test_the_end_of_the_grace_never_cuts_a_write(autojump_clock: trio.testing.MockClock) -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"a"
        wire.open = trio.Event()
        yield b"b"
        await trio.sleep_forever()

    wire = Wire()
    async with trio.open_nursery() as nursery:

        async def end() -> None:
            await trio.sleep(5)
            wire.drain.ending.set()
            await trio.sleep(5)
            wire.open.set()

        nursery.start_soon(end)
        await wire.run(frames())
    assert wire.bodies[:2] == [b"a", b"b"]
    assert [time for time, _ in wire.sent] == [0, 10, 10]


async def test_a_slow_reader_holds_the_producer_back_and_gets_no_ping_pile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    made: list[int] = []

    async def frames() -> AsyncGenerator[bytes, None]:
        for number in range(5):
            made.append(number)
            yield b"%d" % number

    wire = Wire()
    async with trio.open_nursery() as nursery:

        async def stall() -> None:
            await trio.lowlevel.checkpoint()
            wire.open = trio.Event()
            await trio.sleep(100)
            assert len(made) < 5
            wire.open.set()

        wire.open = trio.Event()
        nursery.start_soon(stall)
        wire.open.set()
        await wire.run(frames(), ping_interval_s=1.0)
    assert wire.bodies.count(PING) <= 1
    assert [body for body in wire.bodies if body != PING] == [b"%d" % n for n in range(5)]


async def test_on_the_wire_the_connection_serves_on_after_a_stream() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        yield b"data: 2\n\n"

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/stream":
            await receive()
            await EventStream(frames(), error_frame=repr_frame)(scope, receive, send)
        else:
            await hello(scope, receive, send)

    async with running(app, keep_alive_s=1.0) as server:
        replies = await server.exchange(get("/stream") + get("/next") + get("/stream", "Connection: close"))
        assert [reply.body for reply in replies] == [
            b"data: 1\n\ndata: 2\n\n",
            b"GET /next 0",
            b"data: 1\n\ndata: 2\n\n",
        ]
        assert server.counters.accepted_total == 1


async def test_on_the_wire_a_ping_is_a_comment() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        await trio.sleep_forever()
        yield b""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        with trio.CancelScope():
            await EventStream(frames(), error_frame=repr_frame, ping_interval_s=0.05)(scope, receive, send)

    async with running(app) as server:
        async with await server.connect() as client:
            await client.send(get())
            data = await client.read_until(PING)
            assert parse_replies(data)[0].headers["content-type"] == "text/event-stream; charset=utf-8"


def repr_frame(error: Exception) -> bytes:
    return repr(error).encode()
