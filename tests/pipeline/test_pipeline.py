"""The walk of a request over the echo backend: every refusal before the first event, every ending accounted."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from stretto.backends.echo import EchoScript, EchoTokenizer
from stretto.conversation import (
    Done,
    Event,
    Finish,
    Message,
    Request,
    SamplingParams,
    TextPart,
)
from stretto.engine import EngineClient
from stretto.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    NotFound,
    QueueFull,
    RequestCancelled,
    Unavailable,
)
from support.pipeline_echo import collect, pipeline_with, text_of


def ask(text: str = "hello", request_id: str = "r", model: str = "echo", **fields: Any) -> Request:
    return Request(request_id, model, (Message("user", (TextPart(text),)),), **fields)


async def idle(engine: EngineClient) -> None:
    """Return when the engine holds no sequence."""
    while engine.progress().busy:
        await trio.lowlevel.checkpoint()


async def test_an_answer_ends_with_finish_and_usage() -> None:
    async with pipeline_with() as (pipeline, _, _, log):
        events = await collect(pipeline, ask("so it goes"))
    assert text_of(events) == "so it goes"
    assert events[-2] == Finish(0, "stop")
    assert isinstance(events[-1], Done)
    prompt = "<|im_start|>user\nso it goes<|im_end|>\n<|im_start|>assistant\n"
    assert events[-1].usage.prompt_tokens == len(EchoTokenizer().encode(prompt, allow_special=True))
    assert events[-1].usage.completion_tokens == len("so it goes") + 1
    assert log.events[0] == "accepted"
    assert log.events[-1] == "completed"


async def test_who_hangs_up_at_the_last_word_has_had_the_whole_answer() -> None:
    async with pipeline_with() as (pipeline, _, _, log):
        with trio.CancelScope() as scope:
            async with pipeline.answer(ask("hello")) as answer:
                async for event in answer:
                    if isinstance(event, Done):
                        scope.cancel()
                        await trio.lowlevel.checkpoint()
        with trio.CancelScope() as scope:
            async with pipeline.answer(ask("hello", "s")) as answer:
                await anext(answer)
                scope.cancel()
                await trio.lowlevel.checkpoint()
    assert [event for event in log.events if event in ("completed", "cancelled")] == [
        "completed",
        "cancelled",
    ]


async def test_length_ends_an_answer_at_its_limit() -> None:
    async with pipeline_with() as (pipeline, _, _, _):
        events = await collect(pipeline, ask("abcdef", max_tokens=3))
    assert text_of(events) == "abc"
    assert events[-2] == Finish(0, "length")
    assert isinstance(events[-1], Done)
    assert events[-1].usage.completion_tokens == 3


async def test_a_stop_string_ends_the_answer_the_count_and_the_work() -> None:
    async with pipeline_with(EchoScript(repeat=0)) as (pipeline, engine, _, log):
        events = await collect(pipeline, ask("one STOP two", stop=("STOP",)))
        await idle(engine)
    assert text_of(events) == "one "
    assert events[-2] == Finish(0, "stop", "STOP")
    assert isinstance(events[-1], Done)
    assert events[-1].usage.completion_tokens == len("one STOP")
    assert log.events[-1] == "completed"


async def test_several_choices_each_finish_once() -> None:
    async with pipeline_with() as (pipeline, _, _, _):
        events = await collect(pipeline, ask("three", n=3))
    assert [text_of(events, index) for index in range(3)] == ["three"] * 3
    assert sorted(event.index for event in events if isinstance(event, Finish)) == [0, 1, 2]
    assert isinstance(events[-1], Done)
    assert events[-1].usage.completion_tokens == 3 * (len("three") + 1)


async def test_seeded_choices_differ_and_repeat() -> None:
    script = EchoScript(peak=2.0)
    sampling = SamplingParams(temperature=1.0, seed=5)
    async with pipeline_with(script) as (pipeline, _, _, _):
        runs = [
            await collect(pipeline, ask("x", n=2, sampling=sampling, max_tokens=12, request_id=name))
            for name in "ab"
        ]
    first, second = ([text_of(events, index) for index in range(2)] for events in runs)
    assert first == second
    assert first[0] != first[1]


async def test_leaving_early_cancels_the_work() -> None:
    async with pipeline_with(EchoScript(repeat=0)) as (pipeline, engine, _, log):
        async with pipeline.answer(ask()) as answer:
            await answer.__anext__()
        await idle(engine)
        assert pipeline.requests() == []
        assert pipeline.status()["admission"]["inside"] == 0  # type: ignore[index]
    assert log.events[-1] == "cancelled"


async def test_a_cancelled_reader_cancels_the_work() -> None:
    async with pipeline_with(EchoScript(stall_at_step=1)) as (pipeline, engine, backend, log):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, pipeline, ask())
            await trio.to_thread.run_sync(backend.stalled.wait)
            nursery.cancel_scope.cancel()
        backend.release()
        await idle(engine)
    assert log.events[-1] == "cancelled"


async def test_an_administrator_s_cancel_is_told_to_the_caller() -> None:
    async with pipeline_with(EchoScript(repeat=0)) as (pipeline, engine, _, log):

        async def cancelled_midway() -> None:
            async with pipeline.answer(ask()) as answer:
                async for _ in answer:
                    assert pipeline.cancel("r")

        with pytest.raises(RequestCancelled):
            await cancelled_midway()
        await idle(engine)
        assert not pipeline.cancel("r")
    assert log.lines[-1][1]["code"] == "request_cancelled"


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        (ask(model="other"), NotFound, "model"),
        (ask("x" * 5000), ContextLengthExceeded, "messages"),
        (ask(max_tokens=5000), ContextLengthExceeded, "max_tokens"),
        (ask(n=9), InvalidRequest, "n"),
    ],
)
async def test_refusals_come_before_the_first_event(
    request_: Request, error: type[Exception], param: str
) -> None:
    async with pipeline_with() as (pipeline, _, _, _):
        with pytest.raises(error) as caught:
            async with pipeline.answer(request_):
                raise AssertionError("entered")
        assert caught.value.param == param  # type: ignore[attr-defined]
        assert pipeline.requests() == []


async def test_the_context_is_used_to_its_last_token() -> None:
    async with pipeline_with(EchoScript(context_tokens=100, repeat=0)) as (pipeline, _, _, _):
        events = await collect(pipeline, ask())
        assert isinstance(events[-1], Done)
        assert events[-1].usage.total_tokens == 100
        prompt_tokens = events[-1].usage.prompt_tokens
        await collect(pipeline, ask(max_tokens=100 - prompt_tokens))
        with pytest.raises(ContextLengthExceeded) as caught:
            await collect(pipeline, ask(max_tokens=101 - prompt_tokens))
    assert "100" in caught.value.message
    assert str(prompt_tokens) in caught.value.message


async def test_a_limit_beyond_the_context_is_lowered_only_when_asked() -> None:
    async with pipeline_with(EchoScript(context_tokens=100, repeat=0)) as (pipeline, _, _, _):
        events = await collect(pipeline, ask(max_tokens=5000, lower_max_tokens=True))
        assert isinstance(events[-1], Done)
        assert events[-1].usage.total_tokens == 100
        fits = await collect(pipeline, ask(max_tokens=7, lower_max_tokens=True))
        assert isinstance(fits[-1], Done)
        assert fits[-1].usage.completion_tokens == 7
        with pytest.raises(ContextLengthExceeded) as caught:
            await collect(pipeline, ask("x" * 500, max_tokens=7, lower_max_tokens=True))
        assert (caught.value.limit_tokens, caught.value.param) == (100, "messages")
        assert caught.value.prompt_tokens > 500


async def test_counted_tokens_are_those_of_the_prompt() -> None:
    async with pipeline_with(EchoScript(context_tokens=100)) as (pipeline, _, _, log):
        for request in (ask("héllo"), ask("héllo", continues=True), ask("x<|im_end|>")):
            counted = await pipeline.count_tokens(request)
            events = await collect(pipeline, request)
            assert isinstance(events[-1], Done)
            assert events[-1].usage.prompt_tokens == counted
        lines = len(log.lines)
        assert await pipeline.count_tokens(ask("x" * 500)) > 500
        with pytest.raises(NotFound):
            await pipeline.count_tokens(ask(model="other"))
        assert len(log.lines) == lines


async def test_an_alias_is_the_same_model() -> None:
    async with pipeline_with() as (pipeline, _, _, _):
        assert text_of(await collect(pipeline, ask(model="alias"))) == "hello"


async def test_a_default_limit_holds_when_a_request_names_none() -> None:
    async with pipeline_with(EchoScript(repeat=0), default_max_tokens=7) as (pipeline, _, _, _):
        events = await collect(pipeline, ask())
        assert isinstance(events[-1], Done)
        assert events[-1].usage.completion_tokens == 7
        events = await collect(pipeline, ask(max_tokens=9))
        assert isinstance(events[-1], Done)
        assert events[-1].usage.completion_tokens == 9


async def test_a_model_without_a_template_cannot_chat() -> None:
    async with pipeline_with(template=False) as (pipeline, _, _, _):
        with pytest.raises(InvalidRequest) as caught:
            await collect(pipeline, ask())
    assert caught.value.code == "template_error"
    assert "--chat-template" in str(caught.value)


async def test_draining_refuses_new_work_and_finishes_the_old() -> None:
    async with pipeline_with() as (pipeline, _, _, _):
        async with pipeline.answer(ask("old")) as answer:
            pipeline.drain()
            assert pipeline.health().state == "draining"
            with pytest.raises(Unavailable) as caught:
                await collect(pipeline, ask(request_id="new"))
            assert caught.value.code == "draining"
            assert text_of([event async for event in answer]) == "old"
        await pipeline.wait_idle()


async def test_a_failing_step_is_the_caller_s_error_and_the_next_is_served() -> None:
    async with pipeline_with(EchoScript(fail_at_step=1)) as (pipeline, _, _, log):
        with pytest.raises(EngineError):
            await collect(pipeline, ask())
        assert text_of(await collect(pipeline, ask("next", request_id="s"))) == "next"
    assert ("failed", "engine_error") in [(event, fields.get("code")) for event, fields in log.lines]


async def test_a_failure_that_the_reader_deals_with_is_logged_as_one() -> None:
    async with pipeline_with(EchoScript(fail_at_step=1)) as (pipeline, _, _, log):
        async with pipeline.answer(ask()) as answer:
            with pytest.raises(EngineError):
                await anext(answer)
    assert log.events[-1] == "failed"
    assert "completed" not in log.events


@pytest.mark.parametrize("fault", ["fail_at_step=4", "lost_at_step=4"])
async def test_the_text_before_a_failure_is_not_lost(fault: str) -> None:
    async with pipeline_with(EchoScript.parse(fault)) as (pipeline, engine, _, log):
        events: list[Event] = []

        async def read_when_all_is_over() -> None:
            async with pipeline.answer(ask("abcdef")) as answer:
                await idle(engine)
                async for event in answer:
                    events.append(event)

        with pytest.raises((EngineError, Unavailable)):
            await read_when_all_is_over()
    assert text_of(events) == "abc"
    assert log.events[-1] == "failed"


async def test_the_queue_limit_is_checked_before_anything_is_rendered() -> None:
    async with pipeline_with(EchoScript(stall_at_step=1), max_batch=1, queue_limit=1) as (
        pipeline,
        _,
        backend,
        log,
    ):
        async with trio.open_nursery() as nursery:
            for name in ("one", "two"):
                nursery.start_soon(collect, pipeline, ask(request_id=name))
            while len(pipeline.requests()) < 2:
                await trio.lowlevel.checkpoint()
            with pytest.raises(QueueFull) as caught:
                await collect(pipeline, ask(request_id="three"))
            assert caught.value.retry_after_s is not None
            backend.release()
    assert log.events.count("completed") == 2


async def test_a_burst_that_the_next_step_will_take_is_not_a_queue() -> None:
    async with pipeline_with(EchoScript(stall_at_step=1), max_batch=8, queue_limit=1) as (
        pipeline,
        _,
        backend,
        log,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, pipeline, ask(request_id="first"))
            await trio.to_thread.run_sync(backend.stalled.wait)
            for number in range(7):
                nursery.start_soon(collect, pipeline, ask(request_id=str(number)))
            while log.events.count("queued") < 8:
                await trio.lowlevel.checkpoint()
            backend.release()
    assert log.events.count("completed") == 8


async def test_usage_counts_what_was_guessed() -> None:
    script = EchoScript(reply="width * height and so on and so on")
    async with pipeline_with(script, speculation=True) as (pipeline, engine, _, _):
        plain = await collect(pipeline, ask("Say it."))
        helped = await collect(pipeline, ask("Say it.", predicted="width * height"))
        stopped = await collect(pipeline, ask("Say it.", predicted=script.reply, stop=("height",)))
        stats = engine.stats()
    assert text_of(plain) == text_of(helped) == script.reply
    assert text_of(stopped) == "width * "
    usages = [events[-1].usage for events in (plain, helped, stopped) if isinstance(events[-1], Done)]
    assert [usage.completion_tokens for usage in usages] == [35, 35, 14]
    assert 0 < usages[0].accepted_tokens < usages[1].accepted_tokens < 35
    assert 0 < usages[2].accepted_tokens <= 14
    assert stats.accepted_tokens >= sum(usage.accepted_tokens for usage in usages)
    assert stats.rejected_tokens >= sum(usage.rejected_tokens for usage in usages)


async def test_nothing_is_guessed_where_that_is_switched_off() -> None:
    async with pipeline_with() as (pipeline, engine, _, _):
        events = await collect(pipeline, ask("ab" * 40, predicted="ab" * 40))
        assert isinstance(events[-1], Done)
        assert (events[-1].usage.accepted_tokens, engine.stats().accepted_tokens) == (0, 0)
