"""The way out: what goes on, what ends with a last word, and that nobody can hold the server up."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import pytest
import trio
import trio.testing
from starlette.types import Receive, Scope, Send

from stretto.errors import Unavailable
from stretto.serving import ClientDisconnected, Drain, EventStream, drain_of, run_until_disconnect
from support.serving_server import (
    PATIENCE_S,
    RawClient,
    RunningServer,
    get,
    hello,
    parse_replies,
    post,
    running,
)

GRACE = {"drain_grace_s": 0.3, "end_margin_s": 0.3}


async def stop(server: RunningServer) -> float:
    """Stop the server; how long it took."""
    began = trio.current_time()
    server.stopping.set()
    with trio.fail_after(PATIENCE_S):
        await server.ended.wait()
    return trio.current_time() - began


async def test_listeners_and_idle_connections_close_at_once() -> None:
    entered, finish = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            entered.set()
            await finish.wait()
        await hello(scope, receive, send)

    async with running(app, drain_grace_s=8.0) as server:
        async with (
            await server.connect() as idle,
            await server.connect() as used,
            await server.connect() as slow,
        ):
            await used.send(get())
            await used.read_until(b" 0")
            await slow.send(get("/slow"))
            await entered.wait()
            server.stopping.set()
            assert await idle.read_all() == b""
            assert await used.read_all() == b""
            with pytest.raises(OSError):  # noqa: PT011
                await server.connect()
            finish.set()
            (reply,) = parse_replies(await slow.read_all())
            assert reply.body == b"GET /slow 0"
            await server.ended.wait()


async def test_a_request_that_was_sent_before_the_stop_is_answered() -> None:
    clients: list[RawClient] = []

    def send_unseen() -> float:
        """Called at the stop, with no turn for the server's readers between this and the closing of idle connections."""
        for client in clients:
            assert os.write(client.stream.socket.fileno(), get())
        return 8.0

    async with running(hello, grace_s=send_unseen) as server:
        async with await server.connect() as unused, await server.connect() as used:
            await used.send(get())
            await used.read_until(b" 0")
            await server.wait_connections(2)
            await trio.testing.wait_all_tasks_blocked(0.02)
            clients += [unused, used]
            server.stopping.set()
            for client in clients:
                (reply,) = parse_replies(await client.read_all())
                assert reply.status == 200


async def test_who_has_only_just_connected_may_still_ask() -> None:
    async with running(hello, while_draining=trio.sleep_forever, first_request_s=8.0, **GRACE) as server:
        async with await server.connect() as client:
            await server.wait_connections(1)
            server.stopping.set()
            await trio.testing.wait_all_tasks_blocked(0.02)
            await client.send(get())
            (reply,) = parse_replies(await client.read_all())
            assert reply.status == 200


async def test_while_work_goes_on_elsewhere_newcomers_get_an_answer_each() -> None:
    elsewhere = trio.Event()
    async with running(hello, while_draining=elsewhere.wait, drain_grace_s=60.0, end_margin_s=0.3) as server:
        async with await server.connect() as idle:
            await server.wait_connections(1)
            server.stopping.set()
            assert await idle.read_all() == b""
        for _ in range(3):
            async with await server.connect() as late:
                await late.send(get() + get())
                assert [reply.status for reply in parse_replies(await late.read_all())] == [200]
        async with await server.connect() as silent:
            elsewhere.set()
            with trio.fail_after(PATIENCE_S):
                await server.ended.wait()
            assert await silent.read_all() == b""
        with pytest.raises(OSError):  # noqa: PT011
            await server.connect()


async def test_work_elsewhere_cannot_outlast_the_grace() -> None:
    async with running(hello, while_draining=trio.sleep_forever, **GRACE) as server:
        with trio.fail_after(PATIENCE_S):
            await stop(server)


async def test_the_stop_takes_no_longer_than_what_is_in_flight() -> None:
    async with running(hello, drain_grace_s=60.0) as server:
        await server.get()
        with trio.fail_after(PATIENCE_S):
            await stop(server)


async def test_a_body_may_still_arrive_within_the_grace() -> None:
    async with running(hello, drain_grace_s=8.0) as server:
        async with await server.connect() as client:
            wire = post(b"hello")
            await client.send(wire[:-2])
            await server.wait_connections(1)
            await trio.testing.wait_all_tasks_blocked(0.02)
            server.stopping.set()
            await client.send(wire[-2:])
            (reply,) = parse_replies(await client.read_all())
            assert reply.body == b"POST / 5"
            assert reply.headers.get("connection", "close") == "close"


async def test_a_stalled_reader_cannot_prolong_it() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})

    async with running(app, write_timeout_s=60.0, **GRACE) as server:
        clients = [await server.connect() for _ in range(3)]
        for client in clients:
            await client.send(get())
            await client.read_until(b"xxx")
        with trio.fail_after(PATIENCE_S):
            await stop(server)
        for client in clients:
            client.reset()


async def test_an_application_that_ignores_everything_is_cut() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    async with running(app, **GRACE) as server:
        async with await server.connect() as client:
            await client.send(get())
            await server.wait_connections(1)
            await stop(server)
            assert await client.read_all() == b""


