"""A request's priority on its way to the engine, and where it is seen."""

from __future__ import annotations

import pytest
import trio

from stretto.backends.echo import EchoScript
from stretto.conversation import Priority, RawPrompt, Request
from stretto.conversation.messages import Message, TextPart
from support.pipeline_echo import collect, pipeline_with, text_of

TURN = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
HELLO = (Message("user", (TextPart("hello"),)),)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("priority", ["high", "normal", "background"])
async def test_the_engine_is_told_and_the_answer_is_the_same(priority: Priority, raw: bool) -> None:
    script = EchoScript(repeat=0, stall_at_step=1)
    async with pipeline_with(script) as (pipeline, engine, backend, log), trio.open_nursery() as nursery:
        fields = {"prompts": (RawPrompt(TURN),), "messages": ()} if raw else {"messages": HELLO}
        request = Request("r", "echo", **fields, max_tokens=8, n=2, priority=priority)
        answered: list[str] = []

        async def ask() -> None:
            answered.append(text_of(await collect(pipeline, request), 1))

        nursery.start_soon(ask)
        while not engine.stats().sequences:
            await trio.lowlevel.checkpoint()
        assert [sequence.priority for sequence in engine.stats().sequences] == [priority] * 2
        assert [line["priority"] for line in pipeline.requests()] == [priority]
        assert [fields["priority"] for event, fields in log.lines if event == "accepted"] == [priority]
        backend.release()
    assert len(answered[0]) == 8
