"""Bytes that must not hurt: each fault is sent raw, and afterwards the server still answers and has leaked nothing."""

from __future__ import annotations

import json
import logging

import h11
import pytest
import trio
import trio.testing
from starlette.types import Receive, Scope, Send

from support.serving_server import PATIENCE_S, get, hello, parse_replies, post, running

WEBSOCKET = get(
    "/",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
TLS_HELLO = bytes.fromhex("160301007a010000760303") + bytes(range(120))

ATTACKS = {
    "websocket": (WEBSOCKET, {200}),
    "websocket and a trailing byte": (WEBSOCKET + b"\x81", {200}),
    "garbage": (b"\x00\xff\xfe garbage\r\n\r\n", {400}),
    "text that is no HTTP": (b"hello there\r\n\r\n", {400}),
    "TLS hello": (TLS_HELLO, {400}),
    "h2c prior knowledge": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0", {505}),
    "h2c upgrade": (
        get("/", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        {200},
    ),
    "HTTP/3.0": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", {505}),
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", {400}),
    "two Hosts": (get("/", "Host: other"), {400}),
    "non-ASCII Host": ("GET / HTTP/1.1\r\nHost: ünï.example\r\n\r\n".encode(), {200}),
    "non-ASCII target": ("GET /ü HTTP/1.1\r\nHost: x\r\n\r\n".encode(), {400}),
    "bad percent escape": (get("/%ff%zz"), {200}),
    "CONNECT": (b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", {501}),
    "CL and TE": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        {400},
    ),
    "TE in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    "unknown TE": (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", {501}),
    "two lengths": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", {400}),
    "negative length": (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", {400}),
    "5000-digit length": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        {400, 413},
    ),
    "bad chunk": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
        {400},
    ),
    "endless chunk head": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"a" * 20_000,
        {400, 431},
    ),
    "20 KB of headers in one packet": (get("/", "X-Big: " + "a" * 20_000), {431}),
    "20 KB of small headers": (get("/", *[f"X-{n}: {'a' * 30}" for n in range(500)]), {431}),
    "200 KB of headers": (get("/", "X-Big: " + "a" * 200_000), {431}),
    "endless request line": (b"GET /" + b"a" * 200_000, {431}),
    "header injection": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00c\r\n\r\n", {400}),
    "folded header": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", {200, 400}),
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_attack_is_answered_and_harms_nobody(name: str) -> None:
    attack, allowed = ATTACKS[name]
    async with running(
        hello, header_bytes=16 * 1024, keep_alive_s=0.2, header_timeout_s=0.5, linger_s=0.2
    ) as server:
        async with await server.connect() as client:
            await client.send(attack)
            replies = parse_replies(await client.read_all())
        assert replies, "no reply"
        assert {reply.status for reply in replies[:1]} <= allowed
        for reply in replies:
            assert reply.complete
            if reply.status >= 400:
                assert reply.headers["connection"] == "close"
                assert reply.headers["content-type"] == "application/json"
                assert reply.headers["x-request-id"].startswith("req-")
                error = json.loads(reply.body)["error"]
                assert set(error) == {"message", "type", "param", "code"}
        assert (await server.get("/alive")).body == b"GET /alive 0"
        assert server.counters.failed_total == 0


async def test_every_prefix_of_a_request_may_be_all_there_is() -> None:
    request = post(b'{"a": 1}', "Content-Type: application/json")
    async with running(hello) as server:
        for cut in range(len(request)):
            async with await server.connect() as client:
                await client.send(request[:cut])
                await client.half_close()
                await client.read_all()
        await server.wait_connections(0)
        assert (await server.get()).status == 200
        assert server.counters.failed_total == 0


async def test_a_request_may_come_byte_by_byte() -> None:
    async with running(hello) as server:
        async with await server.connect() as client:
            for byte in post(b"hello", "Connection: close"):
                await client.send(bytes([byte]))
            (reply,) = parse_replies(await client.read_all())
        assert reply.body == b"POST / 5"


