"""``/v1/memory``: the caller's own session, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.api import public_app
from stretto.memory import SCHEMA, SessionMemory
from stretto.store import Store
from support.serving_pipeline import FakePipeline
from support.serving_server import Reply, RunningServer, running


class Tenants:
    """Stands for a guard that tells tenants apart by their keys."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope["headers"]:
            if name == b"authorization":
                scope.setdefault("state", {})["tenant"] = value.decode().removeprefix("Bearer ")
        await self._app(scope, receive, send)


class Client:
    def __init__(self, server: RunningServer, memory: SessionMemory) -> None:
        self._server = server
        self.memory = memory

    async def ask(
        self, method: str, path: str, body: Any = None, *, tenant: str = "", headers: tuple[str, ...] = ()
    ) -> tuple[int, Any]:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers]
        if tenant:
            lines.append(f"Authorization: Bearer {tenant}")
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
        reply: Reply
        (reply,) = await self._server.exchange("\r\n".join([*lines, "", ""]).encode() + data)
        return reply.status, json.loads(reply.body)


@asynccontextmanager
async def client_of(directory: Path, *, on: bool = True) -> AsyncIterator[Client]:
    async with await Store.open(directory / "stretto.db", [SCHEMA]) as store:
        memory = SessionMemory(store, top_k=4, max_entries=100)
        await (
            memory.sessions()
        )  # opens what reading needs: the server's helper looks for descriptors that are left over
        app = Tenants(public_app(FakePipeline(), memory=memory if on else None))
        async with running(app) as server:
            yield Client(server, memory)


async def test_add_list_and_forget(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        status, note = await client.ask("POST", "/v1/memory", {"text": "Call me Ada. é"})
        assert status == 201
        assert note == {
            "id": note["id"],
            "object": "memory",
            "kind": "note",
            "created": note["created"],
            "text": "Call me Ada. é",
            "in_context": True,
        }
        await client.memory.record("", "default", "zebra", "stripes")
        status, listed = await client.ask("GET", "/v1/memory")
        exchange = listed["data"][1]
        assert (status, listed) == (
            200,
            {
                "object": "list",
                "session": "default",
                "data": [
                    note,
                    {
                        "id": exchange["id"],
                        "object": "memory",
                        "kind": "exchange",
                        "created": exchange["created"],
                        "user": "zebra",
                        "assistant": "stripes",
                    },
                ],
                "has_more": False,
                "last_id": exchange["id"],
            },
        )
        assert await client.ask("DELETE", f"/v1/memory/{note['id']}") == (
            200,
            {"id": note["id"], "deleted": True},
        )
        status, error = await client.ask("DELETE", f"/v1/memory/{note['id']}")
        assert (status, error["error"]["code"]) == (404, "memory_not_found")
        assert await client.ask("DELETE", "/v1/memory") == (200, {"session": "default", "deleted": 1})
        assert (await client.ask("GET", "/v1/memory"))[1]["data"] == []


async def test_pages(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        ids = [(await client.memory.add_note("", "default", f"note {n}")).id for n in range(5)]
        _, first = await client.ask("GET", "/v1/memory?limit=2")
        assert ([entry["id"] for entry in first["data"]], first["has_more"]) == (ids[:2], True)
        _, rest = await client.ask("GET", f"/v1/memory?limit=3&after={first['last_id']}")
        assert ([entry["id"] for entry in rest["data"]], rest["has_more"]) == (ids[2:], False)


@pytest.mark.parametrize("prefix", ["X-Stretto", "X-Fuuga"])
async def test_the_session_is_named_by_a_header(tmp_path: Path, prefix: str) -> None:
    async with client_of(tmp_path) as client:
        headers = (f"{prefix}-Session: my work",)
        await client.ask("POST", "/v1/memory", {"text": "note"}, headers=headers)
        assert (await client.ask("GET", "/v1/memory"))[1]["data"] == []
        _, listed = await client.ask("GET", "/v1/memory", headers=headers)
        assert (listed["session"], len(listed["data"])) == ("my work", 1)


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "code"),
    [
        ("POST", "/v1/memory", {"text": ""}, (), 400, "invalid_value"),
        ("POST", "/v1/memory", {"text": "  "}, (), 400, "invalid_value"),
        ("POST", "/v1/memory", {"text": "x" * 2001}, (), 400, "invalid_value"),
        ("POST", "/v1/memory", {"text": 7}, (), 400, "invalid_value"),
        ("POST", "/v1/memory", {}, (), 400, "invalid_value"),
        ("POST", "/v1/memory", {"text": "a", "pin": True}, (), 400, "unknown_parameter"),
        ("POST", "/v1/memory", {"text": "a"}, ("X-Stretto-Session: ",), 400, "invalid_header"),
        ("GET", "/v1/memory", None, ("X-Stretto-Memory: offf",), 400, "invalid_header"),
        ("GET", "/v1/memory?limit=0", None, (), 400, "invalid_value"),
        ("GET", "/v1/memory?limit=1001", None, (), 400, "invalid_value"),
        ("GET", "/v1/memory?limit=1&limit=2", None, (), 400, "invalid_value"),
        ("GET", "/v1/memory?session=other", None, (), 400, "unknown_parameter"),
        ("GET", "/v1/memory?after=mem_x", None, (), 404, "memory_not_found"),
        ("GET", "/v1/memory?after=%ff", None, (), 400, "invalid_value"),
        ("DELETE", "/v1/memory?all=1", None, (), 400, "unknown_parameter"),
        ("DELETE", "/v1/memory/1%20OR%201", None, (), 404, "memory_not_found"),
        ("PUT", "/v1/memory", None, (), 405, "method_not_allowed"),
    ],
)
async def test_refusals(
    tmp_path: Path, method: str, path: str, body: Any, headers: tuple[str, ...], status: int, code: str
) -> None:
    async with client_of(tmp_path) as client:
        found, document = await client.ask(method, path, body, headers=headers)
        assert (found, document["error"]["code"]) == (status, code)
        assert await client.memory.sessions() == []


