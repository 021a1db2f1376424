"""The calls of the answer cache: what is sent, and what is made of the replies."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

import clientlib
from support.clientlib_server import Peer, Received, ScriptedServer, reply

ENTRIES = [{"id": 2, "question": "Why?"}, {"id": 1, "question": "How?"}]


def answered(request: Received) -> bytes:
    path = request.target.partition("?")[0]
    if request.method == "DELETE":
        return reply({"deleted": 7})
    if path == "/admin/cache":
        return reply({"entries": 2, "exact_hits": 5})
    if path == "/admin/cache/entries":
        return reply({"object": "list", "data": ENTRIES, "has_more": False, "last_id": 1})
    if path == "/admin/cache/entries/2":
        return reply({**ENTRIES[0], "answer": "So."})
    return reply({"error": {"message": "no", "code": "cache_entry_not_found"}}, status="404 Not Found")


def script(peer: Peer) -> None:
    while request := peer.request():
        peer.send(answered(request))


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(script) as running:
        yield running


def targets(server: ScriptedServer) -> list[str]:
    return [f"{request.method} {request.target}" for request in server.requests]


WANTED = [
    "GET /admin/cache",
    "GET /admin/cache/entries?limit=100",
    "GET /admin/cache/entries?limit=5&before=9&tenant=a%26b",
    "GET /admin/cache/entries/2",
    "GET /admin/cache/entries/3",
    "DELETE /admin/cache",
    "DELETE /admin/cache?tenant=a%26b",
]


def test_sync(server: ScriptedServer) -> None:
    with clientlib.Client(server.path) as client:
        admin = client.admin
        assert admin.cache_stats() == {"entries": 2, "exact_hits": 5}
        assert admin.cache_entries() == ENTRIES
        assert admin.cache_entries(limit=5, before=9, tenant="a&b") == ENTRIES
        assert admin.cache_entry(2)["answer"] == "So."
        with pytest.raises(clientlib.NotFound) as missing:
            admin.cache_entry(3)
        assert missing.value.code == "cache_entry_not_found"
        assert admin.clear_cache() == 7
        assert admin.clear_cache(tenant="a&b") == 7
    assert targets(server) == WANTED


async def test_async(server: ScriptedServer) -> None:
    async with clientlib.AsyncClient(server.path) as client:
        with anyio.fail_after(90):
            admin = client.admin
            assert await admin.cache_stats() == {"entries": 2, "exact_hits": 5}
            assert await admin.cache_entries() == ENTRIES
            assert await admin.cache_entries(limit=5, before=9, tenant="a&b") == ENTRIES
            assert (await admin.cache_entry(2))["answer"] == "So."
            with pytest.raises(clientlib.NotFound):
                await admin.cache_entry(3)
            assert await admin.clear_cache() == 7
            assert await admin.clear_cache(tenant="a&b") == 7
    assert targets(server) == WANTED
