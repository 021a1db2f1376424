"""Host check, cross-origin grants, the service manager's notifications, the request head's rules, and hypercorn's names."""

from __future__ import annotations

import inspect
import os
import socket
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from stretto.serving import CrossOrigin, HostGuard, Limits, Notifier
from stretto.serving.request_head import judge_head
from support.serving_server import get, hello, running

# Host ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        (b"127.0.0.1", True),
        (b"127.0.0.1:8080", True),
        (b"localhost:1", True),
        (b"LocalHost.", True),
        (b"[::1]:8080", True),
        (b"::1", True),
        (b"box.lan:8080", True),
        (b"192.168.1.5", True),
        (b"evil.example", False),
        (b"localhost.evil.example", False),
        (b"127.0.0.1.evil.example", False),
        (b"evil.example:127.0.0.1", False),
        (b"127.0.0.1@evil.example", False),
        (b"10.0.0.1", False),
        (b"[::2]", False),
        (b"[::1]evil", False),
        (b"127.0.0.1:evil", False),
        (b"", False),
        (b"\xfc\xef.example", False),
        (None, False),
    ],
)
def test_host_is_ours(host: bytes | None, allowed: bool) -> None:
    guard = HostGuard(hello, bound_host="192.168.1.5", names=["box.lan"])
    assert guard.allows(host) is allowed


def test_any_address_when_bound_to_all_but_no_name() -> None:
    guard = HostGuard(hello, bound_host="0.0.0.0")
    assert guard.allows(b"10.0.0.1:80")
    assert guard.allows(b"[2001:db8::1]")
    assert not guard.allows(b"evil.example")
    assert not HostGuard(hello, bound_host="127.0.0.1").allows(b"10.0.0.1")


async def test_foreign_host_is_refused_on_the_wire_on_every_route() -> None:
    async with running(HostGuard(hello)) as server:
        for target in ("/", "/health", "/v1/models", "/nothing"):
            reply = await server.get(target, host="evil.example")
            assert reply.status == 403
            assert b"host_not_allowed" in reply.body
            assert (await server.get(target)).status == 200
        (reply,) = await server.exchange("GET / HTTP/1.1\r\nHost: ünï\r\nConnection: close\r\n\r\n".encode())
        assert reply.status == 403
        (reply,) = await server.exchange(b"GET / HTTP/1.0\r\n\r\n")
        assert reply.status == 403


PREFLIGHT = b"\r\n".join(
    [
        b"OPTIONS / HTTP/1.1",
        b"Host: 127.0.0.1",
        b"Origin: %s",
        b"Access-Control-Request-Method: POST",
        b"Access-Control-Request-Headers: content-type, x-mine",
        b"Connection: close",
        b"\r\n",
    ]
)


async def test_no_cross_origin_grant_by_default() -> None:
    async with running(CrossOrigin(hello)) as server:
        (reply,) = await server.exchange(get("/", "Origin: http://a.example", "Connection: close"))
        assert not [name for name in reply.headers if name.startswith("access-control")]
        (reply,) = await server.exchange(PREFLIGHT % b"http://a.example")
        assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_a_named_origin_gets_its_grant_and_others_do_not() -> None:
    async with running(CrossOrigin(hello, allowed=["http://localhost:3000/"])) as server:
        (reply,) = await server.exchange(get("/", "Origin: http://localhost:3000", "Connection: close"))
        assert reply.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert reply.headers["vary"] == "Origin"
        assert reply.headers["access-control-expose-headers"] == "request-id, x-request-id"
        (reply,) = await server.exchange(PREFLIGHT % b"http://localhost:3000")
        assert reply.status == 204
        assert reply.headers["access-control-allow-headers"] == "content-type, x-mine"
        assert "POST" in reply.headers["access-control-allow-methods"]
        for foreign in (b"http://localhost:3001", b"null", b"http://localhost:3000.evil.example"):
            (reply,) = await server.exchange(PREFLIGHT % foreign)
            assert not [name for name in reply.headers if name.startswith("access-control")]


async def test_a_star_grants_every_origin() -> None:
    async with running(CrossOrigin(hello, allowed=["*"])) as server:
        for origin in ("http://a.example", "null"):
            (reply,) = await server.exchange(get("/", f"Origin: {origin}", "Connection: close"))
            assert reply.headers["access-control-allow-origin"] == origin
            (reply,) = await server.exchange(PREFLIGHT % origin.encode())
            assert reply.status == 204


