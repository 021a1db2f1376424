"""Answers drawn at random from what a constraint allows, over a vocabulary of bytes and a few longer tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema

from stretto.backends.echo import EchoTokenizer
from stretto.conversation import (
    Event,
    TextAssembler,
    TextDelta,
    Thinking,
    ToolCallDelta,
    ToolCallStart,
    ToolSpec,
)
from stretto.conversation.channels import ChannelReader
from stretto.conversation.tool_dialects import TOOL_DIALECTS
from stretto.grammar import AnswerRules, GrammarCompiler
from support.conversation_tokens import GivenToken

_ENDING = b'"}])>/\n,'


class WordTokenizer(EchoTokenizer):
    """Bytes, and further tokens: words, and control tokens that are marks."""

    def __init__(self, words: Sequence[bytes] = (), marks: Sequence[str] = ()) -> None:
        super().__init__()
        self.words = list(words)
        self.mark_texts = list(marks)
        self.vocab_size = 260 + len(words) + len(marks)

    @property
    def marks(self) -> Mapping[int, str]:
        first = 260 + len(self.words)
        return {first + index: text for index, text in enumerate(self.mark_texts)}

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 260:
            return super().token_bytes(token_id)
        index = token_id - 260
        return self.words[index] if index < len(self.words) else b""


def rules_of(
    dialect: str, tools: Sequence[ToolSpec], *, must_call: bool = True, parallel: bool = True, **more: Any
) -> AnswerRules:
    places = tuple((tool, f"tools[{index}].function.parameters") for index, tool in enumerate(tools))
    return AnswerRules(
        tools=places, must_call=must_call, parallel=parallel, dialect=TOOL_DIALECTS[dialect], **more
    )


def draw(
    compiler: GrammarCompiler,
    tokenizer: EchoTokenizer,
    rules: AnswerRules,
    seed: int,
    *,
    thinking: Thinking = "none",
    script: Sequence[int] = (),
    most_tokens: int = 700,
) -> tuple[list[int], bool]:
    """Token ids, and whether the answer ended: the script's where they are allowed, and random ones that lean towards the end."""
    follower = compiler.compile_answer(rules).follow(thinking)
    choose = random.Random(seed)
    said: list[int] = []
    while len(said) < most_tokens:
        allowed = follower.allowed()
        wanted = script[len(said)] if len(said) < len(script) else 258
        if allowed is not None and wanted not in allowed:
            likely = [int(i) for i in allowed if i < 256 and i in _ENDING] or [
                int(i) for i in allowed if i == 258
            ]
            wanted = choose.choice(likely if likely and choose.random() < 0.6 else [int(i) for i in allowed])
        follower.accept(wanted)
        if wanted in tokenizer.end_ids:
            return said, True
        said.append(wanted)
    return said, False


def events_of(
    tokenizer: EchoTokenizer, ids: Sequence[int], reader: ChannelReader | None, *, ended: bool
) -> list[Event]:
    assembler = TextAssembler(
        tokenizer,
        index=0,
        stop=(),
        logprobs=False,
        channels=reader,
        marks=tokenizer.marks if isinstance(tokenizer, WordTokenizer) else {},
    )
    return [*assembler.push([GivenToken(i) for i in ids]), *assembler.close("stop" if ended else "length")]


def calls_of(events: Sequence[Event]) -> list[tuple[str, str]]:
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolCallStart):
            calls.append((event.name, ""))
        elif isinstance(event, ToolCallDelta):
            calls[event.call] = (calls[event.call][0], calls[event.call][1] + event.arguments)
    return calls


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def check_calls(calls: Sequence[tuple[str, str]], tools: Sequence[ToolSpec]) -> None:
    """By another implementation of JSON Schema."""
    known = {tool.name: tool.parameters for tool in tools}
    for name, arguments in calls:
        value = json.loads(arguments)
        assert isinstance(value, dict)
        jsonschema.Draft202012Validator(dict(known[name])).validate(value)
