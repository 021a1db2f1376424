"""``litellm``, unmodified, through its OpenAI, vLLM and Anthropic providers. The echo model says what the user said."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from support.clients import client
from support.daemon import RunningDaemon

# Read when it is imported: it would fetch a list of prices from the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
litellm = client("litellm")

# Its own response objects make pydantic warn, and it leaves clients open.
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in (
        "DeprecationWarning",
        "UserWarning",
        "ResourceWarning",
        "pytest.PytestUnraisableExceptionWarning",
    )
]

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "London"}}\n</tool_call>'
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
FORM = {
    "type": "json_schema",
    "json_schema": {
        "name": "count",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["n"],
            "additionalProperties": False,
        },
    },
}
PROVIDERS = ["openai", "hosted_vllm", "anthropic"]


def fields_of(daemon: RunningDaemon, provider: str, says: str, **fields: Any) -> dict[str, Any]:
    base = daemon.url if provider == "anthropic" else f"{daemon.url}/v1"
    messages = [{"role": "user", "content": says}]
    return {
        "model": f"{provider}/echo", "api_base": base, "api_key": "local", "messages": messages, "max_tokens": 300,
        "num_retries": 0, "max_retries": 0, **fields,
    }  # fmt: skip


def ask(daemon: RunningDaemon, provider: str, says: str, *, stream: bool = False, **fields: Any) -> Any:
    asked = fields_of(daemon, provider, says, **fields)
    if not stream:
        return litellm.completion(**asked)
    return litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True)))


def calls_of(reply: Any) -> list[tuple[str, Any]]:
    calls = reply.choices[0].message.tool_calls or []
    return [(call.function.name, json.loads(call.function.arguments)) for call in calls]


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stream", [False, True])
def test_chat(daemon: RunningDaemon, provider: str, stream: bool) -> None:
    reply = ask(daemon, provider, "Is it you?", stream=stream)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("Is it you?", "stop")


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_tools(daemon: RunningDaemon, provider: str, stream: bool) -> None:
    london = ("get_weather", {"city": "London"})
    reply = ask(daemon, provider, f"{CALL}\n{CALL}", tools=TOOLS, stream=stream)
    assert calls_of(reply) == [london, london]
    assert reply.choices[0].finish_reason == "tool_calls"
    one = ask(daemon, provider, f"{CALL}\n{CALL}", tools=TOOLS, parallel_tool_calls=False, stream=stream)
    assert calls_of(one) == [london]
    for choice in ("required", NAMED):
        forced = ask(daemon, provider, CALL, tools=TOOLS, tool_choice=choice, stream=stream)
        assert calls_of(forced) == [london]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_result_goes_back(daemon: RunningDaemon, provider: str) -> None:
    first = ask(daemon, provider, CALL, tools=TOOLS)
    message = first.choices[0].message
    messages = [
        {"role": "user", "content": CALL},
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."},
    ]
    second = ask(daemon, provider, "", tools=TOOLS, messages=messages)
    assert "Rain." in second.choices[0].message.content


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
def test_structured_output(daemon: RunningDaemon, provider: str) -> None:
    assert ask(daemon, provider, '{"n": 7}', response_format=FORM).choices[0].message.content == '{"n": 7}'
    forced = ask(daemon, provider, "No number.", response_format=FORM, seed=1).choices[0].message.content
    assert 0 <= json.loads(forced)["n"] <= 99


def test_embeddings(daemon: RunningDaemon) -> None:
    reply = litellm.embedding(
        model="openai/minilm", api_base=f"{daemon.url}/v1", api_key="local", input=["one", "two"]
    )
    assert [len(entry["embedding"]) for entry in reply.data] == [384, 384]


def test_completions_and_responses(daemon: RunningDaemon) -> None:
    base = {"api_base": f"{daemon.url}/v1", "api_key": "local"}
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    text = litellm.text_completion(model="text-completion-openai/echo", prompt=prompt, max_tokens=9, **base)
    assert text.choices[0].text == "Hi"
    response = litellm.responses(model="openai/echo", input="Hi", **base)
    assert response.output[-1].content[0].text == "Hi"


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_its_own(daemon: RunningDaemon, provider: str, stream: bool) -> None:
    for says, fields, error in (
        ("x" * 5000, {}, litellm.ContextWindowExceededError),
        ("x", {"temperature": 9}, litellm.BadRequestError),
        ("x", {"model": f"{provider}/other"}, litellm.NotFoundError),
    ):
        with pytest.raises(error):
            ask(daemon, provider, says, stream=stream, **fields)
