"""Every bound of ``Limits`` holds on the wire, and what it cuts leaks nothing."""

from __future__ import annotations

import json
import logging
import os
import resource

import pytest
import trio
import trio.testing
from starlette.types import Message, Receive, Scope, Send

from stretto.serving import Limits
from support.serving_server import PATIENCE_S, get, hello, parse_replies, post, running

MIB = 1024 * 1024


async def never_reads(scope: Scope, receive: Receive, send: Send) -> None:
    """Waits for the client to go, as an application in its own send() would."""
    while (await receive())["type"] != "http.disconnect":
        await trio.sleep_forever()


@pytest.mark.parametrize("values", [{"max_connections": 0}, {"write_timeout_s": -1.0}, {"body_bytes": 0}])
def test_senseless_limits_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        Limits(**values)


async def test_declared_body_over_the_limit_is_refused_before_it_comes() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("must not be called")

    async with running(app, body_bytes=1000) as server:
        async with await server.connect() as client:
            await client.send(post(b"x" * 1001)[:-1001])
            (reply,) = parse_replies(await client.read_all())
        assert (reply.status, reply.headers["x-should-retry"]) == (413, "false")
        assert json.loads(reply.body)["error"]["code"] == "request_too_large"
        assert "1000" in json.loads(reply.body)["error"]["message"]


async def test_body_at_the_limit_is_taken() -> None:
    async with running(hello, body_bytes=1000) as server:
        (reply,) = await server.exchange(post(b"x" * 1000, "Connection: close"))
        assert reply.body == b"POST / 1000"


async def test_chunked_body_over_the_limit_is_counted_and_refused() -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            told.append(message["type"])
            if message["type"] == "http.disconnect":
                return

    async with running(app, body_bytes=1000) as server:
        async with await server.connect() as client:
            await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            with trio.fail_after(PATIENCE_S):
                try:
                    while True:
                        await client.stream.send_all(b"64\r\n" + b"x" * 100 + b"\r\n")
                except trio.BrokenResourceError:
                    pass
            await server.wait_connections(0)
        assert told[-1] == "http.disconnect"
        assert server.counters.refused_total == 1


async def test_client_that_sends_a_huge_body_can_read_its_413() -> None:
    """It writes on for a while before it reads, as most clients do."""
    async with running(hello, body_bytes=1000, linger_s=5.0) as server:
        async with await server.connect() as client:
            await client.send(post(b"x" * (8 * MIB)))
            (reply,) = parse_replies(await client.read_all())
        assert reply.status == 413


