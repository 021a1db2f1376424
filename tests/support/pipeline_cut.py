"""A pipeline whose echo model says one thing, and answers of many lengths made at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from stretto.backends.echo import EchoBackend, EchoScript, EchoTokenizer
from stretto.conversation import ChatTemplate, Event, Request
from stretto.engine import EngineClient
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Pipeline, ServedModel

TEMPLATE = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}{{ '' if tools else '' }}{# <think></think> #}"""


@asynccontextmanager
async def pipeline_of(says: str, dialect: str) -> AsyncIterator[Pipeline]:
    async with EngineClient(EchoBackend(EchoScript(reply=says))) as engine:
        facts = await engine.load()
        yield Pipeline(
            model=ServedModel("echo", (), 0, facts.max_context_tokens, "echo", "echo", "cpu", "int32"),
            engine=engine,
            tokenizer=EchoTokenizer(),
            template=ChatTemplate(TEMPLATE),
            admission=Admission(64, 64, waiting=engine.held_back),
            log=LifecycleLog(),
            tool_dialect=dialect,
        )


async def answers_of(
    pipeline: Pipeline, limits: Iterable[int], asked: Callable[[int], Request]
) -> dict[int, list[Event]]:
    """The events of answers to requests with all these limits, made at once."""
    answers: dict[int, list[Event]] = {}

    async def make(limit: int) -> None:
        async with pipeline.answer(asked(limit)) as events:
            answers[limit] = [event async for event in events]

    async with trio.open_nursery() as nursery:
        for limit in limits:
            nursery.start_soon(make, limit)
    return answers
