"""Anthropic's routes over a real server: every status, header and envelope, and what the other dialects do not see of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stretto.api import MOUNTS, public_app, refusal_body
from stretto.settings import SETTING_FIELDS
from support.embedding_fake import FakeEmbedder
from support.serving_pipeline import MODEL, FakePipeline, stretto_error
from support.serving_server import Reply, RunningServer, get, post, running

MESSAGE = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "one two three"}]}
VERSION = "anthropic-version: 2023-06-01"


def ask(
    *extra: str, target: str = "/v1/messages?beta=true", body: bytes | None = None, **fields: Any
) -> bytes:
    data = json.dumps({**MESSAGE, **fields}).encode() if body is None else body
    return post(data, "Content-Type: application/json", "Connection: close", *extra, target=target)


@asynccontextmanager
async def serving(
    pipeline: FakePipeline | None = None, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[RunningServer]:
    app = public_app(pipeline or FakePipeline(), **options)
    async with running(app, refusal_body=refusal_body, **(limits or {})) as server:
        yield server


def error_of(reply: Reply, kind: str) -> dict[str, Any]:
    """The error of a reply in Anthropic's envelope."""
    document = json.loads(reply.body)
    assert document.keys() == {"type", "error", "request_id"}
    assert document["type"] == "error"
    assert document["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    error: dict[str, Any] = document["error"]
    assert error["type"] == kind
    return error


async def test_a_message() -> None:
    async with serving() as server:
        (reply,) = await server.exchange(ask(VERSION, "anthropic-beta: a-2025-01-01,b-2025-01-01"))
    assert reply.status == 200
    document = json.loads(reply.body)
    assert document["content"] == [{"type": "text", "text": "onetwothree"}]
    assert document["model"] == MODEL.id
    assert document["id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    assert document["id"].startswith("msg_")
    assert "x-should-retry" not in reply.headers


async def test_a_stream_has_named_events_to_its_end() -> None:
    async with serving() as server:
        (reply,) = await server.exchange(ask(stream=True))
    blocks = [block.split(b"\n") for block in reply.body.split(b"\n\n")[:-1]]
    names = [json.loads(data.removeprefix(b"data: "))["type"] for _, data in blocks]
    assert [name.removeprefix(b"event: ").decode() for name, _ in blocks] == names
    assert names == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


async def test_a_stream_that_fails_ends_with_the_error() -> None:
    failure = stretto_error(503, "engine_unavailable", 5.0)
    async with serving(FakePipeline(failure=failure)) as server:
        (reply,) = await server.exchange(ask(stream=True))
    assert (reply.status, reply.complete) == (200, True)
    name, data = reply.body.split(b"\n\n")[-2].split(b"\n")
    assert name == b"event: error"
    error = json.loads(data.removeprefix(b"data: "))
    assert error["error"] == {
        "type": "overloaded_error",
        "message": "It is so.",
        "code": "engine_unavailable",
        "param": "model",
    }
    assert error["request_id"] == reply.headers["request-id"]


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
async def test_counting(version: str) -> None:
    pipeline = FakePipeline()
    async with serving(pipeline) as server:
        body = json.dumps({key: value for key, value in MESSAGE.items() if key != "max_tokens"}).encode()
        for data in (body, None):
            wire = ask(
                f"anthropic-version: {version}",
                target="/v1/messages/count_tokens?beta=true",
                body=data,
            )
            (reply,) = await server.exchange(wire)
            assert (reply.status, json.loads(reply.body)) == (200, {"input_tokens": 3})
        wire = ask(target="/v1/messages/count_tokens", model="other")
        (reply,) = await server.exchange(wire)
        assert reply.status == 404
        assert error_of(reply, "not_found_error")["code"] == "model_not_found"
    assert pipeline.begun == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("given", "status", "kind", "retry"),
    [
        (stretto_error(429, "queue_full", 1.2), 429, "rate_limit_error", ("2", "true")),
        (stretto_error(503, "draining", 5.0), 529, "overloaded_error", ("5", "true")),
        (stretto_error(400, "context_length_exceeded"), 400, "invalid_request_error", (None, "false")),
        (stretto_error(409, "other"), 409, "conflict_error", (None, "false")),
        (stretto_error(500, "engine_error"), 500, "api_error", (None, "true")),
        (stretto_error(500, "grammar_stuck"), 500, "api_error", (None, "false")),
        (RuntimeError("secret"), 500, "api_error", (None, "true")),
    ],
)
async def test_refusals_have_their_status_and_say_whether_to_retry(
    stream: bool, given: Exception, status: int, kind: str, retry: tuple[str | None, str]
) -> None:
    async with serving(FakePipeline(refusal=given)) as server:
        (reply,) = await server.exchange(ask(stream=stream))
    assert reply.status == status
    assert b"secret" not in reply.body
    error_of(reply, kind)
    assert (reply.headers.get("retry-after"), reply.headers["x-should-retry"]) == retry


@pytest.mark.parametrize(
    ("wire", "status", "kind", "code"),
    [
        (ask(body=b"{"), 400, "invalid_request_error", "invalid_json"),
        (ask(body=b"[" * 200_000), 400, "invalid_request_error", "invalid_request_body"),
        (ask(body=b"x" * 1_000_001), 413, "request_too_large", "request_too_large"),
        (ask("anthropic-version: 2030-01-01"), 400, "invalid_request_error", "invalid_header"),
        (ask(VERSION, "anthropic-version: 2026-10-21"), 400, "invalid_request_error", "invalid_header"),
        (
            post(b"{}", "Content-Type: text/plain", "Connection: close", target="/v1/messages"),
            415,
            "invalid_request_error",
            "unsupported_media_type",
        ),
        (get("/v1/messages", "Connection: close"), 405, "invalid_request_error", "method_not_allowed"),
        (get("/v1/messages/batches", "Connection: close"), 404, "not_found_error", "not_found"),
        (get("/v1/models/other", VERSION, "Connection: close"), 404, "not_found_error", "model_not_found"),
        (
            b"POST /v1/messages HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
            403,
            "permission_error",
            "host_not_allowed",
        ),
    ],
)  # fmt: skip
async def test_what_is_refused_before_the_pipeline(wire: bytes, status: int, kind: str, code: str) -> None:
    pipeline = FakePipeline()
    async with serving(pipeline, {"body_bytes": 1_000_000}) as server:
        (reply,) = await server.exchange(wire)
    assert reply.status == status
    assert error_of(reply, kind)["code"] == code
    assert reply.headers["x-should-retry"] == "false"
    assert pipeline.begun == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        (["x-api-key: s3cret"], 200),
        (["Authorization: Bearer s3cret"], 200),
        (["x-api-key: s3cret", "Authorization: Bearer other"], 200),
        (["x-api-key: other", "Authorization: Bearer s3cret"], 401),
        (["x-api-key: "], 401),
        (["Authorization: Bearer other", "x-api-key: "], 401),
    ],
)
async def test_the_key_in_either_header(headers: list[str], status: int) -> None:
    async with serving(api_key="s3cret") as server:
        (reply,) = await server.exchange(ask(*headers))
        assert reply.status == status
        if status == 401:
            assert error_of(reply, "authentication_error")["code"] == "invalid_api_key"
        (reply,) = await server.exchange(get("/v1/models", "Connection: close", *headers))
        assert reply.status == status


