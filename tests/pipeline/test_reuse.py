"""What a request is told of the prefix cache: its usage, its log lines, and why something was missed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoTokenizer
from stretto.conversation import ChatTemplate
from stretto.conversation.events import Done, Usage
from stretto.conversation.messages import Message, Request, Role, SamplingParams, TextPart
from stretto.engine import CacheMiss, EngineClient, EngineConfig
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Pipeline, ServedModel

MODEL = ServedModel("echo", (), 0, 4096, "echo", "echo", "cpu", "int32")


class Lines(LifecycleLog):
    """Keeps the lines it would write."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, object]]] = []

    def _emit(self, level: int, event: str, request_id: str, **fields: object) -> None:
        self.seen.append((event, {name: value for name, value in fields.items() if value is not None}))

    def last(self, event: str) -> dict[str, object]:
        return next(fields for name, fields in reversed(self.seen) if name == event)


@asynccontextmanager
async def running(config: EngineConfig | None = None) -> AsyncIterator[tuple[Pipeline, Lines]]:
    lines = Lines()
    async with EngineClient(EchoBackend(), config) as engine:
        await engine.load()
        yield (
            Pipeline(
                model=MODEL,
                engine=engine,
                tokenizer=EchoTokenizer(),
                template=ChatTemplate(ECHO_CHAT_TEMPLATE),
                admission=Admission(16, 4, waiting=engine.held_back),
                log=lines,
                cache_block_tokens=16 if config is None else 0,
            ),
            lines,
        )


async def ask(pipeline: Pipeline, name: str, *said: str, choices: int = 1) -> tuple[Usage, CacheMiss | None]:
    """Run a request; who speaks alternates, the user last."""
    roles: tuple[Role, Role] = ("user", "assistant")
    messages = tuple(Message(roles[index % 2], (TextPart(text),)) for index, text in enumerate(said))
    request = Request(name, "echo", messages, sampling=SamplingParams(temperature=0.0), n=choices)
    async with pipeline.answer(request) as answer:
        async for event in answer:
            if isinstance(event, Done):
                return event.usage, answer.cache_miss
    raise AssertionError("no end")


async def test_usage_and_log_lines_tell_what_was_reused_and_why_not_more() -> None:
    async with running() as (pipeline, lines):
        first, miss = await ask(pipeline, "first", "tell me " * 12)
        assert (first.cached_tokens, miss) == (0, CacheMiss(0, "cold"))
        assert first.stored_tokens == (first.prompt_tokens - 1) // 16 * 16
        assert lines.last("completed")["cache_miss"] == "0:cold"
        second, miss = await ask(pipeline, "second", "tell me " * 12, "tell me " * 12, "more")
        known = first.prompt_tokens + first.completion_tokens - 1
        assert second.cached_tokens == known // 16 * 16
        assert second.cached_tokens + second.stored_tokens == (second.prompt_tokens - 1) // 16 * 16
        assert miss == CacheMiss(known, "partial_block")
        assert lines.last("generating")["cached_tokens"] == second.cached_tokens
        assert lines.last("completed")["cached_tokens"] == second.cached_tokens
        assert lines.last("completed")["cache_miss"] == f"{known}:partial_block"
        third, miss = await ask(pipeline, "third", "tell me " * 12, "tell me " * 12, "more")
        assert (third.cached_tokens, miss) == ((third.prompt_tokens - 1) // 16 * 16, None)
        assert third.stored_tokens == 0
        assert "cache_miss" not in lines.last("completed")


async def test_several_answers_count_the_prompt_that_one_of_them_computed() -> None:
    async with running() as (pipeline, _):
        usage, miss = await ask(pipeline, "first", "several " * 20, choices=3)
        assert (usage.cached_tokens, miss) == (0, CacheMiss(0, "cold"))
        usage, miss = await ask(pipeline, "second", "several " * 20, choices=3)
        assert (usage.cached_tokens, miss) == ((usage.prompt_tokens - 1) // 16 * 16, None)


async def test_off() -> None:
    async with running(EngineConfig(prefix_cache=False)) as (pipeline, lines):
        for name in ("first", "second"):
            usage, miss = await ask(pipeline, name, "the same " * 10)
            assert (usage.cached_tokens, usage.stored_tokens, miss) == (0, 0, CacheMiss(0, "disabled"))
            assert lines.last("completed")["cache_miss"] == "0:disabled"
