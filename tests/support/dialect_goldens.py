"""Every dialect's answers byte by byte, as files that are reviewed: ``python -m support.dialect_goldens`` writes them anew.

What is rendered are fixed events, so a difference is a difference of the wire format. After writing, look at ``git diff tests/dialects/goldens``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stretto.conversation import (
    Done,
    Event,
    Finish,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    TopLogprob,
    Usage,
)
from stretto.dialects.anthropic import MESSAGES
from stretto.dialects.dialect import Dialect
from stretto.dialects.openai_chat import CHAT
from stretto.dialects.openai_completion import COMPLETION
from stretto.dialects.openai_responses import RESPONSES
from stretto.errors import EngineError, StrettoError

DIRECTORY = Path(__file__).parent.parent / "dialects" / "goldens"
CREATED = 1_700_000_000
PROMPT_TOKENS = 9

_USAGE = Usage(prompt_tokens=9, completion_tokens=7, cached_tokens=4, reasoning_tokens=2, stored_tokens=1)
_SMILE = "😀".encode()
_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FAULT = EngineError("The step failed: é.", remedy="Try again.")

_THOUGHT = [ReasoningDelta(0, "Hm, "), ReasoningDelta(0, "„é“ 😀.")]
_SAID = [TextDelta(0, 'Say "hé"\n'), TextDelta(0, "\u2028😀\\ </x>")]
_CALLED = [
    ToolCallStart(0, 0, "call_1", "get_weather"),
    ToolCallDelta(0, 0, '{"city": "Zü'),
    ToolCallDelta(0, 0, 'rich\\n"}'),
    ToolCallStart(0, 1, "call_2", "get_weather"),
    ToolCallDelta(0, 1, '{"city":"😀"}'),
]
_LOGGED = [
    TextDelta(0, "a", (TokenLogprob("a", -0.25, b"a", (TopLogprob("a", -0.25, b"a"), TopLogprob("b", -2.5, b"b"))),)),
    TextDelta(0, "😀", (TokenLogprob("\ufffd", -1.0, _SMILE[:2]), TokenLogprob("\ufffd", -0.5, _SMILE[2:]))),
]  # fmt: skip

TEXTS: dict[str, Sequence[Event | StrettoError]] = {
    "text": [*_SAID, Finish(0, "stop"), Done(_USAGE)],
    "stop-string": [_SAID[0], Finish(0, "stop", "STOP"), Done(_USAGE)],
    "cut-text": [*_SAID, Finish(0, "length"), Done(_USAGE)],
    "empty": [Finish(0, "stop"), Done(_USAGE)],
    "error-at-once": [_FAULT],
    "error-in-text": [_SAID[0], _FAULT],
}
"""What any dialect may have to say; an error is the last thing."""
PARTS: dict[str, Sequence[Event | StrettoError]] = {
    "reasoning": [*_THOUGHT, *_SAID, Finish(0, "stop"), Done(_USAGE)],
    "calls": [*_CALLED, Finish(0, "tool_calls"), Done(_USAGE)],
    "reasoning-text-calls": [*_THOUGHT, *_SAID, *_CALLED, Finish(0, "tool_calls"), Done(_USAGE)],
    "cut-reasoning": [*_THOUGHT, Finish(0, "length"), Done(_USAGE)],
    "cut-call": [*_CALLED[:2], Finish(0, "length"), Done(_USAGE)],
    "error-in-reasoning": [_THOUGHT[0], _FAULT],
    "error-in-call": [*_SAID, *_CALLED[:2], _FAULT],
    "error-after-call": [*_CALLED, _FAULT],
}
"""What a dialect with reasoning and calls may have to say besides."""
TWO: Sequence[Event | StrettoError] = [
    TextDelta(1, "one"), TextDelta(0, "two"), Finish(1, "stop"), Finish(0, "length"), Done(_USAGE),
]  # fmt: skip
LOGPROBS: Sequence[Event | StrettoError] = [*_LOGGED, Finish(0, "stop"), Done(_USAGE)]

_CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _SCHEMA}}],
}
_COMPLETION = {"model": "m", "prompt": "Hi"}
_RESPONSE = {
    "model": "m",
    "input": "Hi",
    "tools": [{"type": "function", "name": "get_weather", "parameters": _SCHEMA, "strict": False}],
}
_HIDDEN = {"type": "adaptive", "display": "omitted"}
_MESSAGE = {
    "model": "m",
    "max_tokens": 9,
    "stop_sequences": ["STOP"],
    "messages": [{"role": "user", "content": "Hi"}],
    "tools": [{"name": "get_weather", "input_schema": _SCHEMA}],
}


def goldens() -> dict[str, dict[str, bytes]]:
    """For each dialect, what is to be in its file: bytes of replies and streams by what they are of."""
    everything = {**TEXTS, **PARTS}
    with_usage = {"stream_options": {"include_usage": True}}
    logged = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    return {
        "chat": {
            **_bytes(CHAT, _CHAT, everything),
            **_bytes(CHAT, {**_CHAT, **with_usage}, everything, "with usage"),
            **_bytes(CHAT, {**_CHAT, "n": 2}, {"two": TWO}),
            **_bytes(CHAT, {**_CHAT, "logprobs": True, "top_logprobs": 2}, {"logprobs": LOGPROBS}),
        },
        "completions": {
            **_bytes(COMPLETION, _COMPLETION, TEXTS),
            **_bytes(COMPLETION, {**_COMPLETION, **with_usage}, TEXTS, "with usage"),
            **_bytes(COMPLETION, {**_COMPLETION, "n": 2}, {"two": TWO}),
            **_bytes(COMPLETION, {**_COMPLETION, "logprobs": 2}, {"logprobs": LOGPROBS}),
        },
        "responses": {
            **_bytes(RESPONSES, _RESPONSE, everything),
            **_bytes(RESPONSES, {**_RESPONSE, **logged}, {"logprobs": LOGPROBS}),
        },
        "messages": {
            **_bytes(MESSAGES, _MESSAGE, everything),
            **_bytes(MESSAGES, {**_MESSAGE, "thinking": _HIDDEN}, {"hidden reasoning": PARTS["reasoning"]}),
        },
    }


def _bytes(
    dialect: Dialect, body: dict[str, Any], answers: dict[str, Sequence[Event | StrettoError]], note: str = ""
) -> dict[str, bytes]:
    """Each answer streamed; and, unless it failed or a note says what only a stream has, the whole reply."""
    found = {}
    for answer, events in answers.items():
        found[" ".join(filter(None, (answer, "streamed", note)))] = _stream(
            dialect, {**body, "stream": True}, events
        )
        if not note and not isinstance(events[-1], StrettoError):
            plain = [event for event in events if not isinstance(event, StrettoError)]
            found[f"{answer} whole"] = _renderer(dialect, body).json(plain) + b"\n"
    return found


def _stream(dialect: Dialect, body: dict[str, Any], events: Sequence[Event | StrettoError]) -> bytes:
    render = _renderer(dialect, body)
    frames = [render.start(PROMPT_TOKENS)]
    frames += [
        render.error(event) if isinstance(event, StrettoError) else render.event(event) for event in events
    ]
    return b"".join([*frames, render.end()])


def _renderer(dialect: Dialect, body: dict[str, Any]) -> Any:
    request = dialect.parse(json.dumps(body).encode(), request_id=f"{dialect.id_prefix}7")
    return dialect.renderer(request, CREATED, "served")


def as_file(answers: dict[str, bytes]) -> bytes:
    """A dialect's file: a heading for each answer, and its bytes as they are."""
    return b"".join(f"######## {name}\n".encode() + data for name, data in answers.items())


def path_of(dialect: str) -> Path:
    """Where it is."""
    return DIRECTORY / f"{dialect}.txt"


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for dialect, answers in goldens().items():
        path_of(dialect).write_bytes(as_file(answers))
