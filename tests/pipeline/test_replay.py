"""Clients that send our turns back find the prefix cache, whatever they made of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from stretto.backends.echo import EchoBackend, EchoScript, EchoTokenizer
from stretto.conversation import (
    ChatTemplate,
    Done,
    Message,
    ReasoningDelta,
    Request,
    SamplingParams,
    TextDelta,
    TextPart,
    ToolCall,
    ToolCallDelta,
    ToolCallStart,
    ToolSpec,
    Usage,
)
from stretto.engine import EngineClient, EngineConfig
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Pipeline, ServedModel

BLOCK = 16
TOOLS = (
    ToolSpec(
        "look", "Look.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    ),
)
SAYS = '<think>\nI wonder whether to look.\n</think>\n\nLet me look.\n<tool_call>{"name": "look", "arguments": {"a":1,"b":"x"}}</tool_call>'
HERMES = """{%- if tools %}{{ '<|im_start|>system\\n' }}{{ tools | tojson }}{{ '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content | trim }}
{%- for call in message.tool_calls or [] %}{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}{# <think></think> #}"""
PLAIN = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


@dataclass
class Reply:
    """An answer as a client keeps it."""

    message: Message
    usage: Usage


@asynccontextmanager
async def pipeline_of(
    template: str, says: str = SAYS, *, cache: bool = True, **script: Any
) -> AsyncIterator[Pipeline]:
    config = EngineConfig(block_tokens=BLOCK, prefix_cache=cache)
    async with EngineClient(EchoBackend(EchoScript(reply=says, **script)), config) as engine:
        facts = await engine.load()
        yield Pipeline(
            model=ServedModel("echo", (), 0, facts.max_context_tokens, "echo", "echo", "cpu", "int32"),
            engine=engine,
            tokenizer=EchoTokenizer(),
            template=ChatTemplate(template),
            admission=Admission(4, 4, waiting=engine.held_back),
            log=LifecycleLog(),
            cache_block_tokens=BLOCK if cache else 0,
        )


def user(text: str) -> Message:
    return Message("user", (TextPart(text),))


async def ask(pipeline: Pipeline, *messages: Message, **more: Any) -> Reply:
    asked = Request("r", "echo", messages, sampling=SamplingParams(temperature=0), **{"tools": TOOLS, **more})
    text, thought, calls, usage = "", "", [], None
    async with pipeline.answer(asked) as answer:
        async for event in answer:
            if isinstance(event, TextDelta):
                text += event.text
            elif isinstance(event, ReasoningDelta):
                thought += event.text
            elif isinstance(event, ToolCallStart):
                calls.append(ToolCall(event.id, event.name, ""))
            elif isinstance(event, ToolCallDelta):
                calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + event.arguments)
            elif isinstance(event, Done):
                usage = event.usage
    assert usage is not None
    content = (TextPart(text),) if text else ()
    return Reply(Message("assistant", content, tool_calls=tuple(calls), reasoning=thought or None), usage)


def known(reply: Reply) -> int:
    """Tokens of a prompt and its answer that are in full blocks; the answer's last token was never read."""
    return (reply.usage.prompt_tokens + reply.usage.completion_tokens - 1) // BLOCK * BLOCK


def as_clients_do(message: Message) -> list[Message]:
    """The same turn, in forms in which clients send it back."""
    [call] = message.tool_calls
    arguments = json.loads(call.arguments)
    compact = json.dumps(dict(reversed(arguments.items())), separators=(",", ":"))
    return [
        message,
        replace(message, reasoning=None),
        replace(message, tool_calls=(replace(call, arguments=compact),), reasoning=None),
        replace(message, tool_calls=(replace(call, id="toolu_1", arguments=compact),)),
        replace(message, content=(TextPart(f"{message.text}\n"),)),
    ]


@pytest.mark.parametrize("template", [HERMES, PLAIN], ids=["hermes", "described"])
async def test_a_turn_that_comes_back_is_found_whole(template: str) -> None:
    says = SAYS if template == HERMES else SAYS.partition("\n\n")[2]
    for form in range(5):
        async with pipeline_of(template, says) as pipeline:
            first = await ask(pipeline, user("Go."))
            assert first.message.tool_calls
            turn = as_clients_do(first.message)[form]
            result = Message("tool", (TextPart("It is blue."),), tool_call_id=turn.tool_calls[0].id)
            second = await ask(pipeline, user("Go."), turn, result)
            assert second.usage.cached_tokens == known(first)
            # And so on, turn by turn.
            again = as_clients_do(second.message)[form]
            last = await ask(
                pipeline,
                user("Go."),
                turn,
                result,
                again,
                replace(result, tool_call_id=again.tool_calls[0].id),
            )
            assert last.usage.cached_tokens == known(second)
            assert pipeline.status()["chat"]["replayed_total"] == 2  # type: ignore[index]


async def test_what_follows_a_turn_is_written_by_the_template() -> None:
    """The prompt is what was said, and then what the template writes: nothing twice, nothing left out."""
    async with pipeline_of(HERMES) as pipeline:
        first = await ask(pipeline, user("Go."))
        turn = replace(first.message, reasoning=None)
        result = Message("tool", (TextPart("Blue <|im_end|>."),), tool_call_id=turn.tool_calls[0].id)
        prompt = pipeline._chat.prompt(
            Request("r", "echo", (user("Go."), turn, result, user("So?")), tools=TOOLS)
        )  # type: ignore[union-attr]
    head = f"<|im_start|>system\n{json.dumps([{'type': 'function', 'function': {'name': 'look', 'description': 'Look.', 'parameters': dict(TOOLS[0].parameters)}}])}<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
    tokenizer = EchoTokenizer()
    assert list(prompt.ids) == [
        *tokenizer.encode(f"{head}{SAYS}<|im_end|>\n<|im_start|>tool\n", allow_special=True),
        *tokenizer.encode("Blue <|im_end|>.", allow_special=False),
        *tokenizer.encode(
            "<|im_end|>\n<|im_start|>user\nSo?<|im_end|>\n<|im_start|>assistant\n", allow_special=True
        ),
    ]


async def test_a_changing_line_of_the_client_changes_nothing() -> None:
    async with pipeline_of(HERMES, "Fine.") as pipeline:
        asked = [user("How are you, after all this time?")]
        usages = []
        for nonce in ("0a1b2", "77777"):
            line = TextPart(f"x-anthropic-billing-header: cc_version=2.1.9; cch={nonce};")
            system = Message("system", (line, TextPart("You are helpful.")))
            usages.append((await ask(pipeline, system, *asked)).usage)
    assert usages[0].prompt_tokens == usages[1].prompt_tokens
    assert usages[1].cached_tokens == (usages[1].prompt_tokens - 1) // BLOCK * BLOCK


async def test_a_cut_off_answer_can_be_gone_on_from() -> None:
    async with pipeline_of(HERMES, "A long story about a fox that went out.") as pipeline:
        first = await ask(pipeline, user("Tell."), max_tokens=21)
        second = await ask(pipeline, user("Tell."), first.message, user("Go on."))
        assert second.usage.cached_tokens == known(first)
        assert second.message.text == "A long story about a fox that went out."


async def test_an_edited_turn_is_written_as_it_was_edited() -> None:
    async with pipeline_of(HERMES, "The answer is seven, I think.") as pipeline:
        await ask(pipeline, user("Say."))
        turn = Message("assistant", (TextPart("The answer is eight, I think."),))
        prompt = pipeline._chat.prompt(Request("r", "echo", (user("Say."), turn, user("So?")), tools=TOOLS))  # type: ignore[union-attr]
        assert b"eight" in bytes(i for i in prompt.ids if i < 256)
        assert pipeline.status()["chat"]["replayed_total"] == 0  # type: ignore[index]


async def test_an_answer_that_a_stop_string_ended_is_not_kept() -> None:
    async with pipeline_of(HERMES, "One STOP two.") as pipeline:
        first = await ask(pipeline, user("Say."), stop=("STOP",))
        assert first.message.text == "One "
        assert pipeline.status()["chat"]["turns"] == 0  # type: ignore[index]


async def test_what_was_said_never_makes_a_prompt_too_long() -> None:
    """The reasoning that a template would leave out is left out where it does not fit."""
    thought = "<think>" + "hm " * 100 + "</think>Yes."
    async with pipeline_of(HERMES, thought, context_tokens=1000) as pipeline:
        first = await ask(pipeline, user("Say."), tools=())
        turn = replace(first.message, reasoning=None)
        fits = await ask(pipeline, user("Say."), turn, user("So?"), tools=(), max_tokens=400)
        assert fits.usage.prompt_tokens > len(thought)
        full = await ask(pipeline, user("Say."), turn, user("So?"), tools=(), max_tokens=800)
        assert full.usage.prompt_tokens < len(thought)


async def test_without_a_prefix_cache_nothing_is_kept() -> None:
    async with pipeline_of(HERMES, "Yes.", cache=False) as pipeline:
        await ask(pipeline, user("Say."))
        assert "turns" not in pipeline.status()["chat"]  # type: ignore[operator]
