"""Raw prompts over the echo backend: order, echo, log-probabilities, nothing to answer, the best of several."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.backends.echo import EchoScript, EchoTokenizer
from stretto.conversation import (
    Constraint,
    Done,
    Echo,
    Event,
    Finish,
    Message,
    RawPrompt,
    Request,
    SamplingParams,
    TextDelta,
    TextPart,
    TokenLogprob,
    Usage,
)
from stretto.errors import ContextLengthExceeded, EngineError, InvalidRequest
from stretto.pipeline import Pipeline
from support.pipeline_echo import collect, pipeline_with, text_of

TOKENIZER = EchoTokenizer()
GREEDY = SamplingParams(temperature=0.0)


def chatml(text: str) -> str:
    """A raw text that the echo model goes on with ``text``."""
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, allow_special=True))


def ask(*prompts: RawPrompt | str, **fields: Any) -> Request:
    raw = tuple(prompt if isinstance(prompt, RawPrompt) else RawPrompt(prompt) for prompt in prompts)
    return Request("r", "echo", (), prompts=raw, **fields)


def usage_of(events: list[Event]) -> Usage:
    assert isinstance(events[-1], Done)
    return events[-1].usage


def logprobs_of(events: list[Event], index: int = 0) -> list[TokenLogprob]:
    return [
        entry
        for event in events
        if isinstance(event, (Echo, TextDelta)) and event.index == index
        for entry in event.logprobs
    ]


@pytest.mark.parametrize("template", [True, False])
async def test_a_text_is_gone_on_with_whether_or_not_there_is_a_template(template: bool) -> None:
    async with pipeline_with(template=template) as (pipeline, _, _, log):
        events = await collect(pipeline, ask(chatml("hello")))
        by_ids = await collect(pipeline, ask(RawPrompt(ids=ids_of(chatml("hello")))))
    assert text_of(events) == text_of(by_ids) == "hello"
    assert events[-2] == Finish(0, "stop")
    assert usage_of(events).prompt_tokens == len(ids_of(chatml("hello")))
    assert usage_of(events).completion_tokens == 6
    assert log.events[-1] == "completed"


async def test_answers_to_several_prompts_in_their_order() -> None:
    texts = ["one", "two", "three"]
    async with pipeline_with(max_batch=2, queue_limit=9) as (pipeline, _, _, log):
        events = await collect(pipeline, ask(*map(chatml, texts), n=2, max_tokens=4, sampling=GREEDY))
    assert [text_of(events, index) for index in range(6)] == ["one", "one", "two", "two", "thre", "thre"]
    finishes = {event.index: event.reason for event in events if isinstance(event, Finish)}
    assert finishes == {0: "stop", 1: "stop", 2: "stop", 3: "stop", 4: "length", 5: "length"}
    usage = usage_of(events)
    assert usage.prompt_tokens == sum(len(ids_of(chatml(text))) for text in texts)
    assert usage.completion_tokens == 2 * (4 + 4 + 4)
    assert log.lines[0][1]["choices"] == 6


async def test_what_was_known_of_each_prompt_is_added_up() -> None:
    async with pipeline_with(max_batch=8, queue_limit=9) as (pipeline, _, _, _):
        first = await collect(pipeline, ask(chatml("a" * 40), chatml("b" * 50), n=2))
        second = await collect(pipeline, ask(chatml("b" * 50), chatml("a" * 40), n=2))
    assert usage_of(first).cached_tokens < 32  # the two begin alike
    expected = sum((len(ids_of(chatml(text))) - 1) // 16 * 16 for text in ("a" * 40, "b" * 50))
    assert usage_of(second).cached_tokens == expected


async def test_a_seed_draws_for_each_prompt_what_it_draws_alone() -> None:
    script = EchoScript(peak=2.0, repeat=0)
    fields: dict[str, Any] = {"n": 2, "max_tokens": 8, "sampling": SamplingParams(seed=3)}
    async with pipeline_with(script, queue_limit=9) as (pipeline, _, _, _):
        together = await collect(pipeline, ask(chatml("x"), chatml("some"), **fields))
        alone = await collect(pipeline, ask(chatml("some"), **fields))
    assert [text_of(together, 2), text_of(together, 3)] == [text_of(alone), text_of(alone, 1)]
    assert text_of(alone) != text_of(alone, 1)


# Echo and log-probabilities --------------------------------------------------------------------------------------------


async def test_an_echo_comes_first_and_is_the_prompt() -> None:
    prompts = [RawPrompt(chatml("é"), echo=True), RawPrompt(chatml("two"), echo=True)]
    async with pipeline_with() as (pipeline, _, _, _):
        events = await collect(pipeline, ask(*prompts, n=2))
    for index in range(4):
        mine = [event for event in events if not isinstance(event, Done) and event.index == index]
        assert mine[0] == Echo(index, chatml(("é", "two")[index // 2]))
        assert not any(isinstance(event, Echo) for event in mine[1:])
    assert text_of(events, 3) == "two"


@pytest.mark.parametrize("logprobs", [0, 3])
async def test_each_token_has_an_entry_the_one_that_ends_too(logprobs: int) -> None:
    prompt = RawPrompt(chatml("ab"), echo=True)
    async with pipeline_with() as (pipeline, _, _, _):
        await collect(pipeline, ask(prompt))  # so that the prompt is known
        events = await collect(pipeline, ask(prompt, logprobs=logprobs, sampling=GREEDY))
    entries = logprobs_of(events)
    ids = (*ids_of(chatml("ab")), *b"ab", *ids_of("<|im_end|>"))
    assert [entry.token for entry in entries] == [TOKENIZER.token_text(token_id) for token_id in ids]
    assert entries[0].logprob is None
    assert all(entry.logprob is not None and entry.logprob < 0 for entry in entries[1:])
    assert all(len(entry.top) == logprobs for entry in entries[1:])
    assert usage_of(events).cached_tokens == 0
    assert b"".join(entry.data for entry in entries) == (chatml("ab") + "ab").encode()


async def test_the_entry_of_an_end_token_comes_with_the_last_text() -> None:
    async with pipeline_with() as (pipeline, _, _, _):
        events = await collect(pipeline, ask(chatml(""), logprobs=1, sampling=GREEDY))
        stopped = await collect(pipeline, ask(chatml("abc"), logprobs=1, stop=("b",), sampling=GREEDY))
    assert [entry.token for entry in logprobs_of(events)] == ["<|im_end|>"]
    assert text_of(events) == ""
    assert [entry.token for entry in logprobs_of(stopped)] == ["a"]
    assert stopped[-2] == Finish(0, "stop", "b")


async def test_no_entries_unless_asked_for() -> None:
    async with pipeline_with() as (pipeline, _, _, _):
        events = await collect(pipeline, ask(RawPrompt(chatml("ab"), echo=True)))
    assert logprobs_of(events) == []


# Nothing to answer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("logprobs", [None, 0])
async def test_a_prompt_that_is_only_read(logprobs: int | None) -> None:
    text = chatml("hello")
    async with pipeline_with() as (pipeline, _, _, log):
        events = await collect(
            pipeline, ask(RawPrompt(text, echo=True), max_tokens=0, logprobs=logprobs, n=2)
        )
    assert [event for event in events if isinstance(event, Finish)] == [
        Finish(0, "length"),
        Finish(1, "length"),
    ]
    assert [event.text for event in events if isinstance(event, Echo)] == [text, text]
    assert len(logprobs_of(events)) == (0 if logprobs is None else len(ids_of(text)))
    assert usage_of(events).completion_tokens == 0
    assert log.events[-1] == "completed"


async def test_a_conversation_that_is_only_read() -> None:
    request = Request("r", "echo", (Message("user", (TextPart("hello there, you"),)),), max_tokens=0)
    async with pipeline_with() as (pipeline, _, _, _):
        events = await collect(pipeline, request)
        again = await collect(pipeline, request)
    assert events[:-1] == [Finish(0, "length")]
    assert usage_of(events).completion_tokens == 0
    assert usage_of(again).cached_tokens == (usage_of(again).prompt_tokens - 1) // 16 * 16


async def test_the_context_holds_a_prompt_that_fills_it_and_not_one_more_token() -> None:
    async with pipeline_with(EchoScript(context_tokens=64)) as (pipeline, _, _, _):
        events = await collect(pipeline, ask("x" * 64, max_tokens=0))
        assert usage_of(events).prompt_tokens == 64
        with pytest.raises(ContextLengthExceeded, match="your prompt resulted in 65 tokens") as caught:
            await collect(pipeline, ask("x" * 65, max_tokens=0))
        assert caught.value.param == "prompt"
        with pytest.raises(ContextLengthExceeded, match="your prompt resulted in 64 tokens"):
            await collect(pipeline, ask("x", "x" * 64, max_tokens=1))
        with pytest.raises(ContextLengthExceeded, match="60 in the prompt, 5 in the completion") as caught:
            await collect(pipeline, ask("x" * 60, max_tokens=5))
        assert caught.value.param == "max_tokens"
        lowered = await collect(pipeline, ask("x" * 60, max_tokens=5, lower_max_tokens=True))
        assert lowered[-2] == Finish(0, "stop")


# The best of several ---------------------------------------------------------------------------------------------------


async def test_the_best_are_those_with_the_highest_log_probability_a_token() -> None:
    script = EchoScript(peak=2.0, repeat=3)
    prompts = (chatml("some text"), chatml("x"))
    sampling = SamplingParams(temperature=1.0, top_k=40, seed=11)
    async with pipeline_with(script, max_batch=4, queue_limit=20) as (pipeline, _, _, _):
        every = await collect(pipeline, ask(*prompts, n=6, max_tokens=12, sampling=sampling, logprobs=0))
        best = await collect(pipeline, ask(*prompts, n=2, best_of=6, max_tokens=12, sampling=sampling))
        told = await collect(
            pipeline, ask(*prompts, n=2, best_of=6, max_tokens=12, sampling=sampling, logprobs=0)
        )
    expected = []
    for place in range(2):
        means = {}
        for index in range(place * 6, place * 6 + 6):
            values = [entry.logprob for entry in logprobs_of(every, index)]
            means[index] = sum(value for value in values if value is not None) / len(values)
        expected += sorted(means, key=lambda index: -means[index])[:2]
    assert [text_of(best, index) for index in range(4)] == [text_of(every, index) for index in expected]
    assert [text_of(told, index) for index in range(4)] == [text_of(every, index) for index in expected]
    assert {event.index for event in best if not isinstance(event, Done)} == {0, 1, 2, 3}
    assert sum(isinstance(event, Finish) for event in best) == 4
    assert logprobs_of(best) == []
    assert logprobs_of(told, 1) == logprobs_of(every, expected[1])
    assert usage_of(best).completion_tokens == usage_of(every).completion_tokens


async def test_a_failure_among_several_is_told() -> None:
    async with pipeline_with(EchoScript(fail_at_step=2)) as (pipeline, _, _, log):
        with pytest.raises(EngineError):
            await collect(pipeline, ask(chatml("hello"), best_of=3))
    assert log.events[-1] == "failed"


# Refusals --------------------------------------------------------------------------------------------------------------


async def test_what_cannot_be_served_is_refused_before_anything_runs() -> None:
    async with pipeline_with() as (pipeline, engine, _, _):
        with pytest.raises(InvalidRequest, match="filling in the middle"):
            await collect(pipeline, ask(RawPrompt("a", suffix="b")))
        with pytest.raises(InvalidRequest, match="empty"):
            await collect(pipeline, ask("fine", ""))
        with pytest.raises(InvalidRequest, match="token id 260"):
            await collect(pipeline, ask(RawPrompt(ids=(1, 260))))
        with pytest.raises(InvalidRequest, match="asks for 9 answers, but this server holds at most 8"):
            await collect(pipeline, ask("a", "b", "c", n=3))
        with pytest.raises(InvalidRequest, match="asks for 10 answers"):
            await collect(pipeline, ask("a", n=1, best_of=10))
        assert engine.stats().steps == 0


async def test_an_answer_keeps_to_a_constraint_after_its_echo() -> None:
    request = ask(
        RawPrompt(chatml("yes or no"), echo=True),
        constraint=Constraint("choice", '["yes", "no"]', "guided_choice"),
        sampling=GREEDY,
    )
    async with pipeline_with() as (pipeline, _, _, _):
        events = await collect(pipeline, request)
    assert text_of(events) == "yes"


async def test_the_text_before_a_failure_begins_with_the_echo() -> None:
    events: list[Event] = []

    async def read(pipeline: Pipeline) -> None:
        async with pipeline.answer(ask(RawPrompt(chatml("hello"), echo=True))) as answer:
            async for event in answer:
                events.append(event)

    async with pipeline_with(EchoScript(fail_at_step=3)) as (pipeline, _, _, _):
        with pytest.raises(EngineError):
            await read(pipeline)
    assert events[0] == Echo(0, chatml("hello"))
    assert text_of(events) == "he"