async def test_the_grace_can_be_decided_at_the_stop() -> None:
    from stretto.serving import Limits, bind_tcp
    from stretto.serving.server import serve

    entered = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await drain_of(scope).ending.wait()
        await hello(scope, receive, send)

    stopping = trio.Event()
    sock = bind_tcp("127.0.0.1", 0)
    port = sock.getsockname()[1]

    async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(
            app,
            [sock],
            Limits(drain_grace_s=600),
            stopping=stopping,
            grace_s=lambda: 0.0,
            task_status=task_status,
        )

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(run)
            assert addresses == [f"http://127.0.0.1:{port}"]
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(get())
            await entered.wait()
            stopping.set()
            data = b""
            while piece := await stream.receive_some():
                data += piece
            assert data.endswith(b"GET / 0")
            await stream.aclose()


async def test_cancelling_serve_stops_at_once() -> None:
    from stretto.serving import Limits, bind_tcp
    from stretto.serving.server import serve

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await trio.sleep_forever()

    sock = bind_tcp("127.0.0.1", 0)

    async def run(*, task_status: trio.TaskStatus[list[str]]) -> None:
        await serve(app, [sock], Limits(drain_grace_s=600), stopping=trio.Event(), task_status=task_status)

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            stream = await trio.open_tcp_stream(*sock.getsockname())
            await stream.send_all(get())
            await trio.testing.wait_all_tasks_blocked(0.02)
            nursery.cancel_scope.cancel()
        assert await stream.receive_some() == b""
        await stream.aclose()


def error_frame(error: Exception) -> bytes:
    return f"data: error {type(error).__name__} {error}\n\n".encode()


def streaming(frames: AsyncGenerator[bytes, None], ping_interval_s: float = 60.0) -> EventStream:
    return EventStream(frames, error_frame=error_frame, ping_interval_s=ping_interval_s)


async def test_a_stream_gets_its_grace_then_an_error_event_then_the_end() -> None:
    closed = trio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        try:
            yield b"data: 1\n\n"
            await trio.sleep_forever()
        finally:
            closed.set()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await streaming(frames())(scope, receive, send)

    async with running(app, **GRACE) as server:
        async with await server.connect() as client:
            await client.send(get())
            data = await client.read_until(b"data: 1\n\n")
            await stop(server)
            (reply,) = parse_replies(data + await client.read_all())
            assert reply.complete
            assert reply.body.startswith(b"data: 1\n\ndata: error Unavailable The server is shutting down")
            assert closed.is_set()


async def test_a_stream_that_ends_within_the_grace_ends_as_usual() -> None:
    stopping = trio.Event()

    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        await stopping.wait()
        yield b"data: 2\n\n"

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal stopping
        stopping = drain_of(scope).stopping
        await receive()
        await streaming(frames())(scope, receive, send)

    async with running(app, drain_grace_s=8.0) as server:
        async with await server.connect() as client:
            await client.send(get())
            data = await client.read_until(b"data: 1\n\n")
            server.stopping.set()
            (reply,) = parse_replies(data + await client.read_all())
            assert (reply.body, reply.complete) == (b"data: 1\n\ndata: 2\n\n", True)


async def test_a_plain_reply_is_refused_properly_when_the_grace_ends() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        with pytest.raises(Unavailable) as caught:
            await drain_of(scope).run(trio.sleep_forever)
        body = caught.value.code.encode()
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": caught.value.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with running(app, **GRACE) as server:
        async with await server.connect() as client:
            await client.send(get())
            await server.wait_connections(1)
            await stop(server)
            (reply,) = parse_replies(await client.read_all())
            assert (reply.status, reply.body) == (503, b"draining")


async def test_drain_run_passes_results_and_errors_through() -> None:
    drain = Drain()

    async def fine() -> int:
        return 7

    async def fails() -> int:
        raise KeyError("x")

    assert await drain.run(fine) == 7
    with pytest.raises(KeyError):
        await drain.run(fails)
    drain.ending.set()
    with pytest.raises(Unavailable):
        await drain.run(trio.sleep_forever)


async def test_run_until_disconnect_cancels_and_passes_through() -> None:
    channel_in, channel_out = trio.open_memory_channel[dict[str, str]](5)

    async def send(message: object) -> None:
        if message["type"] == "http.response.body":  # type: ignore[index]
            await channel_in.send({"type": "http.disconnect"})
            await trio.testing.wait_all_tasks_blocked()

    async def fine(send_: Send) -> int:
        await send_({"type": "http.response.body", "body": b""})  # its end brings the disconnect
        return 7

    async def fails(send_: Send) -> None:
        raise KeyError("x")

    async def waits(send_: Send) -> None:
        await channel_in.send({"type": "http.disconnect"})
        await trio.sleep_forever()

    with trio.fail_after(PATIENCE_S):
        assert await run_until_disconnect(channel_out.receive, send, fine) == 7
        with pytest.raises(KeyError):
            await run_until_disconnect(channel_out.receive, send, fails)
        with pytest.raises(ClientDisconnected):
            await run_until_disconnect(channel_out.receive, send, waits)
