"""A real server on 127.0.0.1 (or a Unix socket), raw clients for it, and counts of what it leaks."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import trio
import trio.testing
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.serving import Counters, Limits, RefusalBody, bind_tcp, bind_unix
from stretto.serving.replies import plain_body
from stretto.serving.server import serve

PATIENCE_S = 90.0
"""How long a test waits for what must happen; never the measure of anything."""


@dataclass
class RunningServer:
    """A server under test."""

    port: int
    path: Path | None
    limits: Limits
    counters: Counters
    stopping: trio.Event
    ended: trio.Event = field(default_factory=trio.Event)

    async def connect(self) -> RawClient:
        """A new connection."""
        if self.path is not None:
            return RawClient(await trio.open_unix_socket(self.path))
        return RawClient(await trio.open_tcp_stream("127.0.0.1", self.port))

    async def exchange(self, data: bytes) -> list[Reply]:
        """Send bytes on a new connection and read to its end."""
        async with await self.connect() as client:
            await client.send(data)
            return parse_replies(await client.read_all())

    async def get(self, target: str = "/", host: str = "127.0.0.1") -> Reply:
        """One GET on a connection of its own."""
        (reply,) = await self.exchange(
            f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        return reply

    async def wait_connections(self, count: int) -> None:
        """Return when so many connections are open in the server."""
        with trio.fail_after(PATIENCE_S):
            while self.counters.open != count:
                await trio.testing.wait_all_tasks_blocked()


class RawClient:
    """A byte stream that can misbehave."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def __aenter__(self) -> RawClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self.stream)

    async def send(self, data: bytes) -> None:
        with trio.fail_after(PATIENCE_S):
            await self.stream.send_all(data)

    async def half_close(self) -> None:
        await self.stream.send_eof()

    def reset(self) -> None:
        """Close with a reset instead of a FIN."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.stream.socket.close()

    async def read_until(self, mark: bytes) -> bytes:
        """Everything up to and with the mark, and whatever came along."""
        got = b""
        with trio.fail_after(PATIENCE_S):
            while mark not in got:
                data = await self.stream.receive_some()
                assert data, f"connection closed before {mark!r}; got {got!r}"
                got += data
        return got

    async def read_all(self) -> bytes:
        """Everything to the end of the connection; a reset is an end too."""
        got = b""
        with trio.fail_after(PATIENCE_S):
            while True:
                try:
                    data = await self.stream.receive_some()
                except trio.BrokenResourceError:
                    return got
                if not data:
                    return got
                got += data


@dataclass
class Reply:
    """One HTTP reply, as h11 reads it. ``complete`` is False when it was cut."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool
    informational: list[int] = field(default_factory=list)


def parse_replies(data: bytes, method: str = "GET") -> list[Reply]:
    """All replies in what a connection brought, read by h11's client side."""
    replies: list[Reply] = []
    connection = h11.Connection(h11.CLIENT)
    connection.receive_data(data)
    connection.receive_data(b"")
    early: list[int] = []
    body = b""
    current: h11.Response | None = None
    _say_request(connection, method)
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            if current is not None:
                replies.append(_reply(current, body, False, early))
            return replies
        if isinstance(event, h11.InformationalResponse):
            early.append(event.status_code)
        elif isinstance(event, h11.Response):
            current, body = event, b""
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage):
            assert current is not None
            replies.append(_reply(current, body, True, early))
            current, early = None, []
            if connection.our_state is h11.DONE and connection.their_state is h11.DONE:
                connection.start_next_cycle()
                _say_request(connection, method)
        else:
            return replies


def _say_request(connection: h11.Connection, method: str) -> None:
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())


def _reply(head: h11.Response, body: bytes, complete: bool, early: list[int]) -> Reply:
    headers = {name.decode(): value.decode() for name, value in head.headers}
    return Reply(head.status_code, headers, bytes(body), complete, early)


@asynccontextmanager
async def running(
    app: ASGIApp,
    *,
    unix_path: Path | None = None,
    stop: bool = True,
    while_draining: Callable[[], Awaitable[None]] | None = None,
    grace_s: Callable[[], float] | None = None,
    refusal_body: RefusalBody = plain_body,
    **limits: Any,
) -> AsyncIterator[RunningServer]:
    """Serve the app; at the end check that it drains, and that no descriptor and no task is left."""
    fds_before = open_fds()
    bounds = Limits(**{"linger_s": 0.5, "drain_grace_s": 1.0, "end_margin_s": 0.3, **limits})
    counters = Counters()
    async with trio.open_nursery() as nursery:
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        binding = bind_unix(unix_path) if unix_path is not None else None
        sock = binding.socket if binding is not None else bind_tcp("127.0.0.1", 0)
        port = 0 if binding is not None else sock.getsockname()[1]
        server = RunningServer(port, unix_path, bounds, counters, trio.Event())

        async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
            await serve(
                app,
                [sock],
                bounds,
                stopping=server.stopping,
                grace_s=grace_s,
                while_draining=while_draining,
                counters=counters,
                refusal_body=refusal_body,
                task_status=task_status,
            )
            server.ended.set()

        await nursery.start(run)
        yield server
        if stop:
            server.stopping.set()
        with trio.fail_after(PATIENCE_S):
            await server.ended.wait()
        if binding is not None:
            binding.close()
        assert counters.open == 0
        with trio.fail_after(PATIENCE_S):
            while trio.lowlevel.current_statistics().tasks_living > tasks_before:
                await trio.testing.wait_all_tasks_blocked()
    assert open_fds() == fds_before


def open_fds() -> set[str]:
    """Descriptors of this process, with what they are."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name}={os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue  # the listing's own descriptor
    return found


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """The smallest useful application: reads the body, answers with its length and the path."""
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    body = f"{scope['method']} {scope['path']} {size}".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def get(target: str = "/", *extra: str) -> bytes:
    """A plain GET request."""
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: 127.0.0.1", *extra, "", ""]).encode()


def post(body: bytes, *extra: str, target: str = "/") -> bytes:
    """A POST with a declared body."""
    head = [f"POST {target} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}", *extra, "", ""]
    return "\r\n".join(head).encode() + body


__all__ = [
    "PATIENCE_S",
    "RawClient",
    "Reply",
    "RunningServer",
    "get",
    "hello",
    "open_fds",
    "parse_replies",
    "post",
    "running",
]
