"""The async twin, on trio and on asyncio."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Awaitable, Callable

import anyio
import pytest

import clientlib
from support.clientlib_server import (
    GUARD_S,
    MODELS,
    STREAM_HEAD,
    Peer,
    ScriptedServer,
    answer_events,
    chunk,
    completion,
    daemon,
    delta_event,
    error,
    event,
    reply,
)

Main = Callable[[ScriptedServer], Awaitable[None]]
BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def run(
    main: Main, backend: str, script: Callable[[Peer], None] = daemon, *, tcp: bool = False
) -> ScriptedServer:
    """Run ``main`` against a server with ``script``, within GUARD_S."""

    async def guarded(server: ScriptedServer) -> None:
        with anyio.fail_after(GUARD_S):
            await main(server)

    with ScriptedServer(script, tcp=tcp) as server:
        anyio.run(guarded, server, backend=backend)
    return server


async def seen(happened: threading.Event) -> None:
    """Wait for the server's thread without stopping the event loop."""
    assert await anyio.to_thread.run_sync(happened.wait, GUARD_S)


class Held:
    """Sends ``head``, then nothing; ``asked`` and ``gone`` tell that a request came and that the client has closed."""

    def __init__(self, head: bytes) -> None:
        self._head = head
        self.asked, self.gone = threading.Event(), threading.Event()

    def __call__(self, peer: Peer) -> None:
        if peer.request():
            peer.send(self._head)
            self.asked.set()
            peer.wait_closed()
            self.gone.set()


def test_the_twins_have_the_same_methods() -> None:
    for mine, twin in ((clientlib.Client, clientlib.AsyncClient), (clientlib.Admin, clientlib.AsyncAdmin)):
        for name, method in inspect.getmembers(mine, inspect.isfunction):
            if name.startswith("_") and name != "__init__":
                continue
            other = getattr(twin, {"close": "aclose"}.get(name, name))
            here, there = inspect.signature(method).parameters, inspect.signature(other).parameters
            assert [(p.name, p.kind) for p in here.values()] == [(p.name, p.kind) for p in there.values()], (
                name
            )
            plain = name in ("__init__", "stream", "chat_stream", "stats")
            assert inspect.iscoroutinefunction(other) is not plain, name


@BACKENDS
def test_every_call(backend: str) -> None:
    async def main(server: ScriptedServer) -> None:
        async with clientlib.AsyncClient(server.path) as client:
            assert await client.generate("one", system="Be.", top_k=3) == "one"
            answer = await client.chat([{"role": "user", "content": "two"}], max_tokens=4)
            assert (answer.text, answer.usage) == ("two", clientlib.Usage(7, 3, 10, 4))
            async with client.stream("a b c") as pieces:
                assert pieces.request_id == "chatcmpl-0123"
                assert [piece async for piece in pieces] == ["a", " b", " c"]
                assert pieces.reply().text == pieces.text == "a b c"
            async with client.chat_stream([{"role": "user", "content": "a b"}]) as deltas:
                assert [delta.text async for delta in deltas] == ["a", " b", ""]
                assert deltas.finish_reason == "stop"
            assert "".join([piece async for piece in client.stream("no with")]) == "no with"
            assert [model.id for model in await client.models()] == ["tiny"]
            assert (await client.health()).ready
            assert (await client.status())["state"] == "ready"
            assert len(await client.requests()) == 1
            assert await client.cancel("chatcmpl-9") is True
            assert await client.admin.cancel("other") is False
            assert await client.drain() == {"state": "draining"}
            assert client.stats() == {"idle": 1}
            assert await client.stop(1) == {}
            assert repr(client) == f"AsyncClient({str(server.path)!r})"
        assert server.connections == 1

    run(main, backend)


@BACKENDS
def test_over_tcp_by_name(backend: str) -> None:
    async def main(server: ScriptedServer) -> None:
        url = server.base_url.replace("127.0.0.1", "localhost")
        async with clientlib.AsyncClient(base_url=url, api_key="k") as client:
            assert await client.generate("hello") == "hello"
        async with clientlib.AsyncClient(base_url="http://no-such-host.invalid:1") as client:
            with pytest.raises(clientlib.ConnectFailed):
                await client.health()

    server = run(main, backend, tcp=True)
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer k"}


@BACKENDS
def test_many_tasks(backend: str) -> None:
    async def main(server: ScriptedServer) -> None:
        answers: dict[str, str] = {}
        async with clientlib.AsyncClient(server.path) as client:

            async def work(worker: int) -> None:
                for call in range(10):
                    text = f"{worker} {call}"
                    async with client.stream(text) as pieces:
                        answers[text] = "".join([piece async for piece in pieces])

            async with anyio.create_task_group() as tasks:
                for worker in range(8):
                    tasks.start_soon(work, worker)
        assert len(answers) == 80
        assert all(text == answer for text, answer in answers.items())
        assert server.connections <= 16

    run(main, backend)


@BACKENDS
@pytest.mark.parametrize(
    "head",
    [b"", STREAM_HEAD, STREAM_HEAD + chunk(delta_event("Once"))],
    ids=["no head", "head", "in the middle"],
)
def test_cancelling_a_stream_closes_its_connection(backend: str, head: bytes) -> None:
    held = Held(head)

    async def main(server: ScriptedServer) -> None:
        client = clientlib.AsyncClient(server.path, model="tiny")
        pieces: list[str] = []

        async def read() -> None:
            # Without "async with": the cancellation alone has to do it.
            async for piece in client.stream("x"):
                pieces.append(piece)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await seen(held.asked)
            while head.endswith(b"\r\n") and b"Once" in head and not pieces:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await seen(held.gone)
        assert client.stats() == {"idle": 0}

    run(main, backend, held)


