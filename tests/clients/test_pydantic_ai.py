"""``pydantic-ai``, unmodified, through its models of chat completions, Responses and Messages. The echo model says what the user said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from support.clients import client
from support.daemon import RunningDaemon

pydantic_ai = client("pydantic_ai")
from pydantic_ai import (  # noqa: E402
    Agent,
    Embedder,
    ModelHTTPError,
    ModelRequest,
    NativeOutput,
    PromptedOutput,
    ToolDefinition,
    UsageLimits,
    UserPromptPart,
)
from pydantic_ai.direct import model_request_sync  # noqa: E402
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel  # noqa: E402
from pydantic_ai.exceptions import UsageLimitExceeded  # noqa: E402
from pydantic_ai.models import ModelRequestParameters  # noqa: E402
from pydantic_ai.models.anthropic import AnthropicModel  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

pytestmark = [
    # It keeps its HTTP clients and their loop for the life of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
KINDS = ["chat", "responses", "messages"]


class City(BaseModel):
    name: str
    country: str


PARIS = City(name="Paris", country="France")
TEXT = PARIS.model_dump_json()
FINAL = f'<tool_call>\n{{"name": "final_result", "arguments": {TEXT}}}\n</tool_call>'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "London"}}\n</tool_call>'


def model_of(daemon: RunningDaemon, kind: str, name: str = "echo") -> Any:
    if kind == "messages":
        provider = AnthropicProvider(base_url=daemon.url, api_key="local")
        # It would believe that of Anthropic's own models alone.
        return AnthropicModel(name, provider=provider, profile={"supports_json_schema_output": True})
    model = OpenAIChatModel if kind == "chat" else OpenAIResponsesModel
    return model(name, provider=OpenAIProvider(base_url=f"{daemon.url}/v1", api_key="local"))


def agent_of(daemon: RunningDaemon, kind: str, name: str = "echo", **options: Any) -> Any:
    options.setdefault("model_settings", {"max_tokens": 600})
    return Agent(model_of(daemon, kind, name), **options)


def with_weather(agent: Any) -> list[str]:
    asked: list[str] = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "Rain, 7731."

    return asked


@pytest.mark.parametrize("kind", KINDS)
def test_a_run(daemon: RunningDaemon, kind: str) -> None:
    result = agent_of(daemon, kind, instructions="Be brief.").run_sync("Is it you?")
    assert result.output == "Is it you?"
    assert result.usage.input_tokens > result.usage.output_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_tool(daemon: RunningDaemon, kind: str) -> None:
    agent = agent_of(daemon, kind)
    asked = with_weather(agent)
    result = agent.run_sync(f"I look.\n{CALL}\n{CALL}")
    assert asked == ["London", "London"]
    assert result.output.count("Rain, 7731.") == 2
    # The conversation goes on from there.
    assert agent.run_sync("Thanks.", message_history=result.all_messages()).output == "Thanks."


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_are_required(daemon: RunningDaemon, kind: str) -> None:
    city = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
    }
    tools = [ToolDefinition(name=name, parameters_json_schema=city) for name in ("get_weather", "get_time")]
    asked = [ModelRequest(parts=[UserPromptPart(f"{CALL}\n{CALL}")])]
    london = ("get_weather", {"city": "London"})
    for settings, calls in (
        ({"tool_choice": "required"}, [london, london]),
        ({"tool_choice": ["get_weather"]}, [london]),
        ({"tool_choice": "required", "parallel_tool_calls": False}, [london]),
    ):
        reply = model_request_sync(
            model_of(daemon, kind), asked, model_settings={"max_tokens": 600, **settings},
            model_request_parameters=ModelRequestParameters(function_tools=tools),
        )  # fmt: skip
        assert [(call.tool_name, call.args_as_dict()) for call in reply.tool_calls] == calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("output", ["tool", "native", "prompted"])
def test_structured_output(daemon: RunningDaemon, kind: str, output: str) -> None:
    form: Any = {"tool": City, "native": NativeOutput(City), "prompted": PromptedOutput(City)}[output]
    agent = agent_of(daemon, kind, output_type=form)
    assert agent.run_sync(FINAL if output == "tool" else TEXT).output == PARIS


@pytest.mark.parametrize("kind", KINDS)
def test_streams(daemon: RunningDaemon, kind: str) -> None:
    async def text() -> list[str]:
        async with agent_of(daemon, kind).run_stream("Is it you?") as run:
            return [piece async for piece in run.stream_text(delta=True, debounce_by=None)]

    async def model() -> Any:
        async with agent_of(daemon, kind, output_type=City).run_stream(FINAL) as run:
            return await run.get_output()

    pieces = asyncio.run(text())
    assert ("".join(pieces), len(pieces) > 1) == ("Is it you?", True)
    assert asyncio.run(model()) == PARIS


def test_embeddings(daemon: RunningDaemon) -> None:
    provider = OpenAIProvider(base_url=f"{daemon.url}/v1", api_key="local")
    found = Embedder(OpenAIEmbeddingModel("minilm", provider=provider)).embed_documents_sync(["one", "two"])
    assert [len(vector) for vector in found.embeddings] == [384, 384]
    assert found.usage.input_tokens > 0


def test_tokens_are_counted_before_they_are_spent(daemon: RunningDaemon) -> None:
    agent = agent_of(daemon, "messages")
    limits = UsageLimits(input_tokens_limit=10, count_tokens_before_request=True)
    with pytest.raises(UsageLimitExceeded):
        agent.run_sync("Is it you?", usage_limits=limits)
    limits = UsageLimits(input_tokens_limit=1000, count_tokens_before_request=True)
    assert agent.run_sync("Is it you?", usage_limits=limits).output == "Is it you?"


@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_its_own(daemon: RunningDaemon, kind: str) -> None:
    with pytest.raises(ModelHTTPError) as caught:
        agent_of(daemon, kind, "other").run_sync("Is it you?")
    assert caught.value.status_code == 404
    with pytest.raises(ModelHTTPError, match="temperature"):
        agent_of(daemon, kind, model_settings={"temperature": 9, "max_tokens": 9}).run_sync("Is it you?")
