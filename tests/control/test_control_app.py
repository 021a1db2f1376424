"""The control plane over a real Unix socket."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from stretto.control import control_app
from support.serving_pipeline import MODEL, FakePipeline
from support.serving_server import PATIENCE_S, Reply, RunningServer, get, parse_replies, post, running

CHAT = json.dumps(
    {"model": "tiny", "messages": [{"role": "user", "content": "a b"}], "stream": True}
).encode()


class Calls:
    """What the daemon was told."""

    def __init__(self) -> None:
        self.stops: list[float | None] = []
        self.drains = 0

    def stop(self, grace_s: float | None) -> None:
        self.stops.append(grace_s)

    def drain(self) -> None:
        self.drains += 1


@asynccontextmanager
async def serving(
    directory: Path, pipeline: FakePipeline, calls: Calls | None = None, **options: Any
) -> AsyncIterator[RunningServer]:
    told = calls or Calls()
    app = control_app(pipeline, on_stop=told.stop, on_drain=told.drain, **options)
    os.chmod(directory, 0o700)
    async with running(app, unix_path=directory / "s.sock") as server:
        yield server


async def ask(server: RunningServer, method: str, path: str, body: Any = None) -> Reply:
    if body is None:
        wire = f"{method} {path} HTTP/1.1\r\nHost: stretto\r\nConnection: close\r\n\r\n".encode()
    else:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        wire = post(data, "Content-Type: application/json", "Connection: close", target=path)
    (reply,) = await server.exchange(wire)
    return reply


async def test_public_routes_are_here_too_without_key_or_host_check(tmp_path: Path) -> None:
    async with serving(tmp_path, FakePipeline()) as server:
        for path in ("/health", "/health/live", "/health/ready", "/v1/models", "/v1/models/tiny"):
            reply = await ask(server, "GET", path)
            assert reply.status == 200
            assert reply.headers["x-request-id"]
        reply = await ask(server, "POST", "/v1/chat/completions", CHAT)
        assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_status_and_requests(tmp_path: Path) -> None:
    pipeline = FakePipeline(pace=trio.Semaphore(0))
    async with serving(tmp_path, pipeline) as server:
        assert json.loads((await ask(server, "GET", "/admin/status")).body) == {
            "state": "ready",
            "requests": 0,
        }
        async with await server.connect() as client:
            await client.send(post(CHAT, "Content-Type: application/json", target="/v1/chat/completions"))
            with trio.fail_after(PATIENCE_S):
                await pipeline.entered.wait()
            document = json.loads((await ask(server, "GET", "/admin/requests")).body)
            (entry,) = document["data"]
            assert entry["phase"] == "generating"
            reply = await ask(server, "DELETE", f"/admin/requests/{entry['id']}")
            assert (reply.status, json.loads(reply.body)) == (200, {"id": entry["id"], "cancelled": True})


async def test_cancelling_what_is_not_there(tmp_path: Path) -> None:
    async with serving(tmp_path, FakePipeline()) as server:
        reply = await ask(server, "DELETE", "/admin/requests/chatcmpl-0")
    assert reply.status == 404
    assert json.loads(reply.body)["error"]["code"] == "request_not_found"


async def test_drain(tmp_path: Path) -> None:
    calls = Calls()
    async with serving(tmp_path, FakePipeline(), calls) as server:
        for body in (None, {}):
            assert (await ask(server, "POST", "/admin/drain", body)).status == 202
    assert calls.drains == 2


@pytest.mark.parametrize(
    ("body", "grace_s"),
    [(None, None), (b"", None), ({}, None), ({"grace_s": 0}, 0.0), ({"grace_s": 2.5}, 2.5)],
)
async def test_stop(tmp_path: Path, body: Any, grace_s: float | None) -> None:
    calls = Calls()
    async with serving(tmp_path, FakePipeline(), calls) as server:
        reply = await ask(server, "POST", "/admin/stop", body)
    assert (reply.status, json.loads(reply.body)["state"]) == (202, "stopping")
    assert calls.stops == [grace_s]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"grace_s": NaN}', "invalid_json"),
        (b"[" * 100_000, "invalid_request_body"),
        (b"\xff", "invalid_json"),
        ([], "invalid_value"),
        ("now", "invalid_value"),
        ({"grace_s": -1}, "invalid_value"),
        ({"grace_s": "soon"}, "invalid_value"),
        ({"grace": 1}, "unknown_parameter"),
    ],
)
async def test_bodies_are_checked(tmp_path: Path, body: Any, code: str) -> None:
    calls = Calls()
    async with serving(tmp_path, FakePipeline(), calls) as server:
        reply = await ask(server, "POST", "/admin/stop", body)
    assert reply.status == 400
    error = json.loads(reply.body)["error"]
    assert error["code"] == code
    if body == {"grace_s": -1}:
        assert error["param"] == "grace_s"
    assert calls.stops == []


async def test_a_body_must_be_declared_as_json(tmp_path: Path) -> None:
    calls = Calls()
    async with serving(tmp_path, FakePipeline(), calls) as server:
        (reply,) = await server.exchange(post(b"{}", "Connection: close", target="/admin/stop"))
    assert reply.status == 415
    assert calls.stops == []


@pytest.mark.parametrize("path", ["/admin/status", "/v1/models", "/health"])
async def test_other_users_are_refused(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, FakePipeline(), uids=[os.getuid() + 1]) as server:
        reply = await ask(server, "GET", path)
    assert reply.status == 403
    assert json.loads(reply.body)["error"]["code"] == "forbidden"


async def test_the_control_plane_does_not_answer_on_tcp() -> None:
    calls = Calls()
    app = control_app(FakePipeline(), on_stop=calls.stop, on_drain=calls.drain)
    async with running(app) as server:
        (reply,) = await server.exchange(post(b"", "Connection: close", target="/admin/stop"))
        assert reply.status == 403
        assert (await server.get("/health")).status == 403
    assert calls.stops == []


async def test_wrong_method_and_route(tmp_path: Path) -> None:
    async with serving(tmp_path, FakePipeline()) as server:
        assert (await ask(server, "GET", "/admin/stop")).status == 405
        assert (await ask(server, "GET", "/admin/nothing")).status == 404


async def test_on_one_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, FakePipeline()) as server:
        async with await server.connect() as client:
            await client.send(get("/health") + get("/v1/models") + get("/admin/status", "Connection: close"))
            replies = parse_replies(await client.read_all())
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert json.loads(replies[1].body)["data"][0]["id"] == MODEL.id