@BACKENDS
def test_cancelling_a_whole_call_closes_its_connection(backend: str) -> None:
    held = Held(b"")

    async def main(server: ScriptedServer) -> None:
        async with (
            clientlib.AsyncClient(server.path, model="tiny") as client,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(client.generate, "x")
            await seen(held.asked)
            tasks.cancel_scope.cancel()
        await seen(held.gone)

    run(main, backend, held)


@BACKENDS
def test_a_cancellation_is_seen_although_pieces_are_ready(backend: str) -> None:
    body = b"".join(chunk(piece) for piece in answer_events(["a"] * 50))
    held = Held(STREAM_HEAD + body[:-20])

    async def main(server: ScriptedServer) -> None:
        client = clientlib.AsyncClient(server.path, model="tiny")
        stream = client.stream("x")
        with anyio.CancelScope() as scope:
            async for _ in stream:
                scope.cancel()
        assert scope.cancelled_caught
        assert stream.text.startswith("a")
        await seen(held.gone)

    run(main, backend, held)


@BACKENDS
def test_leaving_the_block_early(backend: str) -> None:
    held = Held(STREAM_HEAD + chunk(delta_event("Once")))

    async def main(server: ScriptedServer) -> None:
        async with clientlib.AsyncClient(server.path, model="tiny") as client:
            async with client.stream("x") as pieces:
                assert await anext(pieces) == "Once"
            await seen(held.gone)
            with pytest.raises(clientlib.ConnectionLost):
                await anext(pieces)
            await pieces.aclose()

    run(main, backend, held)


@BACKENDS
def test_closing_from_another_task_wakes_the_reader(backend: str) -> None:
    held = Held(STREAM_HEAD)

    async def main(server: ScriptedServer) -> None:
        async with clientlib.AsyncClient(server.path, model="tiny") as client:
            stream = client.stream("x")
            codes: list[str] = []

            async def read() -> None:
                try:
                    await anext(stream)
                except clientlib.ConnectionLost as lost:
                    codes.append(lost.code)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read)
                await seen(held.asked)
                await stream.aclose()
            assert codes == ["stream_closed"]
            await seen(held.gone)

    run(main, backend, held)


@BACKENDS
def test_errors(backend: str) -> None:
    frame = event(error("engine_error", kind="server_error"))
    replies = [
        reply(error("queue_full"), status="429 Too Many Requests", headers={"Retry-After": "2"}),
        reply(completion("done")),
        reply(error("unsupported_value", param="top_k"), status="400 Bad Request"),
        STREAM_HEAD + chunk(delta_event("Once")) + chunk(frame),
    ]

    def script(peer: Peer) -> None:
        while replies and peer.request():
            peer.send(replies.pop(0))

    async def main(server: ScriptedServer) -> None:
        naps: list[float] = []

        async def sleep(seconds: float) -> None:
            naps.append(seconds)

        async with clientlib.AsyncClient(server.path, model="tiny", retries=1, sleep=sleep) as client:
            assert await client.generate("x") == "done"
            assert naps == [2.0]
            with pytest.raises(clientlib.InvalidRequest) as refused:
                await client.generate("x")
            assert refused.value.param == "top_k"
            with pytest.raises(clientlib.ServerError) as failed:
                [piece async for piece in client.stream("x")]
            assert failed.value.text == "Once"
        assert server.connections == 1
        with pytest.raises(clientlib.DaemonNotRunning):
            await clientlib.AsyncClient(server.path.with_name("none")).generate("x")

    run(main, backend, script)


@BACKENDS
def test_a_stream_that_is_cut(backend: str) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD, chunk(delta_event("Once")))

    async def main(server: ScriptedServer) -> None:
        async with clientlib.AsyncClient(server.path, model="tiny") as client:
            with pytest.raises(clientlib.ConnectionLost) as caught:
                [piece async for piece in client.stream("x")]
            assert caught.value.text == "Once"

    run(main, backend, script)


@BACKENDS
def test_timeouts(backend: str) -> None:
    held = Held(STREAM_HEAD)

    async def main(server: ScriptedServer) -> None:
        limits = clientlib.Timeouts(idle_s=0.05, total_s=math.inf)
        async with clientlib.AsyncClient(server.path, model="tiny", timeouts=limits) as client:
            with pytest.raises(clientlib.Timeout) as caught:
                await anext(client.stream("x"))
            assert caught.value.phase == "idle"
            await seen(held.gone)
            with pytest.raises(clientlib.Timeout) as caught:
                await client.generate("x", timeout_s=0.01)
            assert caught.value.phase == "total"

    run(main, backend, held)


def test_a_client_may_move_to_another_event_loop() -> None:
    with ScriptedServer(daemon) as server:
        client = clientlib.AsyncClient(server.path)
        for backend in ("trio", "asyncio", "trio"):
            assert anyio.run(client.generate, "hello", backend=backend) == "hello"
        assert server.connections == 1
        anyio.run(client.aclose)


@BACKENDS
def test_an_idle_connection_that_was_closed_is_not_used(backend: str) -> None:
    closed = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(reply(MODELS))
        peer.close()
        closed.set()

    async def main(server: ScriptedServer) -> None:
        async with clientlib.AsyncClient(server.path) as client:
            for _ in range(3):
                closed.clear()
                assert await client.models()
                await seen(closed)
        assert server.connections == 3

    run(main, backend, script)