async def test_a_page_may_read_every_field_of_ours() -> None:
    async def replying(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (name, b"0") for name in (b"Content-Type", b"x-stretto-anything", b"Retry-After", b"pragma")
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async with running(CrossOrigin(replying, allowed=["http://a.example"])) as server:
        (reply,) = await server.exchange(get("/", "Origin: http://a.example", "Connection: close"))
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    assert exposed == ["request-id", "retry-after", "x-request-id", "x-stretto-anything"]


# The service manager ---------------------------------------------------------------------------------------------------


@pytest.fixture
def manager(tmp_path: Path) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        yield sock


def test_notifications(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "30000000"})
    assert notifier.active
    assert notifier.watchdog_interval_s == 15.0
    notifier.ready("Serving x\non y")
    notifier.status("half way")
    notifier.watchdog()
    notifier.extend_timeout(2.5)
    notifier.reloading()
    notifier.stopping()
    said = [manager.recv(4096).decode() for _ in range(6)]
    assert said[0].split("\n") == ["READY=1", f"MAINPID={os.getpid()}", "STATUS=Serving x on y"]
    assert said[1:4] == ["STATUS=half way", "WATCHDOG=1", "EXTEND_TIMEOUT_USEC=2500000"]
    assert said[4].startswith("RELOADING=1\nMONOTONIC_USEC=")
    assert int(said[4].rpartition("=")[2]) > 0
    assert said[5] == "STOPPING=1"


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="abstract sockets are Linux's")
def test_notifications_to_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0stretto-test-{os.getpid()}")
        sock.settimeout(10)
        Notifier({"NOTIFY_SOCKET": f"@stretto-test-{os.getpid()}"}).watchdog()
        assert sock.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    "environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:1:2"}, {"NOTIFY_SOCKET": "@"}]
)
def test_without_a_service_manager_nothing_happens(environ: dict[str, str]) -> None:
    notifier = Notifier({**environ, "WATCHDOG_USEC": "1000"})
    assert not notifier.active
    assert notifier.watchdog_interval_s is None
    notifier.ready()
    notifier.watchdog()


def test_a_manager_that_went_away_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()
    assert "READY" in caplog.text


def test_a_manager_with_a_full_queue_still_gets_to_hear_that_we_are_ready(
    manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    while "WATCHDOG" not in caplog.text:  # one is lost: the queue is full
        notifier.watchdog()
    telling = threading.Thread(target=notifier.ready)
    telling.start()
    while not manager.recv(4096).startswith(b"READY=1"):
        pass
    telling.join()


def test_a_watchdog_for_another_process_is_not_ours(manager: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "1000"}
    assert Notifier({**environ, "WATCHDOG_PID": "1"}).watchdog_interval_s is None
    assert Notifier({**environ, "WATCHDOG_PID": str(os.getpid())}).watchdog_interval_s == 0.0005
    assert Notifier({**environ, "WATCHDOG_USEC": "soon"}).watchdog_interval_s is None


# The request head --------------------------------------------------------------------------------------------------------


@given(
    target=st.binary(min_size=1, max_size=200),
    headers=st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.binary(max_size=60)), max_size=20),
)
def test_the_head_limit_counts_every_byte_of_the_wire(
    target: bytes, headers: list[tuple[bytes, bytes]]
) -> None:
    headers = [pair for pair in headers if pair[0] not in (b"content-length", b"transfer-encoding")]
    wire = (
        b"GET " + target + b" HTTP/1.1\r\n" + b"".join(n + b": " + v + b"\r\n" for n, v in headers) + b"\r\n"
    )

    def judge(limit: int) -> object:
        limits = Limits(header_bytes=limit)
        return judge_head(method=b"GET", target=target, http_version=b"1.1", headers=headers, limits=limits)

    assert judge(len(wire)) is None
    assert judge(len(wire) - 1) is not None


# hypercorn -----------------------------------------------------------------------------------------------------------------


def test_hypercorn_is_the_version_whose_internals_are_overridden() -> None:
    assert version("hypercorn") == "0.18.0"


def test_hypercorn_still_has_the_names_that_are_overridden() -> None:
    from hypercorn.protocol.h11 import H11Protocol
    from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
    from hypercorn.trio.task_group import TaskGroup
    from hypercorn.trio.tcp_server import TCPServer

    signatures = {
        TCPServer.run: ["self"],
        TCPServer.protocol_send: ["self", "event"],
        TCPServer._read_data: ["self"],
        TCPServer._close: ["self"],
        TCPServer.__init__: ["self", "app", "config", "context", "state", "stream"],
        TaskGroup.spawn_app: ["self", "app", "config", "scope", "send"],
        HTTPStream.app_send: ["self", "message"],
        HTTPStream._send_error_response: ["self", "status_code"],
        H11Protocol._create_stream: ["self", "request"],
        H11Protocol._send_h11_event: ["self", "event"],
        H11Protocol._maybe_recycle: ["self"],
        H11Protocol._close_stream: ["self"],
        H11Protocol.stream_send: ["self", "event"],
    }
    for function, parameters in signatures.items():
        assert list(inspect.signature(function).parameters) == parameters, function.__qualname__
    assert {state.name for state in ASGIHTTPState} == {"REQUEST", "RESPONSE", "TRAILERS", "CLOSED"}
    assert "_nursery" in TaskGroup.__init__.__code__.co_names


def test_hypercorn_is_imported_by_two_modules_only() -> None:
    import stretto

    root = Path(stretto.__file__).parent
    users = {
        str(path.relative_to(root)) for path in root.rglob("*.py") if "hypercorn" in path.read_text() and any(
            line.startswith(("import hypercorn", "from hypercorn")) for line in path.read_text().splitlines()
        )
    }  # fmt: skip
    assert users == {"serving/connection.py", "serving/guard.py"}
