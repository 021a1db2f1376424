"""``DELETE /v1/cache`` and ``/admin/cache``: whose answers are forgotten, and what the administrator sees."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from stretto.api import public_app
from stretto.cache import AnswerCache
from stretto.control import control_app
from support.cache_requests import BagEmbedder, answered, asked, keep, look, open_cache
from support.serving_pipeline import FakePipeline
from support.serving_server import RunningServer, running


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
    def __init__(self, server: RunningServer) -> None:
        self._server = server

    async def ask(self, method: str, path: str, *headers: str, tenant: str = "") -> tuple[int, Any]:
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", "Connection: close", *headers]
        if tenant:
            lines.append(f"Authorization: Bearer {tenant}")
        (reply,) = await self._server.exchange("\r\n".join([*lines, "", ""]).encode())
        return reply.status, json.loads(reply.body)


async def filled(cache: AnswerCache) -> None:
    for tenant in ("a", "b"):
        for number in range(3):
            await keep(cache, asked(f"Question {number}?", tenant=tenant), answered(f"Answer {number}."))


@asynccontextmanager
async def public(directory: Path) -> AsyncIterator[tuple[Client, AnswerCache]]:
    async with open_cache(directory, embedder=BagEmbedder()) as cache:
        await filled(cache)
        async with running(Tenants(public_app(FakePipeline(), cache=cache))) as server:
            yield Client(server), cache


@asynccontextmanager
async def private(directory: Path, *, on: bool = True) -> AsyncIterator[tuple[Client, AnswerCache]]:
    async with open_cache(directory, embedder=BagEmbedder()) as cache:
        await filled(cache)
        app = control_app(
            FakePipeline(),
            on_stop=lambda grace_s: None,
            on_drain=lambda: None,
            cache=cache if on else None,
        )
        (directory / "run").mkdir()
        os.chmod(directory / "run", 0o700)
        async with running(app, unix_path=directory / "run" / "s.sock") as server:
            yield Client(server), cache


async def test_callers_forget_their_own_answers_alone(tmp_path: Path) -> None:
    async with public(tmp_path) as (client, cache):
        assert await client.ask("DELETE", "/v1/cache", tenant="a") == (200, {"deleted": 3})
        assert await client.ask("DELETE", "/v1/cache", tenant="a") == (200, {"deleted": 0})
        assert await client.ask("DELETE", "/v1/cache") == (200, {"deleted": 0})
        assert (await look(cache, asked("Question 1?", tenant="b"))).outcome == "hit"
        assert (await look(cache, asked("Question 1?", tenant="a"))).outcome == "miss"
        for query in ("?tenant=b", "?session=x"):
            status, body = await client.ask("DELETE", f"/v1/cache{query}", tenant="a")
            assert (status, body["error"]["code"]) == (400, "unknown_parameter")
        status, body = await client.ask("GET", "/v1/cache")
        assert (status, body["error"]["code"]) == (405, "method_not_allowed")


async def test_where_nothing_is_kept_the_remedy_is_told() -> None:
    async with running(public_app(FakePipeline())) as server:
        status, body = await Client(server).ask("DELETE", "/v1/cache")
    assert (status, body["error"]["code"]) == (404, "cache_off")
    assert "--semantic-cache on" in body["error"]["remedy"]


async def test_the_administrator_sees_everything(tmp_path: Path) -> None:
    async with private(tmp_path) as (client, cache):
        status, stats = await client.ask("GET", "/admin/cache")
        assert (status, stats["entries"], stats["kept"], stats["max_entries"]) == (200, 6, 6, 10_000)
        assert stats == json.loads(json.dumps(cache.stats()))
        _, first = await client.ask("GET", "/admin/cache/entries?limit=4")
        assert [entry["question"] for entry in first["data"]] == [
            "Question 2?", "Question 1?", "Question 0?", "Question 2?",
        ]  # fmt: skip
        assert first["has_more"] is True
        _, rest = await client.ask("GET", f"/admin/cache/entries?before={first['last_id']}")
        assert [entry["tenant"] for entry in rest["data"]] == ["a", "a"]
        assert rest["has_more"] is False
        _, of_b = await client.ask("GET", "/admin/cache/entries?tenant=b")
        assert len(of_b["data"]) == 3
        await look(cache, asked("Question 2?", tenant="b"))
        status, entry = await client.ask("GET", f"/admin/cache/entries/{first['data'][0]['id']}")
        assert status == 200
        assert (entry["answer"], entry["hits"], entry["semantic"]) == ("Answer 2.", 1, True)
        assert (entry["prompt_tokens"], entry["completion_tokens"]) == (11, 5)


async def test_the_administrator_forgets_one_tenants_or_all(tmp_path: Path) -> None:
    async with private(tmp_path) as (client, cache):
        assert await client.ask("DELETE", "/admin/cache?tenant=a") == (200, {"deleted": 3})
        assert await client.ask("DELETE", "/v1/cache") == (200, {"deleted": 0})
        assert await client.ask("DELETE", "/admin/cache") == (200, {"deleted": 3})
        assert cache.stats()["entries"] == 0


@pytest.mark.parametrize("name", ["999", "0", "x", "-1", "9" * 30])
async def test_what_is_not_there_is_said(tmp_path: Path, name: str) -> None:
    async with private(tmp_path) as (client, _):
        status, body = await client.ask("GET", f"/admin/cache/entries/{name}")
    assert (status, body["error"]["code"]) == (404, "cache_entry_not_found")


async def test_without_a_cache_the_administrator_is_told_too(tmp_path: Path) -> None:
    async with private(tmp_path, on=False) as (client, _):
        for method, path in (
            ("GET", "/admin/cache"),
            ("DELETE", "/admin/cache"),
            ("GET", "/admin/cache/entries"),
            ("GET", "/admin/cache/entries/1"),
        ):
            status, body = await client.ask(method, path)
            assert (status, body["error"]["code"]) == (404, "cache_off")