async def test_reset_in_the_middle_of_a_body() -> None:
    seen = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        seen.set()

    async with running(app) as server:
        client = await server.connect()
        await client.send(post(b"x" * 1000)[:-500])
        await server.wait_connections(1)
        client.reset()
        with trio.fail_after(PATIENCE_S):
            await seen.wait()
        await server.wait_connections(0)


@pytest.mark.parametrize("reset", [True, False])
async def test_a_client_that_goes_is_noticed_before_and_during_the_reply(reset: bool) -> None:
    started = trio.Event()
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        if scope["path"] == "/during":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        started.set()
        seen.append((await receive())["type"])
        assert (await receive())["type"] == "http.disconnect"  # and it stays so
        # What is sent to nobody raises nothing.
        await send({"type": "http.response.body", "body": b"y", "more_body": True})

    async with running(app) as server:
        for path in ("/before", "/during"):
            started = trio.Event()
            client = await server.connect()
            await client.send(get(path))
            with trio.fail_after(PATIENCE_S):
                await started.wait()
            if reset:
                client.reset()
            else:
                await client.stream.aclose()
            await server.wait_connections(0)
        assert seen == ["http.disconnect"] * 2


async def test_a_gone_client_is_seen_by_polling_in_a_cancelled_scope() -> None:
    """Frameworks ask ``is_disconnected`` that way."""
    waiting = trio.Event()
    go_on = trio.Event()
    polled: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        waiting.set()
        await go_on.wait()
        with trio.CancelScope() as scope_:
            scope_.cancel()
            polled.append((await receive())["type"])

    async with running(app) as server:
        client = await server.connect()
        await client.send(get())
        with trio.fail_after(PATIENCE_S):
            await waiting.wait()
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.02)
        go_on.set()
        await server.wait_connections(0)
    assert polled == ["http.disconnect"]


async def test_a_half_closed_client_still_gets_a_short_reply() -> None:
    async with running(hello) as server:
        async with await server.connect() as client:
            await client.send(get("/a") + get("/b"))
            await client.half_close()
            replies = parse_replies(await client.read_all())
    assert [reply.body for reply in replies] == [b"GET /a 0", b"GET /b 0"]


async def test_half_close_in_the_middle_of_a_body_is_refused() -> None:
    async with running(hello) as server:
        async with await server.connect() as client:
            await client.send(post(b"12345")[:-2])
            await client.half_close()
            (reply,) = parse_replies(await client.read_all())
    assert reply.status == 400


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running(hello) as server:
        wire = get("/1") + post(b"abc", target="/2") + get("/3") + get("/4") + get("/5", "Connection: close")
        replies = await server.exchange(wire)
        assert [reply.body for reply in replies] == [
            b"GET /1 0", b"POST /2 3", b"GET /3 0", b"GET /4 0", b"GET /5 0",
        ]  # fmt: skip
        assert server.counters.accepted_total == 1


async def test_pipelining_far_ahead_is_bounded_and_loses_nothing() -> None:
    """More is sent than the server holds; it must read on only as it answers."""
    gate = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await hello(scope, receive, send)

    count = 600
    padding = "X-Padding: " + "a" * 500
    async with running(app) as server:
        async with await server.connect() as client:
            async with trio.open_nursery() as nursery:

                async def write() -> None:
                    for number in range(count):
                        await client.stream.send_all(get(f"/{number}", padding))
                    await client.stream.send_all(get("/last", "Connection: close"))

                nursery.start_soon(write)
                await server.wait_connections(1)
                gate.set()
                data = await client.read_all()
        replies = parse_replies(data)
        assert [reply.body for reply in replies[:count]] == [b"GET /%d 0" % n for n in range(count)]
        assert replies[-1].body == b"GET /last 0"


