"""The calls of session memory: what is sent, and what is made of the replies."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anyio
import pytest

import clientlib
from support.clientlib_server import Peer, Received, ScriptedServer, completion, reply

ENTRIES = [{"id": f"mem_{number}", "kind": "note", "text": str(number)} for number in range(5)]


def answered(request: Received) -> bytes:
    path, _, query = request.target.partition("?")
    if path == "/admin/memory/sessions":
        return reply({"object": "list", "data": [{"tenant": "", "session": "default", "notes": 5}]})
    if request.method == "GET":
        start = next((n + 1 for n, entry in enumerate(ENTRIES) if f"after={entry['id']}" in query), 0)
        page = ENTRIES[start : start + 2]
        return reply(
            {
                "object": "list",
                "data": page,
                "has_more": start + 2 < 5,
                "last_id": page[-1]["id"] if page else None,
            }
        )
    if request.method == "POST":
        return reply({"id": "mem_new", **json.loads(request.body)}, status="201 Created")
    if path == "/admin/memory":
        return reply({"deleted": 5})
    if path.endswith("mem_1"):
        return reply({"id": "mem_1", "deleted": True})
    code = "memory_off" if "off" in path else "memory_not_found"
    return reply({"error": {"message": "no", "code": code}}, status="404 Not Found")


def script(peer: Peer) -> None:
    while request := peer.request():
        peer.send(reply(completion("x")) if request.target.startswith("/v1/chat") else answered(request))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script) as running:
        yield running


def test_sync(server: ScriptedServer) -> None:
    with clientlib.Client(server.path) as client:
        admin = client.admin
        assert admin.memory_sessions() == [{"tenant": "", "session": "default", "notes": 5}]
        assert admin.memory() == ENTRIES
        assert admin.add_memory("é", session="a b", tenant="t&1") == {"id": "mem_new", "text": "é"}
        assert admin.forget_memory("mem_1") is True
        assert admin.forget_memory("mem/7") is False
        assert admin.forget_session("work") == 5
        with pytest.raises(clientlib.NotFound):
            admin.forget_memory("off")
        with pytest.raises(ValueError, match="entry_id"):
            admin.forget_memory("")
    assert [(request.method, request.target) for request in server.requests] == [
        ("GET", "/admin/memory/sessions"),
        ("GET", "/admin/memory?session=default"),
        ("GET", "/admin/memory?session=default&after=mem_1"),
        ("GET", "/admin/memory?session=default&after=mem_3"),
        ("POST", "/admin/memory?session=a+b&tenant=t%261"),
        ("DELETE", "/admin/memory/mem_1?session=default"),
        ("DELETE", "/admin/memory/mem%2F7?session=default"),
        ("DELETE", "/admin/memory?session=work"),
        ("DELETE", "/admin/memory/off?session=default"),
    ]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(server: ScriptedServer, backend: str) -> None:
    async def main() -> None:
        async with clientlib.AsyncClient(server.path) as client:
            admin = client.admin
            assert len(await admin.memory_sessions()) == 1
            assert await admin.memory("work", tenant="t") == ENTRIES
            assert (await admin.add_memory("note"))["id"] == "mem_new"
            assert await admin.forget_memory("mem_1") is True
            assert await admin.forget_memory("mem_7") is False
            assert await admin.forget_session() == 5

    anyio.run(main, backend=backend)


def test_every_request_says_its_session_and_mode(server: ScriptedServer) -> None:
    with clientlib.Client(server.path, model="tiny", session="my work", memory="read") as client:
        client.generate("x")
    with clientlib.Client(server.path, model="tiny") as client:
        client.generate("x")
    first, second = server.requests
    assert (first.headers["x-stretto-session"], first.headers["x-stretto-memory"]) == ("my work", "read")
    assert not {"x-stretto-session", "x-stretto-memory"} & second.headers.keys()


@pytest.mark.parametrize(
    "options",
    [{"session": ""}, {"session": " a"}, {"session": "é"}, {"session": "x" * 129}, {"memory": "reed"}],
)
def test_what_cannot_be_a_header_is_refused_at_once(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="it must be"):
        clientlib.Client("/nowhere", **options)  # type: ignore[arg-type]
