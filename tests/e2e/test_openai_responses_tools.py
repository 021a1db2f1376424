"""Functions through the official ``openai`` package's Responses, against a daemon whose model calls one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from support.daemon import RunningDaemon, running

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
TIME: Any = {**WEATHER, "name": "get_time"}
TOOLS: Any = [
    WEATHER,
    {"type": "namespace", "name": "clock", "description": "Time.", "tools": [TIME]},
    {"type": "web_search"},
]


@pytest.fixture(scope="module")
def calling_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    script = f"reply={CALL}"
    with running(tmp_path_factory.mktemp("calling"), "--backend", "echo", "--echo", script) as daemon:
        yield daemon


def client_of(daemon: RunningDaemon) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0)


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def test_a_call_and_its_output_sent_back(calling_daemon: RunningDaemon) -> None:
    with client_of(calling_daemon) as client:
        first = client.responses.create(model="echo", input="How is the weather in Paris?", tools=TOOLS)
        (call,) = calls_of(first)
        assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
        assert first.status == call.status == "completed"
        assert [tool.type for tool in first.tools] == ["function", "namespace"]
        items: Any = [
            {"role": "user", "content": "How is the weather in Paris?"},
            *first.output,
            {"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."},
        ]
        second = client.responses.create(model="echo", input=items, tools=TOOLS, tool_choice="none")
    assert calls_of(second) == []
    assert second.output_text


def test_the_stream_of_a_call(calling_daemon: RunningDaemon) -> None:
    with client_of(calling_daemon) as client:
        with client.responses.stream(model="echo", input="Weather?", tools=TOOLS) as stream:
            events = list(stream)
            final = stream.get_final_response()
    (call,) = calls_of(final)
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    assert "".join(event.delta for event in deltas) == call.arguments
    assert json.loads(call.arguments) == {"city": "Paris"}
    (added,) = [event.item for event in events if event.type == "response.output_item.added"]
    assert added.type == "function_call"
    assert (added.name, added.call_id, added.arguments) == ("get_weather", call.call_id, "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "get_time"}),
        ({"type": "function", "name": "get_weather"}, {"get_weather"}),
        ({"type": "function", "name": "get_time"}, {"get_time"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}, {"get_time"}),
    ],
)  # fmt: skip
def test_a_call_that_must_be_made_is_made_and_valid(
    calling_daemon: RunningDaemon, choice: Any, names: set[str], stream: bool
) -> None:
    asked: Any = {
        "model": "echo", "input": "Weather?", "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False,
        "temperature": 0, "max_output_tokens": 2000,
    }  # fmt: skip
    with client_of(calling_daemon) as client:
        if stream:
            with client.responses.stream(**asked) as events:
                response: Any = events.get_final_response()
        else:
            response = client.responses.create(**asked)
    (call,) = calls_of(response)
    assert response.status == "completed"
    assert call.name in names
    assert call.namespace == ("clock" if call.name == "get_time" else None)
    arguments = json.loads(call.arguments)
    assert list(arguments) == ["city"]
    assert isinstance(arguments["city"], str)


@pytest.mark.parametrize("limit", [1, 5, 12, 20, 30, 40, 55, 62, 70])
def test_a_call_that_is_cut_off_says_so(calling_daemon: RunningDaemon, limit: int) -> None:
    """Wherever the limit falls, status, items and text agree, and what was cut can be sent back."""
    with client_of(calling_daemon) as client:
        response = client.responses.create(
            model="echo", input="Weather?", tools=TOOLS, max_output_tokens=limit
        )
        items: Any = [
            {"role": "user", "content": "Weather?"},
            *response.output,
            {"role": "user", "content": "And?"},
        ]
        again = client.responses.create(model="echo", input=items, tools=TOOLS)
    assert response.usage is not None
    assert response.usage.output_tokens == limit
    assert response.status == "incomplete"
    assert response.output[-1].status == "incomplete"
    assert "\ufffd" not in response.output_text
    assert again.status == "completed"