async def test_many_refused_uploads_leave_nothing() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses by itself, without reading the body."""
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        assert (await receive())["type"] == "http.disconnect"

    statuses: list[int] = []
    async with running(app, linger_s=5.0) as server:

        async def upload() -> None:
            async with await server.connect() as client:
                await client.send(post(b"x" * MIB))
                (reply,) = parse_replies(await client.read_all())
                assert reply.headers["connection"] == "close"
                statuses.append(reply.status)

        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(upload)
        await server.wait_connections(0)
    assert statuses == [413] * 30


async def test_a_body_nobody_reads_holds_the_client_back() -> None:
    taken = trio.Event()
    finish = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        taken.set()
        await finish.wait()
        await hello(scope, receive, send)

    body = b"x" * (24 * MIB)
    sent = 0
    async with running(app, body_timeout_s=2.0, body_total_timeout_s=2.0) as server:
        async with await server.connect() as client, trio.open_nursery() as nursery:

            async def write() -> None:
                nonlocal sent
                wire = post(body, "Connection: close")
                for start in range(0, len(wire), 65536):
                    await client.stream.send_all(wire[start : start + 65536])
                    sent += 65536

            nursery.start_soon(write)
            await taken.wait()
            await trio.testing.wait_all_tasks_blocked(2.2)  # longer than both time limits: the wait is ours
            assert sent < len(body)
            finish.set()
            (reply,) = parse_replies(await client.read_all())
        assert reply.body == b"POST / %d" % len(body)


async def test_slow_headers_are_cut() -> None:
    async with running(hello, header_timeout_s=0.3) as server:
        async with await server.connect() as client:
            # One byte at a time, each well within the limit: it is the whole that counts.
            with trio.fail_after(PATIENCE_S):
                try:
                    for byte in b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Slow: 1\r\n" * 1000:
                        await client.stream.send_all(bytes([byte]))
                        with trio.move_on_after(0.02):
                            data = await client.stream.receive_some()
                            break
                except trio.BrokenResourceError:
                    pytest.fail("cut without a word")
            (reply,) = parse_replies(data + await client.read_all())
        assert (reply.status, reply.headers["x-should-retry"]) == (408, "true")
        assert json.loads(reply.body)["error"]["code"] == "request_timeout"


async def test_a_hundred_slow_headers_do_not_stop_service() -> None:
    async with running(hello, header_timeout_s=30.0, drain_grace_s=0.2) as server:
        clients = [await server.connect() for _ in range(100)]
        for client in clients:
            await client.send(b"GET / HTTP/1.1\r\n")
        assert (await server.get()).status == 200
        for client in clients:
            client.reset()
        await server.wait_connections(0)


async def test_a_silent_connection_is_closed_without_a_word() -> None:
    async with running(hello, header_timeout_s=0.2) as server:
        async with await server.connect() as client:
            assert await client.read_all() == b""


async def test_an_idle_connection_is_closed_after_its_reply() -> None:
    async with running(hello, keep_alive_s=0.2) as server:
        async with await server.connect() as client:
            await client.send(get("/a"))
            (reply,) = parse_replies(await client.read_all())
            assert reply.body == b"GET /a 0"


async def test_a_body_that_stops_coming_is_cut() -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told.append((await receive())["type"])
        told.append((await receive())["type"])

    async with running(app, body_timeout_s=0.3) as server:
        async with await server.connect() as client:
            await client.send(post(b"x" * 100)[:-50])
            (reply,) = parse_replies(await client.read_all())
        assert reply.status == 408
        await server.wait_connections(0)
        assert told == ["http.request", "http.disconnect"]


async def test_a_body_that_trickles_is_cut_in_the_end() -> None:
    async with running(hello, body_timeout_s=5.0, body_total_timeout_s=0.4) as server:
        async with await server.connect() as client:
            await client.send(post(b"x" * 1000)[:-1000])
            data = b""
            with trio.fail_after(PATIENCE_S):
                while not data:
                    await client.stream.send_all(b"x")
                    with trio.move_on_after(0.02):
                        data = await client.stream.receive_some()
            (reply,) = parse_replies(data + await client.read_all())
        assert reply.status == 408


async def test_a_long_wait_for_the_reply_is_not_cut() -> None:
    """No read limit counts while the client merely waits."""
    go_on = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        with trio.move_on_after(1.0):
            assert (await receive())["type"] == "nothing may come here"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        go_on.set()

    short = {"header_timeout_s": 0.2, "body_timeout_s": 0.2, "body_total_timeout_s": 0.2, "keep_alive_s": 0.2}
    async with running(app, write_timeout_s=0.2, **short) as server:
        async with await server.connect() as client:
            await client.send(post(b"x"))
            (reply,) = parse_replies(await client.read_all())
            assert reply.body == b"ok"


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    outcome: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                outcome.append("disconnect")
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while True:
                await send({"type": "http.response.body", "body": b"x" * MIB, "more_body": True})

    async with running(app, write_timeout_s=0.3) as server:
        async with await server.connect() as client:
            await client.send(get())
            await server.wait_connections(1)
            await server.wait_connections(0)
            assert outcome == ["disconnect"]
            assert server.counters.timed_out_total == 1


async def test_a_slow_reader_of_a_large_reply_is_not_cut_off() -> None:
    """The write limit is for each piece, not for the whole."""
    size = 12 * MIB

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]}
        )
        await send({"type": "http.response.body", "body": b"x" * size})

    async with running(app, write_timeout_s=0.5) as server:
        async with await server.connect() as client:
            await client.send(get("/", "Connection: close"))
            got = 0
            with trio.fail_after(PATIENCE_S):
                for _ in range(12):  # together longer than the limit
                    await trio.testing.wait_all_tasks_blocked(0.1)
                    for _ in range(20):
                        got += len(await client.stream.receive_some(MIB // 20))
                got += len(await client.read_all())
            assert got > size


@pytest.mark.parametrize("asks", [True, False])
async def test_100_continue_is_said_only_when_the_body_is_wanted(asks: bool) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if asks:
            await hello(scope, receive, send)
        else:
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    async with running(app, body_timeout_s=0.4) as server:
        async with await server.connect() as client:
            await client.send(post(b"hello", "Expect: 100-continue", "Connection: close")[:-5])
            if asks:
                early = await client.read_until(b"\r\n\r\n")
                assert early.startswith(b"HTTP/1.1 100")
                await client.send(b"hello")
                (reply,) = parse_replies(early + await client.read_all())
                assert (reply.informational, reply.body) == ([100], b"POST / 5")
            else:
                (reply,) = parse_replies(await client.read_all())
                assert (reply.informational, reply.status) == ([], 401)
                assert reply.headers["connection"] == "close"


async def test_100_continue_is_not_said_for_a_body_over_the_limit() -> None:
    async with running(hello, body_bytes=3) as server:
        async with await server.connect() as client:
            await client.send(post(b"hello", "Expect: 100-continue")[:-5])
            (reply,) = parse_replies(await client.read_all())
            assert (reply.informational, reply.status) == ([], 413)


async def test_connections_over_the_cap_are_turned_away_cheaply() -> None:
    async with running(hello, max_connections=5) as server:
        inside = [await server.connect() for _ in range(5)]
        await server.wait_connections(5)
        statuses: list[int] = []

        async def knock() -> None:
            async with await server.connect() as client:
                await client.send(get())
                for reply in parse_replies(await client.read_all()):
                    statuses.append(reply.status)
                    assert reply.headers["retry-after"] == "1"
                    assert json.loads(reply.body)["error"]["code"] == "too_many_connections"

        async with trio.open_nursery() as nursery:
            for _ in range(60):
                nursery.start_soon(knock)
        assert statuses == [503] * 60
        await inside[0].send(get("/", "Connection: close"))
        (reply,) = parse_replies(await inside[0].read_all())
        assert reply.status == 200
        await server.wait_connections(4)
        assert (await server.get()).status == 200
        for client in inside:
            await client.stream.aclose()
        assert server.counters.stats()["turned_away_total"] == 60


async def test_a_crowd_over_the_cap_leaks_nothing() -> None:
    async with running(hello, max_connections=3) as server:
        crowd = [await server.connect() for _ in range(103)]
        await server.wait_connections(3)
        with trio.fail_after(PATIENCE_S):
            while server.counters.turned_away_total < 100:
                await trio.testing.wait_all_tasks_blocked()
        for client in crowd:
            client.reset()
        await server.wait_connections(0)
        assert (await server.get()).status == 200


async def test_running_out_of_descriptors_is_survived(caplog: pytest.LogCaptureFixture) -> None:
    async with running(hello, header_timeout_s=60.0) as server:
        held = [await server.connect() for _ in range(5)]
        await server.wait_connections(5)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = [trio.socket.socket() for _ in range(3)]
        try:
            with caplog.at_level(logging.ERROR):
                highest = max(int(name) for name in os.listdir("/proc/self/fd"))
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
                fillers = _fill_descriptors()
                for sock in waiting:
                    await sock.connect(("127.0.0.1", server.port))
                with trio.fail_after(PATIENCE_S):
                    while "Cannot accept" not in caplog.text:
                        await trio.testing.wait_all_tasks_blocked(0.01)
                for _ in range(4):  # it tries again every 0.1 s
                    await trio.testing.wait_all_tasks_blocked(0.06)
                for filler in fillers:
                    os.close(filler)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert caplog.text.count("Cannot accept") == 1
        await server.wait_connections(8)
        for sock in waiting:
            sock.close()
        for client in held:
            await client.stream.aclose()
        assert (await server.get()).status == 200


def _fill_descriptors() -> list[int]:
    fillers = []
    while True:
        try:
            fillers.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            return fillers


@pytest.mark.parametrize("close", [True, False])
async def test_the_end_of_a_stream_with_a_watcher_leaks_nothing(close: bool) -> None:
    """A task that waits for the disconnect and cancels the reply must not cut the server's own clean-up."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(3):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    extra = ("Connection: close",) if close else ()
    async with running(app, keep_alive_s=0.2) as server:
        for _ in range(20):
            async with await server.connect() as client:
                await client.send(get("/", *extra))
                (reply,) = parse_replies(await client.read_all())
                assert (reply.body, reply.complete) == (b"xxx", True)
        await server.wait_connections(0)


async def test_parts_of_a_short_reply_are_written_together() -> None:
    async with running(hello) as server:
        async with await server.connect() as client:
            await client.send(get())
            first = await client.stream.receive_some()
            assert first.endswith(b"GET / 0")


async def test_the_head_of_a_stream_goes_out_with_its_first_message() -> None:
    go_on = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        empty: Message = {"type": "http.response.body", "body": b"", "more_body": True}
        await send(empty)
        await go_on.wait()
        await send({"type": "http.response.body", "body": b"x"})

    async with running(app) as server:
        async with await server.connect() as client:
            await client.send(get())
            assert (await client.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            go_on.set()
            await client.read_until(b"0\r\n\r\n")
