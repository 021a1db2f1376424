"""The stopwatch: what it reads of a stream, and what it refuses to measure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import httpx2
import pytest

from stretto.bench import BenchError, Prompts, Wire, model_of
from stretto.bench.works import percentile, worst_gap_s

Handler = Callable[[httpx2.Request], httpx2.Response]


class Frames(httpx2.AsyncByteStream):
    """A body in pieces; the clock moves a second before each."""

    def __init__(self, clock: Clock, *events: object) -> None:
        self._clock = clock
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self._events:
            self._clock.now += 1.0
            data = event if isinstance(event, str) else f"data: {json.dumps(event)}"
            yield f"{data}\n\n".encode()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def client(handler: Handler) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url="http://server", transport=httpx2.MockTransport(handler))


def delta(text: str, **more: str) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text, **more}}]}


USAGE = {
    "choices": [],
    "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}},
}


async def ask(*events: object, status: int = 200) -> tuple[object, list[dict[str, object]]]:
    clock, bodies = Clock(), []

    def handler(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(status, stream=Frames(clock, *events))

    async with client(handler) as http:
        wire = Wire(http, "m", clock)
        return await wire.chat([{"role": "user", "content": "hi"}], max_tokens=5), bodies


async def test_a_stream_becomes_times_and_counts() -> None:
    opening = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    sample, bodies = await ask(
        opening, ": ping", delta("a"), delta("", reasoning_content="b"), delta("c"), USAGE, "data: [DONE]"
    )
    assert sample.arrivals_s == (3.0, 4.0, 5.0)  # the role and the comment are no text
    assert (sample.ttft_s, sample.gaps_s, sample.ended_s) == (3.0, [1.0, 1.0], 7.0)
    assert (sample.prompt_tokens, sample.completion_tokens, sample.cached_tokens) == (9, 5, 4)
    assert sample.text == "abc"
    assert sample.decode_tokens_per_s == 4 / 2.0
    assert bodies[0]["max_tokens"] == 5
    assert bodies[0]["ignore_eos"] is True
    assert bodies[0]["temperature"] == 0


@pytest.mark.parametrize(
    ("events", "status", "said"),
    [
        (["no such model"], 404, "404"),
        ([delta("a"), {"error": {"message": "lost"}}], 200, "lost"),
        ([delta("a"), "data: [DONE]"], 200, "no usage"),
        ([USAGE], 200, "no text"),
    ],
)
async def test_what_is_no_answer_is_not_measured(events: list[object], status: int, said: str) -> None:
    with pytest.raises(BenchError, match=said):
        await ask(*events, status=status)


async def test_the_model_is_the_first_that_is_listed() -> None:
    async with client(
        lambda request: httpx2.Response(200, json={"data": [{"id": "m1"}, {"id": "m2"}]})
    ) as http:
        assert await model_of(http) == "m1"


@pytest.mark.parametrize("reply", [{"data": []}, {"error": "x"}, [1]])
async def test_a_server_without_models_is_told(reply: object) -> None:
    async with client(lambda request: httpx2.Response(200, json=reply)) as http:
        with pytest.raises(BenchError, match="gives no model"):
            await model_of(http)


def test_prompts_have_the_size_that_was_asked_for_and_no_common_beginning() -> None:
    short, long = Prompts.trial()

    def tokens(text: str) -> int:  # a tokenizer with 2 tokens a word, and a template of 11
        return 11 + 2 * len(text.split())

    prompts = Prompts.calibrated(tokens(short), tokens(long))
    for wanted in (64, 512, 4800):
        assert abs(tokens(prompts.text("a", wanted)) - wanted) <= 2
    assert prompts.text("a", 64) == prompts.text("a", 64)
    assert prompts.text("a", 64)[:20] != prompts.text("b", 64)[:20]


def test_the_worst_gap_counts_only_what_touches_the_span() -> None:
    times = [0.0, 1.0, 2.0, 5.0, 6.0, 30.0]
    assert worst_gap_s(times, 3.0, 5.5) == 3.0
    assert worst_gap_s(times, 5.5, 7.0) == 24.0
    assert worst_gap_s(times[:3], 1.5, 9.0) == 7.0  # it said nothing any more
    assert worst_gap_s(times, 31.0, 30.5) == 0.0


def test_percentiles_are_values_that_were_measured() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [percentile(values, share) for share in (0.0, 0.5, 0.9, 1.0)] == [1.0, 3.0, 5.0, 5.0]
