"""Threads, forks, and programs that tidy nothing up."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import clientlib
from clientlib.default import DefaultClients
from support.clientlib_fork import fork, in_child
from support.clientlib_server import GUARD_S, STREAM_HEAD, Peer, ScriptedServer, chunk, daemon, delta_event


def test_eight_threads_fifty_calls_each() -> None:
    with ScriptedServer(daemon) as server, clientlib.Client(server.path) as client:

        def work(worker: int) -> list[str]:
            answers = []
            for call in range(50):
                text = f"{worker} {call}"
                if call % 2:
                    answers.append(client.generate(text))
                else:
                    with client.stream(text) as pieces:
                        answers.append("".join(pieces))
            return answers

        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(work, range(8)))
        assert answers == [[f"{worker} {call}" for call in range(50)] for worker in range(8)]
        assert server.connections <= 16
        assert client.stats()["idle"] <= 8


def test_a_child_uses_connections_of_its_own() -> None:
    with ScriptedServer(daemon) as server, clientlib.Client(server.path) as client:
        assert client.generate("parent") == "parent"
        assert in_child(lambda: client.generate("child") == "child" and client.stats() == {"idle": 1}) == 0
        assert server.connections == 2
        # The child's copy of the parent's idle connection was closed without hurting it.
        assert client.generate("again") == "again"
        assert server.connections == 2


def test_a_lock_held_at_the_fork_does_not_matter() -> None:
    with ScriptedServer(daemon) as server, clientlib.Client(server.path) as client:
        client.generate("parent")
        with client._session.pool._shelf().lock:
            assert in_child(lambda: client.generate("child") == "child") == 0


def test_a_child_that_drops_an_open_stream_does_not_cancel_it() -> None:
    go_on = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD, chunk(delta_event("Once")))
        assert go_on.wait(GUARD_S)
        peer.send(chunk(delta_event(" upon") + b"data: [DONE]\n\n"), b"0\r\n\r\n")
        peer.wait_closed()

    with ScriptedServer(script) as server, clientlib.Client(server.path, model="tiny") as client:
        stream = client.stream("x")
        assert next(stream) == "Once"

        def leave() -> bool:
            stream.close()
            return True

        assert in_child(leave) == 0
        go_on.set()
        assert list(stream) == [" upon"]


def test_the_parent_cancels_although_a_child_holds_the_descriptor() -> None:
    gone = threading.Event()

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(STREAM_HEAD, chunk(delta_event("Once")))
        peer.wait_closed()
        gone.set()

    reader, writer = os.pipe()
    with ScriptedServer(script) as server, clientlib.Client(server.path, model="tiny") as client:
        stream = client.stream("x")
        assert next(stream) == "Once"
        child = fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)  # until the parent closes its end
            os._exit(0)
        os.close(reader)
        stream.close()
        assert gone.wait(GUARD_S)
        os.close(writer)
        os.waitpid(child, 0)


def test_the_default_client_is_one_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_SOCKET", "/nowhere/s")
    holder = DefaultClients()
    barrier = threading.Barrier(8)

    def get(_: int) -> clientlib.Client:
        barrier.wait(GUARD_S)
        return holder.get()

    with ThreadPoolExecutor(8) as threads:
        assert len(set(map(id, threads.map(get, range(8))))) == 1
    holder.close()


PROGRAM = """
    import threading, clientlib
    print(clientlib.generate("one two"))
    print(list(clientlib.stream("one two")))
    kept = clientlib.stream("left in the middle")
    print(next(kept))
    for piece in clientlib.stream("broken off"):
        print(piece)
        break
    unused = clientlib.stream("never begun")
    client = clientlib.Client()
    print(client.health().state)
    try:
        clientlib.Client("/nowhere/s").generate("x")
    except clientlib.DaemonNotRunning as error:
        print(error.code)
    thread = threading.Thread(target=clientlib.generate, args=("x",))
    thread.start()
    thread.join()
"""

ASYNC_PROGRAM = """
    import sys, anyio, clientlib
    async def main():
        client = clientlib.AsyncClient()
        print(await client.generate("one two"))
        kept = client.stream("left in the middle")
        print(await anext(kept))
        async for piece in client.stream("broken off"):
            print(piece)
            break
        async with clientlib.AsyncClient() as other, other.stream("a b") as pieces:
            print([piece async for piece in pieces])
        return client, kept
    left = anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.parametrize(
    ("program", "arguments", "expected"),
    [
        (PROGRAM, (), ["one two", "['one', ' two']", "left", "broken", "ready", "daemon_not_running"]),
        (ASYNC_PROGRAM, ("asyncio",), ["one two", "left", "broken", "['a', ' b']"]),
        (ASYNC_PROGRAM, ("trio",), ["one two", "left", "broken", "['a', ' b']"]),
    ],
)
def test_a_program_that_tidies_nothing_gets_no_warning(
    program: str, arguments: tuple[str, ...], expected: list[str]
) -> None:
    with ScriptedServer(daemon) as server:
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments],
            env={**os.environ, "STRETTO_SOCKET": str(server.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.split("\n")[:-1] == expected