def test_the_setting_names_the_mounts() -> None:
    (field,) = [field for field in SETTING_FIELDS if field.name == "api_compat"]
    assert field.make_default() == tuple(MOUNTS)
    assert field.spec.kind.from_text(",".join(MOUNTS)) == tuple(MOUNTS)


@pytest.mark.parametrize("compat", [(), ("openai",), ("anthropic",), ("anthropic", "openai")])
async def test_only_the_apis_that_are_asked_for_are_served(compat: tuple[str, ...]) -> None:
    chat = {"model": "tiny", "messages": MESSAGE["messages"]}
    async with serving(compat=compat) as server:
        (message,) = await server.exchange(ask())
        (answer,) = await server.exchange(ask(target="/v1/chat/completions", body=json.dumps(chat).encode()))
        models = await server.get("/v1/models")
    assert message.status == (200 if "anthropic" in compat else 404)
    assert answer.status == (200 if "openai" in compat else 404)
    assert models.status == 200
    if "anthropic" not in compat:
        error_of(message, "not_found_error")


# Models --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "names", "more"),
    [
        ("", ["pulled/tiny", "vectors"], False),
        ("limit=1", ["pulled/tiny"], True),
        ("limit=1000&beta=true", ["pulled/tiny", "vectors"], False),
        ("after_id=pulled%2Ftiny", ["vectors"], False),
        ("after_id=vectors", [], False),
        ("before_id=vectors", ["pulled/tiny"], False),
        ("before_id=pulled/tiny&limit=1", [], False),
        ("lifecycle=active&lifecycle=retired", ["pulled/tiny", "vectors"], False),
        ("lifecycle[]=retired", [], False),
    ],
)
async def test_pages_of_models(query: str, names: list[str], more: bool) -> None:
    async with serving(embedder=FakeEmbedder()) as server:
        document = json.loads((await server.get(f"/v1/models?{query}")).body)
    assert [entry["id"] for entry in document["data"]] == names
    assert document["has_more"] is more
    ends = (names[0], names[-1]) if names else (None, None)
    assert (document["first_id"], document["last_id"]) == ends


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=many", "limit"),
        ("after_id=other", "after_id"),
        ("before_id=other", "before_id"),
        ("lifecycle=gone", "lifecycle"),
    ],
)
async def test_pages_that_cannot_be(query: str, param: str) -> None:
    async with serving() as server:
        reply = await server.get(f"/v1/models?{query}")
    assert reply.status == 400
    assert json.loads(reply.body)["error"]["param"] == param


async def test_capabilities_are_written_as_each_client_reads_them() -> None:
    async with serving() as server:
        plain = json.loads((await server.get("/v1/models/tiny")).body)
        (reply,) = await server.exchange(get("/v1/models/tiny", VERSION, "Connection: close"))
        asked = json.loads(reply.body)
    assert plain.pop("capabilities") == ["chat"]
    capabilities = asked.pop("capabilities")
    assert plain == asked
    assert capabilities["image_input"] == {"supported": False}
    assert capabilities["thinking"]["types"]["adaptive"] == {"supported": False}
    assert (plain["max_input_tokens"], plain["max_tokens"], plain["lifecycle"]) == (512, 511, "active")
