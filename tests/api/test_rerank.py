"""``/v1/rerank`` over a real server, with a tiny model."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from stretto.api import public_app
from stretto.embedding import CrossEncoder, Reranker
from support.reranker_tiny import tiny_reranker
from support.serving_pipeline import FakePipeline
from support.serving_server import Reply, RunningServer, post, running

DOCUMENTS = ["open the account", "paris", "close"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrossEncoder]:
    with closing(CrossEncoder(tiny_reranker(tmp_path_factory.mktemp("tiny")))) as opened:
        yield opened
    gc.collect()  # its file stays open as long as arrays look into it


@asynccontextmanager
async def serving(model: CrossEncoder | None) -> AsyncIterator[RunningServer]:
    reranker = None if model is None else Reranker(model, name="tinyrank", aliases=("rank",), created=5)
    async with running(public_app(FakePipeline(), reranker=reranker)) as server:
        yield server


async def ask(server: RunningServer, **fields: Any) -> Reply:
    body = json.dumps({"model": "tinyrank", "query": "open it", "documents": DOCUMENTS} | fields).encode()
    wire = post(body, "Content-Type: application/json", "Connection: close", target="/v1/rerank")
    (reply,) = await server.exchange(wire)
    return reply


async def test_the_best_documents_come_first(model: CrossEncoder, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(model) as server:
        with caplog.at_level(logging.INFO, "stretto"):
            reply = await ask(server)
        some = json.loads((await ask(server, model="rank", top_n=2, return_documents=False)).body)
        objects = json.loads((await ask(server, documents=[{"text": text} for text in DOCUMENTS])).body)
    assert reply.status == 200
    document = json.loads(reply.body)
    results = document["results"]
    wanted = (await Reranker(model, name="x").rank("open it", DOCUMENTS)).scores
    assert [result["index"] for result in results] == sorted(range(3), key=lambda index: -wanted[index])
    assert [result["relevance_score"] for result in results] == sorted(map(float, wanted), reverse=True)
    assert [result["document"]["text"] for result in results] == [DOCUMENTS[r["index"]] for r in results]
    assert document["id"] == reply.headers["x-request-id"]
    assert document["id"].startswith("rerank-")
    assert (document["model"], document["usage"]) == ("tinyrank", {"prompt_tokens": 20, "total_tokens": 20})
    assert some["results"] == [
        {name: result[name] for name in ("index", "relevance_score")} for result in results[:2]
    ]
    assert objects["results"] == results
    lines = [record.getMessage() for record in caplog.records if "reranked" in record.getMessage()]
    assert len(lines) == 1
    assert not any(text in line for line in lines for text in DOCUMENTS)


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"documents": []}, 400, "invalid_value", "documents"),
        ({"documents": ["x", 7]}, 400, "invalid_value", "documents[1]"),
        ({"documents": [{"title": "x"}]}, 400, "missing_parameter", "documents[0].text"),
        ({"query": None}, 400, "missing_parameter", "query"),
        ({"top_n": 0}, 400, "invalid_value", "top_n"),
        ({"rank_fields": ["a"]}, 400, "unsupported_value", "rank_fields"),
        ({"best": 1}, 400, "unknown_parameter", "best"),
        ({"documents": ["no " * 40]}, 400, "context_length_exceeded", "documents[0]"),
    ],
)
async def test_refusals(
    model: CrossEncoder, fields: dict[str, Any], status: int, code: str, param: str
) -> None:
    async with serving(model) as server:
        reply = await ask(server, **fields)
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"], error["param"]) == (status, code, param)


async def test_a_daemon_without_a_reranker_says_how_to_have_one() -> None:
    async with serving(None) as server:
        reply = await ask(server)
    error = json.loads(reply.body)["error"]
    assert (reply.status, error["code"]) == (404, "reranker_off")
    assert "--reranker" in error["remedy"]


async def test_it_is_listed(model: CrossEncoder) -> None:
    async with serving(model) as server:
        (listed,) = await server.exchange(
            b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        (one,) = await server.exchange(
            b"GET /v1/models/rank HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
    entries = json.loads(listed.body)["data"]
    assert [entry["id"] for entry in entries][1:] == ["tinyrank"]
    assert entries[1]["capabilities"] == ["rerank"]
    assert json.loads(one.body) == entries[1]
