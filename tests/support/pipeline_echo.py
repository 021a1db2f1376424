"""A pipeline over the echo backend, and what it answered."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoScript, EchoTokenizer
from stretto.conversation import ChatTemplate, Event, Request, TextDelta
from stretto.engine import EngineClient, EngineConfig
from stretto.pipeline import Admission, Pipeline, ServedModel


class Recorder:
    """A request log that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, event: str) -> Any:
        return lambda request_id, **fields: self.lines.append((event, fields))

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.lines]


@asynccontextmanager
async def pipeline_with(
    script: EchoScript | None = None,
    *,
    template: bool = True,
    max_batch: int = 4,
    queue_limit: int = 4,
    speculation: bool = False,
    **options: Any,
) -> AsyncIterator[tuple[Pipeline, EngineClient, EchoBackend, Recorder]]:
    tokenizer = EchoTokenizer()
    backend = EchoBackend(script or EchoScript())
    log = Recorder()
    # Where no time passes, steps cost nothing and every guess is worth it.
    clock = (lambda: 0.0) if speculation else time.monotonic
    async with EngineClient(
        backend, EngineConfig(max_batch=max_batch, speculation=speculation), clock=clock
    ) as engine:
        facts = await engine.load()
        yield (
            Pipeline(
                model=ServedModel(
                    "echo", ("alias",), 0, facts.max_context_tokens, "echo", "echo", "cpu", "int32"
                ),
                engine=engine,
                tokenizer=tokenizer,
                template=ChatTemplate(ECHO_CHAT_TEMPLATE) if template else None,
                admission=Admission(max_batch, queue_limit, waiting=engine.held_back),
                log=log,
                **options,
            ),
            engine,
            backend,
            log,
        )
        backend.release()


async def collect(pipeline: Pipeline, request: Request) -> list[Event]:
    async with pipeline.answer(request) as answer:
        return [event async for event in answer]


def text_of(events: list[Event], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.index == index)