async def test_disconnect_is_seen_behind_pipelined_requests() -> None:
    first = trio.Event()
    gone = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        first.set()
        if (await receive())["type"] == "http.disconnect":
            gone.set()

    async with running(app) as server:
        client = await server.connect()
        await client.send(get("/1") + get("/2"))
        with trio.fail_after(PATIENCE_S):
            await first.wait()
            client.reset()
            await gone.wait()
        await server.wait_connections(0)


async def test_keep_alive_reuse_and_head() -> None:
    async with running(hello) as server:
        async with await server.connect() as client:
            for number in range(3):
                await client.send(get(f"/{number}"))
                assert b"GET /%d 0" % number in await client.read_until(b" 0")
            await client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await client.read_until(b"\r\n\r\n")
            assert head.endswith(b"\r\n\r\n")
            assert b"content-length: 8" in head  # of "HEAD / 0", which is not sent
            await client.send(get("/after", "Connection: close"))
            (reply,) = parse_replies(await client.read_all())
            assert reply.body == b"GET /after 0"
        assert server.counters.accepted_total == 1
        assert server.counters.requests_total == 5


async def test_a_lower_case_method_is_passed_as_it_is() -> None:
    async with running(hello) as server:
        (reply,) = await server.exchange(b"get / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert reply.body == b"get / 0"


async def test_head_refused_gets_no_body() -> None:
    async with running(hello, header_bytes=1024) as server:
        async with await server.connect() as client:
            await client.send(b"HEAD / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 2000 + b"\r\n\r\n")
            data = await client.read_all()
    assert data.startswith(b"HTTP/1.1 431")
    assert data.endswith(b"\r\n\r\n")


async def test_application_that_fails_before_its_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/boom":
            raise RuntimeError("secret detail")
        await hello(scope, receive, send)

    async with running(app) as server:
        with caplog.at_level(logging.ERROR):
            replies = await server.exchange(get("/boom"))
        assert [reply.status for reply in replies] == [500]
        assert json.loads(replies[0].body)["error"]["code"] == "internal_error"
        assert b"secret" not in replies[0].body
        assert "secret detail" in caplog.text
        assert (await server.get()).status == 200
        assert server.counters.failed_total == 0


async def test_application_that_fails_in_its_reply(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        async with trio.open_nursery() as nursery:  # an exception group, as most failures are
            nursery.start_soon(trio.sleep_forever)
            raise RuntimeError("boom")

    async with running(app) as server:
        (reply,) = await server.exchange(get())
        assert reply.body == b"half"
        assert not reply.complete
        assert "boom" in caplog.text


@pytest.mark.parametrize(
    "fault", ["too much", "too little", "twice", "body first", "silent", "bad header", "after the end"]
)
async def test_application_that_breaks_the_rules(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        length = [(b"content-length", b"4")]
        start = {"type": "http.response.start", "status": 200, "headers": length}
        if fault == "silent":
            return
        if fault == "bad header":
            await send({**start, "headers": [(b"a\nb", b"c\r\nd")]})
        if fault != "body first":
            await send(start)
        if fault == "twice":
            await send(start)
        body = {"too much": b"12345", "too little": b"1"}.get(fault, b"1234")
        await send({"type": "http.response.body", "body": body})
        if fault == "after the end":
            await send({"type": "http.response.body", "body": b"more"})

    async with running(app, keep_alive_s=0.1) as server:
        replies = await server.exchange(get())
        if fault in ("silent", "body first"):
            assert [reply.status for reply in replies] == [500]
        elif fault == "after the end":
            assert [reply.body for reply in replies] == [b"1234"]
        await server.wait_connections(0)
        assert server.counters.failed_total == 0


def test_h11_is_what_reads_replies_here() -> None:
    """The tests' own reader must tell a cut reply from a whole one."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    assert [reply.complete for reply in parse_replies(whole)] == [True]
    assert [reply.complete for reply in parse_replies(whole[:-1])] == [False]
    assert h11.__version__