async def test_a_typo_in_the_mode_of_a_completion_is_refused_before_anything_is_recorded(
    tmp_path: Path,
) -> None:
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "zebra"}]}
    async with client_of(tmp_path) as client:
        for name in ("X-Stretto-Memory", "X-Fuuga-Memory"):
            status, document = await client.ask(
                "POST", "/v1/chat/completions", chat, headers=(f"{name}: reed",)
            )
            assert (status, document["error"]["code"]) == (400, "invalid_header")


async def test_two_tenants_never_see_each_other_s_memory(tmp_path: Path) -> None:
    async with client_of(tmp_path) as client:
        _, mine = await client.ask("POST", "/v1/memory", {"text": "mine"}, tenant="a")
        for tenant in ("b", ""):
            for headers in ((), ("X-Stretto-Session: a",), ("X-Stretto-Session: a/default",)):
                _, listed = await client.ask("GET", "/v1/memory", tenant=tenant, headers=headers)
                assert listed["data"] == []
                for path in (f"/v1/memory/{mine['id']}", f"/v1/memory/{mine['id']}?"):
                    status, _ = await client.ask("DELETE", path, tenant=tenant, headers=headers)
                    assert status == 404
                status, _ = await client.ask(
                    "GET", f"/v1/memory?after={mine['id']}", tenant=tenant, headers=headers
                )
                assert status == 404
                _, forgotten = await client.ask("DELETE", "/v1/memory", tenant=tenant, headers=headers)
                assert forgotten["deleted"] == 0
        _, listed = await client.ask("GET", "/v1/memory", tenant="a")
        assert listed["data"] == [mine]


async def test_without_memory_there_is_none(tmp_path: Path) -> None:
    async with client_of(tmp_path, on=False) as client:
        for method, path in (("GET", "/v1/memory"), ("POST", "/v1/memory"), ("DELETE", "/v1/memory/mem_1")):
            status, document = await client.ask(method, path, {"text": "a"} if method == "POST" else None)
            assert (status, document["error"]["code"]) == (404, "memory_off")
            assert "--memory" in document["error"]["remedy"]
