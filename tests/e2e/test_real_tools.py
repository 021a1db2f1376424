"""Functions with the real SmolLM2, whose template knows none: forced calls are there and valid, and the reason agrees with the body."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest

from support.daemon import RunningDaemon

pytestmark = [pytest.mark.torch, pytest.mark.real_model, pytest.mark.timeout(600)]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["London", "Paris", "Rome"]},
    },
    "required": ["city"],
}
CLOCK: dict[str, Any] = {"type": "object", "properties": {}}
PARAMETERS = {"get_weather": WEATHER, "clock": CLOCK}
TOOLS: Any = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER},
    },
    {"type": "function", "function": {"name": "clock", "description": "The time now.", "parameters": CLOCK}},
]
CHOICES: dict[str, Any] = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "named": {"type": "function", "function": {"name": "get_weather"}},
}
QUESTIONS = ("What is the weather in London?", "Say hello to my friend Ann.")


def ask(daemon: RunningDaemon, choice: str, question: str, stream: bool) -> tuple[str, str, list[Any]]:
    """Reason, text and calls."""
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0, timeout=500) as client:
        asked: dict[str, Any] = {
            "model": "smollm2", "messages": [{"role": "user", "content": question}], "tools": TOOLS, "temperature": 0,
            "tool_choice": CHOICES[choice], "parallel_tool_calls": False, "max_tokens": 16 if choice in ("auto", "none") else 48,
        }  # fmt: skip
        if not stream:
            answer = client.chat.completions.create(**asked).choices[0]
            calls = [call.function for call in answer.message.tool_calls or []]
            return answer.finish_reason, answer.message.content or "", [(c.name, c.arguments) for c in calls]
        reason, text, found = "", "", []
        for chunk in client.chat.completions.create(**asked, stream=True):
            delta = chunk.choices[0].delta
            reason = chunk.choices[0].finish_reason or reason
            text += delta.content or ""
            for call in delta.tool_calls or []:
                if call.function.name:
                    found.append([call.function.name, ""])
                found[call.index][1] += call.function.arguments or ""
        return reason, text, [(name, arguments) for name, arguments in found]


def test_every_choice_streamed_and_whole(real_daemon: RunningDaemon) -> None:
    cases = list(itertools.product(CHOICES, QUESTIONS, (False, True)))
    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(cases, pool.map(lambda case: ask(real_daemon, *case), cases), strict=True))
    for (choice, question, stream), (reason, text, calls) in answers.items():
        assert answers[choice, question, not stream] == (reason, text, calls)
        if choice in ("required", "named"):
            # Whatever it was asked: one call, valid, and nothing else.
            assert (reason, text, len(calls)) == ("tool_calls", "", 1)
        elif choice == "none":
            assert (calls, reason in ("stop", "length")) == ([], True)
        else:
            assert reason == "length" or (reason == "tool_calls") is bool(calls)
        if choice == "named":
            assert calls[0][0] == "get_weather"
        if reason == "tool_calls":
            for name, arguments in calls:
                jsonschema.validate(json.loads(arguments), PARAMETERS[name])
        assert text or calls
