"""The public routes over a real server: every status, header and envelope, and what happens when clients leave."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from stretto.api import public_app
from stretto.conversation.messages import Request
from stretto.dialects.openai_chat import CHAT as CHAT_DIALECT
from stretto.dialects.openai_chat import parse_chat
from stretto.pipeline import Health
from support.serving_pipeline import MODEL, FakePipeline, stretto_error
from support.serving_server import PATIENCE_S, Reply, RunningServer, get, parse_replies, post, running

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "one two three"}]}


def chat(stream: bool = False, body: bytes | None = None, *extra: str) -> bytes:
    data = json.dumps({**CHAT, "stream": stream}).encode() if body is None else body
    return post(
        data, "Content-Type: application/json", "Connection: close", *extra, target="/v1/chat/completions"
    )


@asynccontextmanager
async def serving(
    pipeline: FakePipeline, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[RunningServer]:
    async with running(public_app(pipeline, **options), **(limits or {})) as server:
        yield server


def error_of(reply: Reply) -> dict[str, Any]:
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    (key,) = json.loads(reply.body)
    assert key == "error"
    error: dict[str, Any] = json.loads(reply.body)["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    return error


def frames_of(body: bytes) -> list[Any]:
    """Data frames as JSON; comments left out, everything else refused."""
    found: list[Any] = []
    for block in body.split(b"\n\n"):
        if not block or block.startswith(b":"):
            continue
        assert block.startswith(b"data: "), block
        data = block.removeprefix(b"data: ")
        found.append("[DONE]" if data == b"[DONE]" else json.loads(data))
    return found


# Health and models -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "live", "ready", "statuses"),
    [
        ("ready", True, True, (200, 200, 200)),
        ("draining", True, False, (200, 200, 503)),
        ("stalled", True, False, (200, 200, 503)),
        ("engine_lost", False, False, (503, 503, 503)),
    ],
)
async def test_health_tells_live_and_ready_apart(
    state: Any, live: bool, ready: bool, statuses: tuple[int, ...]
) -> None:
    pipeline = FakePipeline(current=Health(live=live, ready=ready, state=state, detail={"steps": 1}))
    async with serving(pipeline, api_key="k") as server:
        replies = [await server.get(path) for path in ("/health", "/health/live", "/health/ready")]
    assert tuple(reply.status for reply in replies) == statuses
    for reply in replies:
        document = json.loads(reply.body)
        assert (document["status"], document["live"], document["ready"]) == (state, live, ready)
        assert reply.headers["x-request-id"].startswith("req-")


async def test_models() -> None:
    async with serving(FakePipeline()) as server:
        document = json.loads((await server.get("/v1/models")).body)
        (entry,) = document["data"]
        assert document["object"] == "list"
        assert (entry["id"], entry["object"], entry["created"]) == (MODEL.id, "model", MODEL.created)
        assert entry["created_at"] == "2023-11-14T22:13:20Z"
        assert (entry["context_length"], entry["max_output_length"]) == (512, 511)
        assert entry["capabilities"] == ["chat"]
        assert document["models"][0]["name"] == MODEL.id
        assert document["models"][0]["release_date"] == "2023-11-14"
        for name in ("pulled/tiny", "pulled%2Ftiny", "tiny"):
            reply = await server.get(f"/v1/models/{name}")
            assert reply.status == 200
            assert json.loads(reply.body) == entry
        reply = await server.get("/v1/models/other")
        assert reply.status == 404
        assert error_of(reply)["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/v1/models", "/v1/models/tiny"])
async def test_head_is_get_without_the_body(path: str) -> None:
    async with serving(FakePipeline()) as server:
        whole = await server.get(path)
        async with await server.connect() as client:
            await client.send(
                f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
            )
            data = await client.read_all()
        (reply,) = parse_replies(data, "HEAD")
    assert (reply.status, reply.body) == (200, b"")
    assert data.endswith(b"\r\n\r\n")
    assert reply.headers["content-length"] == whole.headers["content-length"]


# Refusals ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v2/models", "/health/", "/admin/status", "/v1/chat/completions/", "/%00"]
)
async def test_no_such_route(path: str) -> None:
    async with serving(FakePipeline()) as server:
        reply = await server.get(path)
    assert reply.status == 404
    assert error_of(reply)["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/models", {"GET", "HEAD"}),
        ("POST", "/health", {"GET", "HEAD"}),
        ("GET", "/v1/chat/completions", {"POST"}),
        ("OPTIONS", "/v1/chat/completions", {"POST"}),
        ("get", "/health", {"GET", "HEAD"}),
    ],
)
async def test_wrong_method(method: str, path: str, allow: set[str]) -> None:
    async with serving(FakePipeline()) as server:
        wire = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        (reply,) = await server.exchange(wire.encode())
    assert reply.status == 405
    assert error_of(reply)["code"] == "method_not_allowed"
    assert set(reply.headers["allow"].split(", ")) == allow
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "kind", ["", "Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded"]
)
async def test_a_body_that_is_not_declared_as_json(kind: str) -> None:
    pipeline = FakePipeline()
    async with serving(pipeline) as server:
        extra = [kind] if kind else []
        wire = post(b"{}", "Connection: close", *extra, target="/v1/chat/completions")
        (reply,) = await server.exchange(wire)
    assert reply.status == 415
    assert error_of(reply)["code"] == "unsupported_media_type"
    assert pipeline.begun == 0


async def test_json_with_a_charset_is_json() -> None:
    async with serving(FakePipeline()) as server:
        wire = post(
            json.dumps(CHAT).encode(),
            "Content-Type: Application/JSON; charset=utf-8",
            "Connection: close",
            target="/v1/chat/completions",
        )
        (reply,) = await server.exchange(wire)
    assert reply.status == 200


async def test_body_over_the_limit() -> None:
    async with serving(FakePipeline(), {"body_bytes": 100}) as server:
        (reply,) = await server.exchange(chat(body=b"x" * 101))
        assert reply.status == 413
        assert error_of(reply)["code"] == "request_too_large"


async def test_invalid_json() -> None:
    async with serving(FakePipeline()) as server:
        (reply,) = await server.exchange(chat(body=b"{"))
        assert reply.status == 400
        assert error_of(reply)["code"] == "invalid_json"
        (reply,) = await server.exchange(chat(body=b"[" * 200_000))  # parsed off the loop
        assert reply.status == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "code", "retry_after_s"),
    [
        (429, "queue_full", 1.2),
        (503, "draining", 5.0),
        (400, "context_length_exceeded", None),
        (500, "engine_error", None),
    ],
)
async def test_pipeline_refusals_keep_their_status(
    stream: bool, status: int, code: str, retry_after_s: float | None
) -> None:
    async with serving(FakePipeline(refusal=stretto_error(status, code, retry_after_s))) as server:
        (reply,) = await server.exchange(chat(stream))
    assert reply.status == status
    error = error_of(reply)
    assert (error["code"], error["param"]) == (code, "model")
    expected = {1.2: "2", 5.0: "5", None: None}[retry_after_s]
    assert reply.headers.get("retry-after") == expected
    assert reply.headers["x-request-id"].startswith("chatcmpl-")


@pytest.mark.parametrize("stream", [False, True])
async def test_unexpected_failures_tell_nothing(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(FakePipeline(refusal=RuntimeError("secret"))) as server:
        (reply,) = await server.exchange(chat(stream))
    assert reply.status == 500
    assert error_of(reply)["code"] == "internal_error"
    assert b"secret" not in reply.body
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert reply.headers["x-request-id"] in record.getMessage()
    assert record.exc_info is not None


# The key -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Authorization: Bearer s3cret", 200),
        ("Authorization: bearer  s3cret", 200),
        ("Authorization: Bearer s3cre", 401),
        ("Authorization: Bearer s3crett", 401),
        ("Authorization: Bearer", 401),
        ("Authorization: Basic s3cret", 401),
        ("Authorization: s3cret", 401),
        ("Authorization: Bearer \xff\xfe", 401),
        ("X-Other: s3cret", 401),
    ],
)
async def test_the_key_guards_v1(header: str, status: int) -> None:
    async with serving(FakePipeline(), api_key="s3cret") as server:
        for path in ("/v1/models", "/v1/models/tiny"):
            wire = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}\r\nConnection: close\r\n\r\n"
            (reply,) = await server.exchange(wire.encode("latin-1"))
            assert reply.status == status
            if status == 401:
                error = error_of(reply)
                assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
                assert reply.headers["www-authenticate"] == "Bearer"


async def test_the_key_guards_chat_before_its_body_and_unknown_v1_routes() -> None:
    pipeline = FakePipeline()
    async with serving(pipeline, api_key="k") as server:
        async with await server.connect() as client:
            await client.send(
                chat(False, None, "Expect: 100-continue").partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            )
            (reply,) = parse_replies(await client.read_all())
            assert (reply.status, reply.informational) == (401, [])
        assert (await server.get("/v1/nothing")).status == 401
        assert (await server.get("/health")).status == 200
        (reply,) = await server.exchange(chat(False, None, "Authorization: Bearer k"))
        assert reply.status == 200


async def test_host_and_origin() -> None:
    async with serving(
        FakePipeline(), allowed_hosts=["box.lan"], cors_origins=["http://ui.example"], api_key="k"
    ) as server:
        for path in ("/health", "/v1/models", "/nothing"):
            reply = await server.get(path, host="evil.example")
            assert reply.status == 403
            assert error_of(reply)["code"] == "host_not_allowed"
        assert (await server.get("/health", host="box.lan")).status == 200
        (reply,) = await server.exchange(get("/v1/models", "Origin: http://ui.example", "Connection: close"))
        assert reply.status == 401
        assert (
            reply.headers["access-control-allow-origin"] == "http://ui.example"
        )  # so that the page can read why
        (reply,) = await server.exchange(get("/health", "Origin: http://evil.example", "Connection: close"))
        assert "access-control-allow-origin" not in reply.headers


# Answers ---------------------------------------------------------------------------------------------------------------------


async def test_a_whole_answer() -> None:
    pipeline = FakePipeline()
    async with serving(pipeline) as server:
        (reply,) = await server.exchange(chat())
    document = json.loads(reply.body)
    assert reply.status == 200
    assert document["object"] == "chat.completion"
    assert document["model"] == MODEL.id
    assert document["id"] == reply.headers["x-request-id"]
    assert reply.headers["x-stretto-cache-miss"] == "16:diverged"
    assert document["choices"][0]["message"]["content"] == "onetwothree"
    assert (pipeline.begun, pipeline.ended, pipeline.cancelled) == (1, 1, 0)


@pytest.mark.parametrize("paced", [False, True])
async def test_a_streamed_answer(paced: bool) -> None:
    pipeline = FakePipeline(pace=trio.Semaphore(100) if paced else None)
    async with serving(pipeline) as server:
        (reply,) = await server.exchange(chat(stream=True))
    assert reply.complete
    assert reply.headers["content-type"].startswith("text/event-stream")
    frames = frames_of(reply.body)
    assert frames[-1] == "[DONE]"
    assert {frame["id"] for frame in frames[:-1]} == {reply.headers["x-request-id"]}
    text = "".join(
        choice["delta"].get("content") or "" for frame in frames[:-1] for choice in frame["choices"]
    )
    assert text == "onetwothree"
    assert (pipeline.begun, pipeline.ended, pipeline.cancelled) == (1, 1, 0)


async def test_the_head_of_a_stream_comes_while_the_answer_still_waits() -> None:
    pipeline = FakePipeline(pace=trio.Semaphore(0))
    async with serving(pipeline, ping_interval_s=0.05) as server:
        async with await server.connect() as client:
            await client.send(chat(stream=True))
            data = await client.read_until(b": ping\n\n")
            assert data.startswith(b"HTTP/1.1 200")
            assert pipeline.pace is not None
            for _ in range(10):
                pipeline.pace.release()
            (reply,) = parse_replies(data + await client.read_all())
    assert frames_of(reply.body)[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("failure", "code"),
    [(stretto_error(500, "engine_error"), "engine_error"), (RuntimeError("secret"), "internal_error")],
)
async def test_a_failure_in_mid_stream_becomes_its_last_frame(
    failure: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(FakePipeline(failure=failure)) as server:
        (reply,) = await server.exchange(chat(stream=True))
    frames = frames_of(reply.body)
    assert reply.complete
    assert frames[-1] == "[DONE]"
    assert frames[-2]["error"]["code"] == code
    assert b"secret" not in reply.body
    assert ("secret" in caplog.text) is (code == "internal_error")


async def test_a_failure_of_a_whole_answer_has_its_status() -> None:
    async with serving(FakePipeline(failure=stretto_error(500, "engine_error"))) as server:
        (reply,) = await server.exchange(chat())
    assert (reply.status, error_of(reply)["code"]) == (500, "engine_error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_cancels_its_work(stream: bool) -> None:
    pipeline = FakePipeline(pace=trio.Semaphore(0))
    async with serving(pipeline) as server:
        async with await server.connect() as client:
            await client.send(chat(stream))
            with trio.fail_after(PATIENCE_S):
                await pipeline.entered.wait()
        with trio.fail_after(PATIENCE_S):
            await pipeline.left.wait()
        await server.wait_connections(0)
        assert (pipeline.begun, pipeline.ended, pipeline.cancelled) == (1, 1, 1)
        assert not pipeline.live
        assert (await server.get("/health")).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_lets_answers_end_with_a_word(stream: bool) -> None:
    pipeline = FakePipeline(pace=trio.Semaphore(0))
    async with serving(pipeline, {"drain_grace_s": 0.2, "end_margin_s": 5.0}) as server:
        async with await server.connect() as client:
            await client.send(chat(stream))
            with trio.fail_after(PATIENCE_S):
                await pipeline.entered.wait()
            server.stopping.set()
            (reply,) = parse_replies(await client.read_all())
        assert reply.complete
        if stream:
            frames = frames_of(reply.body)
            assert (frames[-2]["error"]["code"], frames[-1]) == ("draining", "[DONE]")
        else:
            assert (reply.status, error_of(reply)["code"]) == (503, "draining")
            assert reply.headers["retry-after"] == "5"


async def test_many_at_once_and_no_leaks() -> None:
    pipeline = FakePipeline()
    async with serving(pipeline) as server:
        done = 0

        async def one(stream: bool) -> None:
            nonlocal done
            (reply,) = await server.exchange(chat(stream))
            assert reply.status == 200
            done += 1

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(one, number % 2 == 0)
        assert done == pipeline.ended == 40
        assert pipeline.cancelled == 0


async def test_few_large_bodies_are_parsed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = threading.Lock()
    now = most = 0

    def parse(body: bytes, *, request_id: str) -> Request:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        try:
            return parse_chat(body, request_id=request_id)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr("stretto.api.mounts.CHAT", replace(CHAT_DIALECT, parse=parse))
    body = json.dumps({**CHAT, "messages": [{"role": "user", "content": "x" * 2_000_000}]}).encode()
    async with serving(FakePipeline()) as server:
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(server.exchange, chat(body=body))
    assert 1 <= most <= 2
