"""Bodies that are deep, or made of very many pieces: every route refuses them, and none does any work for them."""

from __future__ import annotations

import json

import pytest
from starlette.routing import Route

from stretto.api import public_app, refusal_body, shared_routes
from support.embedding_fake import FakeEmbedder
from support.serving_pipeline import FakePipeline
from support.serving_server import post, running

POSTED = sorted(
    route.path
    for route in shared_routes(FakePipeline(), ping_interval_s=1.0, embedder=FakeEmbedder())
    if isinstance(route, Route) and "POST" in (route.methods or ()) and route.path != "/v1/memory"  # off here
)
MESSAGES = b'{"model": "tiny", "max_tokens": 1, "input": "x", "prompt": "x", "messages": [{"role": "user", "content": "x"}], "more": '
BODIES = {
    "nothing but depth": b"[" * 1_000_000,
    "a deep object": b'{"messages":' * 200_000,
    "deep within a request": MESSAGES + b'{"a":' * 80 + b"1" + b"}" * 81,
    "rubble": b'{"messages":[' + b"1," * 500_000 + b"1]}",
    "many names": json.dumps({f"k{number}": number for number in range(410_000)}).encode(),
    "an endless number": MESSAGES + b"1" * 100_000 + b"}",
}


def test_all_the_routes_are_here() -> None:
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"} <= set(POSTED)
    assert {"/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize"} <= set(POSTED)


@pytest.mark.parametrize("path", POSTED)
async def test_bodies_that_nobody_means(path: str) -> None:
    pipeline = FakePipeline()
    app = public_app(pipeline, embedder=FakeEmbedder())
    async with running(app, refusal_body=refusal_body) as server:
        for name, body in BODIES.items():
            wire = post(body, "Content-Type: application/json", "Connection: close", target=path)
            (reply,) = await server.exchange(wire)
            assert reply.status == 400, name
            error = json.loads(reply.body)["error"]
            assert error["code"] in {"invalid_json", "invalid_request_body"}, name
            assert len(reply.body) < 1000
    assert pipeline.begun == 0
