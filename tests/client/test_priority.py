"""The priority of requests: the client's own, a call's, and none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio
import pytest

import clientlib
from support.clientlib_server import (
    STREAM_END,
    STREAM_HEAD,
    Peer,
    ScriptedServer,
    answer_events,
    chunk,
    completion,
    reply,
)


def script(peer: Peer) -> None:
    while request := peer.request():
        if request.json.get("stream"):
            peer.send(STREAM_HEAD, *map(chunk, answer_events(["x"])), STREAM_END)
        else:
            peer.send(reply(completion("x")))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script) as running:
        yield running


def sent(server: ScriptedServer) -> list[str | None]:
    """The priorities of the requests so far; none of them in a body."""
    assert all("priority" not in request.json for request in server.requests)
    return [request.headers.get("x-stretto-priority") for request in server.requests]


HELLO = [{"role": "user", "content": "hello"}]


def test_a_call_s_own_priority_counts(server: ScriptedServer) -> None:
    with clientlib.Client(server.path, model="tiny") as client:
        client.generate("x")
        client.generate("x", priority="background")
        client.chat(HELLO, priority="high")
        with client.stream("x", priority="normal") as pieces:
            assert "".join(pieces) == "x"
        with client.chat_stream(HELLO, priority="background") as deltas:
            assert [delta.text for delta in deltas if delta.text] == ["x"]
    with clientlib.Client(server.path, model="tiny", priority="background") as client:
        client.generate("x")
        client.generate("x", priority="normal")
    assert sent(server) == [None, "background", "high", "normal", "background", "background", "normal"]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(server: ScriptedServer, backend: str) -> None:
    async def main() -> None:
        async with clientlib.AsyncClient(server.path, model="tiny", priority="background") as client:
            await client.generate("x")
            await client.chat(HELLO, priority="normal")
            async with client.stream("x", priority="high") as pieces:
                assert [piece async for piece in pieces] == ["x"]

    anyio.run(main, backend=backend)
    assert sent(server) == ["background", "normal", "high"]


def test_the_functions_of_the_module(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRETTO_SOCKET", str(server.path))
    assert clientlib.generate("x", model="tiny", priority="background") == "x"
    assert clientlib.chat(HELLO, model="tiny", priority="high").text == "x"
    with clientlib.stream("x", model="tiny", priority="normal") as pieces:
        assert "".join(pieces) == "x"
    assert sent(server) == ["background", "high", "normal"]


def test_what_is_none_is_not_sent(server: ScriptedServer) -> None:
    wrong: Any = "low"
    with pytest.raises(ValueError, match="priority = 'low': it must be one of high, normal, background"):
        clientlib.Client(server.path, priority=wrong)
    with clientlib.Client(server.path, model="tiny") as client:
        with pytest.raises(ValueError, match="priority"):
            client.generate("x", priority=wrong)
        with pytest.raises(ValueError, match="priority"):
            client.chat_stream(HELLO, priority=wrong)
    assert not server.requests
