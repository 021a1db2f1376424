"""Tokens and text through both clients, and what is made of strange replies."""

from __future__ import annotations

import json

import anyio
import pytest

import clientlib
from support.clientlib_server import Peer, Received, ScriptedServer, reply


def speller(seen: list[Received]) -> ScriptedServer:
    """A daemon whose tokens are code points."""

    def script(peer: Peer) -> None:
        while request := peer.request():
            seen.append(request)
            body = json.loads(request.body)
            if request.target == "/tokenize":
                peer.send(reply({"count": 1, "tokens": [ord(character) for character in body["prompt"]]}))
            else:
                peer.send(reply({"prompt": "".join(map(chr, body["tokens"]))}))

    return ScriptedServer(script)


def test_there_and_back() -> None:
    seen: list[Received] = []
    with speller(seen) as server, clientlib.Client(server.path) as client:
        assert client.tokenize("hé") == [104, 233]
        assert client.tokenize("<x>", special=False) == [60, 120, 62]
        assert client.detokenize((104, 233)) == "hé"
    assert [(request.method, request.target) for request in seen] == [
        ("POST", "/tokenize"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
    ]
    assert seen[0].json == {"prompt": "hé", "add_special_tokens": True, "parse_special": True}
    assert seen[1].json == {"prompt": "<x>", "add_special_tokens": False, "parse_special": False}
    assert seen[2].json == {"tokens": [104, 233]}


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(backend: str) -> None:
    async def both(path: str) -> tuple[list[int], str]:
        async with clientlib.AsyncClient(path) as client:
            return await client.tokenize("hé"), await client.detokenize([104])

    with speller([]) as server:
        assert anyio.run(both, server.path, backend=backend) == ([104, 233], "h")


@pytest.mark.parametrize("document", [{}, {"tokens": "x", "prompt": 7}, {"tokens": [1.5], "prompt": None}])
def test_strange_replies(document: object) -> None:
    def script(peer: Peer) -> None:
        while peer.request():
            peer.send(reply(document))

    with ScriptedServer(script) as server, clientlib.Client(server.path) as client:
        with pytest.raises(clientlib.ProtocolError):
            client.tokenize("x")
        with pytest.raises(clientlib.ProtocolError):
            client.detokenize([1])


def test_only_texts_are_tokenised() -> None:
    with pytest.raises(TypeError, match="text must be a str"):
        clientlib.Client("/nowhere").tokenize(b"x")  # type: ignore[arg-type]
