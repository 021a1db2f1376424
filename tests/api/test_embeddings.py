"""``/v1/embeddings`` over a real server, with a tiny model."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import numpy as np
import pytest

from stretto.api import public_app
from stretto.embedding import Embedder, EmbeddingModel
from stretto.pipeline import Health
from support.embedding_tiny import tiny_embedder
from support.serving_pipeline import MODEL, FakePipeline
from support.serving_server import Reply, RunningServer, post, running


@pytest.fixture(scope="module", autouse=True)
def collected() -> Iterator[None]:
    """The model's file stays open as long as arrays look into it; other tests here count open files."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddingModel]:
    with closing(EmbeddingModel(tiny_embedder(tmp_path_factory.mktemp("tiny")))) as opened:
        yield opened


@asynccontextmanager
async def serving(
    model: EmbeddingModel | None, pipeline: FakePipeline | None = None, **options: Any
) -> AsyncIterator[RunningServer]:
    embedder = None if model is None else Embedder(model, name="tinybert", aliases=("bert",), created=5)
    async with running(public_app(pipeline or FakePipeline(), embedder=embedder, **options)) as server:
        yield server


async def ask(server: RunningServer, *extra: str, **fields: Any) -> Reply:
    body = json.dumps({"model": "tinybert", "input": "open the account"} | fields).encode()
    wire = post(body, "Content-Type: application/json", "Connection: close", *extra, target="/v1/embeddings")
    (reply,) = await server.exchange(wire)
    return reply


def error_of(reply: Reply) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(reply.body)["error"]
    return error


async def test_vectors_come_in_order_with_what_they_cost(model: EmbeddingModel) -> None:
    async with serving(model) as server:
        reply = await ask(server, input=["open the account", "paris", "close"])
    assert reply.status == 200
    assert reply.headers["x-request-id"].startswith("embd-")
    document = json.loads(reply.body)
    got = np.array([entry["embedding"] for entry in document["data"]], dtype=np.float32)
    wanted = model.forward(model.encode(["open the account", "paris", "close"]))
    assert np.abs(got - wanted).max() < 1e-6
    assert document["model"] == "tinybert"
    assert document["usage"] == {"prompt_tokens": 11, "total_tokens": 11}


async def test_dimensions_cut_and_bring_back_to_length_one(model: EmbeddingModel) -> None:
    async with serving(model) as server:
        short = json.loads((await ask(server, model="bert", dimensions=5)).body)["data"][0]["embedding"]
        too_many = await ask(server, dimensions=33)
    whole = model.forward(model.encode(["open the account"]))[0][:5]
    assert np.abs(np.array(short) - whole / np.linalg.norm(whole)).max() < 1e-6
    assert too_many.status == 400
    error = error_of(too_many)
    assert error["param"] == "dimensions"
    assert "33" in error["message"]
    assert "have 32" in error["message"]


async def test_what_is_too_long_is_refused_or_cut(model: EmbeddingModel) -> None:
    async with serving(model) as server:
        refused = await ask(server, input=["open", "open " * 50])
        cut = await ask(server, input="open " * 50, truncate=True)
    assert refused.status == 400
    assert error_of(refused)["code"] == "context_length_exceeded"
    assert error_of(refused)["param"] == "input[1]"
    assert json.loads(cut.body)["usage"]["prompt_tokens"] == 16


@pytest.mark.parametrize("name", [MODEL.id, "text-embedding-3-small"])
async def test_another_model_is_not_found(model: EmbeddingModel, name: str) -> None:
    async with serving(model) as server:
        reply = await ask(server, model=name)
    assert reply.status == 404
    assert error_of(reply)["code"] == "model_not_found"
    assert "'tinybert'" in error_of(reply)["remedy"]


async def test_without_an_embedder_the_remedy_is_told() -> None:
    async with serving(None) as server:
        reply = await ask(server)
        models = json.loads((await server.get("/v1/models")).body)
    assert reply.status == 404
    assert error_of(reply)["code"] == "model_not_found"
    assert "stretto pull minilm" in error_of(reply)["remedy"]
    assert [entry["id"] for entry in models["data"]] == [MODEL.id]


async def test_models_lists_it(model: EmbeddingModel) -> None:
    async with serving(model) as server:
        document = json.loads((await server.get("/v1/models")).body)
        alone = [json.loads((await server.get(f"/v1/models/{name}")).body) for name in ("tinybert", "bert")]
    chat, entry = document["data"]
    assert chat["id"] == document["first_id"] == MODEL.id
    assert entry["id"] == document["last_id"] == "tinybert"
    assert entry["capabilities"] == ["embeddings"]
    assert (entry["context_length"], entry["dimensions"]) == (16, 32)
    assert alone == [entry, entry]


async def test_the_key_guards_it(model: EmbeddingModel) -> None:
    async with serving(model, api_key="k") as server:
        assert (await ask(server)).status == 401
        assert (await ask(server, "Authorization: Bearer k")).status == 200


async def test_a_draining_daemon_takes_no_new_work(model: EmbeddingModel) -> None:
    draining = FakePipeline(current=Health(live=True, ready=False, state="draining", detail={}))
    async with serving(model, draining) as server:
        reply = await ask(server)
    assert reply.status == 503
    assert error_of(reply)["code"] == "draining"


async def test_the_log_has_counts_and_no_content(
    model: EmbeddingModel, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stretto.requests")
    async with serving(model) as server:
        await ask(server, input=["open paris", "close"])
        await ask(server, input="open " * 99)
    (done, failed) = [record for record in caplog.records if record.name == "stretto.requests"]
    assert (done.message, done.__dict__["fields"]["texts"], done.__dict__["fields"]["prompt_tokens"]) == (
        "embedded", 2, 7,
    )  # fmt: skip
    assert (failed.message, failed.__dict__["fields"]["code"]) == ("failed", "context_length_exceeded")
    assert "paris" not in caplog.text
