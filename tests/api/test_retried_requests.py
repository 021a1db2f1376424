"""Retries over a real server: by a key, by the official clients' own header, and by an official client that lost its patience."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anthropic
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from stretto.api import Retries, public_app
from support.serving_pipeline import FakePipeline, stretto_error
from support.serving_server import PATIENCE_S, Reply, RunningServer, parse_replies, post, running

MESSAGE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "one two three"}],
}
KEY = "Idempotency-Key: 0a1b"
IMPATIENT = "x-stainless-read-timeout: 0.000001"


def counted(count: int) -> str:
    return f"X-Stainless-Retry-Count: {count}"


def ask(*extra: str, **fields: Any) -> bytes:
    body = json.dumps({**MESSAGE, **fields}).encode()
    return post(body, "Content-Type: application/json", "Connection: close", *extra, target="/v1/messages")


@asynccontextmanager
async def serving(
    pipeline: FakePipeline, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[RunningServer, Retries]]:
    retries = Retries(**options)
    living = trio.CancelScope()

    async def live(task_status: trio.TaskStatus[None]) -> None:
        with living:
            await retries.run(task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(live)
        async with running(public_app(pipeline, retries=retries), **(limits or {})) as server:
            yield server, retries
            living.cancel()  # kept replies, which the count of tasks at the end would find


def held_back() -> tuple[FakePipeline, trio.Semaphore]:
    pace = trio.Semaphore(0)
    return FakePipeline(pace=pace), pace


def let_go(pace: trio.Semaphore) -> None:
    for _ in range(100):
        pace.release()


async def until(retries: Retries, name: str, count: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while retries.stats()[name] != count:
            await wait_all_tasks_blocked()


@pytest.mark.parametrize(
    ("first", "second", "stream"),
    [([KEY], [KEY], False), ([KEY], [KEY], True), ([counted(0)], [counted(1)], False)],
)
async def test_a_retry_of_a_running_request_joins_it(
    first: list[str], second: list[str], stream: bool
) -> None:
    pipeline, pace = held_back()
    replies: list[Reply] = []

    async def send(server: RunningServer, wire: bytes) -> None:
        replies.extend(await server.exchange(wire))

    async with serving(pipeline) as (server, retries):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send, server, ask(*first, stream=stream))
            with trio.fail_after(PATIENCE_S):
                await pipeline.entered.wait()
            pace.release()
            nursery.start_soon(send, server, ask(*second, stream=stream))
            await until(retries, "joined_total", 1)
            let_go(pace)
    assert (pipeline.begun, pipeline.cancelled) == (1, 0)
    one, two = replies
    assert one.status == two.status == 200
    assert one.body == two.body
    assert b"onetwothree" in one.body or b'"three"' in one.body
    assert one.headers["request-id"] == two.headers["request-id"]
    assert sorted(reply.headers.get("idempotent-replayed", "") for reply in replies) == ["", "true"]


@pytest.mark.parametrize(
    ("first", "second", "stream"),
    [
        ([KEY], [KEY], False),
        ([KEY], [KEY], True),
        ([counted(0), IMPATIENT], [counted(1)], False),
    ],
)
async def test_the_work_goes_on_for_a_client_that_comes_back(
    first: list[str], second: list[str], stream: bool
) -> None:
    pipeline, pace = held_back()
    async with serving(pipeline, grace_s=PATIENCE_S) as (server, retries):
        async with await server.connect() as client:
            await client.send(ask(*first, stream=stream))
            with trio.fail_after(PATIENCE_S):
                await pipeline.entered.wait()
            pace.release()
        await until(retries, "orphaned", 1)
        assert (pipeline.begun, pipeline.ended) == (1, 0)
        async with await server.connect() as client:
            await client.send(ask(*second, stream=stream))
            await until(retries, "joined_total", 1)
            let_go(pace)
            (reply,) = parse_replies(await client.read_all())
    assert (reply.status, reply.complete) == (200, True)
    assert reply.headers["idempotent-replayed"] == "true"
    assert (pipeline.begun, pipeline.cancelled) == (1, 0)


@pytest.mark.parametrize(
    ("headers", "grace_s"),
    [([], 5.0), ([counted(0)], 5.0), ([counted(0), "x-stainless-read-timeout: 600"], 5.0), ([KEY], 0.0)],
)
async def test_a_client_that_is_not_expected_back_ends_its_work(headers: list[str], grace_s: float) -> None:
    pipeline, _ = held_back()
    async with serving(pipeline, grace_s=grace_s) as (server, retries):
        async with await server.connect() as client:
            await client.send(ask(*headers))
            with trio.fail_after(PATIENCE_S):
                await pipeline.entered.wait()
        with trio.fail_after(PATIENCE_S):
            await pipeline.left.wait()
        assert (pipeline.ended, pipeline.cancelled) == (1, 1)
        assert retries.stats()["orphaned"] == 0


async def test_a_reply_is_there_again_for_its_key_alone() -> None:
    pipeline = FakePipeline()
    async with serving(pipeline) as (server, _):
        (first,) = await server.exchange(ask(KEY))
        (again,) = await server.exchange(ask(KEY))
        assert again.body == first.body
        assert again.headers["idempotent-replayed"] == "true"
        (reused,) = await server.exchange(ask(KEY, max_tokens=8))
        assert reused.status == 422
        error = json.loads(reused.body)["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "idempotency_key_reused")
        assert reused.headers["x-should-retry"] == "false"
        for count in (0, 1):
            (reply,) = await server.exchange(ask(counted(count)))
            assert "idempotent-replayed" not in reply.headers
    assert pipeline.begun == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_what_failed_is_run_anew(stream: bool) -> None:
    pipeline = FakePipeline(refusal=stretto_error(429, "queue_full", 1.0))
    async with serving(pipeline) as (server, _):
        (refused,) = await server.exchange(ask(KEY, stream=stream))
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        pipeline.refusal, pipeline.failure = None, stretto_error(500, "engine_error")
        (failed,) = await server.exchange(ask(KEY, stream=stream))
        assert failed.status == (200 if stream else 500)
        assert b"engine_error" in failed.body
        pipeline.failure = None
        (served,) = await server.exchange(ask(KEY, stream=stream))
        assert served.status == 200
        assert b"engine_error" not in served.body
        assert "idempotent-replayed" not in served.headers


@pytest.mark.parametrize("stream", [False, True])
async def test_a_drain_ends_joined_runs_with_a_word(stream: bool) -> None:
    pipeline, _ = held_back()
    async with serving(pipeline, {"drain_grace_s": 0.2, "end_margin_s": 5.0}) as (server, retries):
        async with await server.connect() as client:
            await client.send(ask(KEY, stream=stream))
            with trio.fail_after(PATIENCE_S):
                await pipeline.entered.wait()
            retries.drain()
            server.stopping.set()
            (reply,) = parse_replies(await client.read_all())
        assert reply.complete
        assert reply.status == (200 if stream else 529)
        assert b'"draining"' in reply.body
        with trio.fail_after(PATIENCE_S):
            await pipeline.left.wait()
    assert (pipeline.ended, pipeline.cancelled) == (1, 1)


async def test_the_official_client_is_answered_once_however_often_it_asks() -> None:
    pipeline, pace = held_back()
    async with serving(pipeline, grace_s=PATIENCE_S) as (server, retries):

        def call() -> tuple[str, str | None]:
            url = f"http://127.0.0.1:{server.port}"
            with anthropic.Anthropic(base_url=url, api_key="k", timeout=0.2, max_retries=1000) as client:
                message = client.messages.create(**MESSAGE)
            (block,) = message.content
            assert block.type == "text"
            return block.text, message._request_id

        async def let_go_after_a_retry() -> None:
            await until(retries, "joined_total", 2)
            let_go(pace)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(let_go_after_a_retry)
            text, request_id = await trio.to_thread.run_sync(partial(call))
    assert text == "onetwothree"
    assert request_id is not None
    assert pipeline.begun == 1
