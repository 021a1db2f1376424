"""The official ``openai`` package's Responses, unmodified, against the daemon: sync, and async on trio and on asyncio."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest
from pydantic import BaseModel

from support.daemon import RunningDaemon

QUESTION = "What is the capital of France?"


class City(BaseModel):
    name: str


def sync_client(daemon: RunningDaemon, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0, **options)


def test_a_text_is_answered(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        reply = client.responses.create(
            model="echo", input=QUESTION, instructions="Be brief.", metadata={"a": "b"}
        )
    assert reply.output_text == QUESTION
    assert reply.id.startswith("resp_")
    assert reply.status == "completed"
    assert reply.metadata == {"a": "b"}
    assert reply.usage is not None
    assert reply.usage.output_tokens == len(QUESTION) + 1
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens


def test_the_stream_ends_with_the_whole(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        whole = client.responses.create(model="echo", input=QUESTION)
        events = list(client.responses.create(model="echo", input=QUESTION, stream=True))
        with client.responses.stream(model="echo", input=QUESTION) as stream:
            final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == QUESTION
    last = events[-1]
    assert last.type == "response.completed"

    def said(response: Any) -> dict[str, Any]:
        document: dict[str, Any] = response.model_dump(
            exclude={"id", "created_at", "usage"}, exclude_none=True
        )
        for item in document["output"]:
            del item["id"]
        return document

    assert said(last.response) == said(whole)
    assert final.output_text == QUESTION
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_a_conversation_is_sent_back(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        first = client.responses.create(model="echo", input="one")
        items: list[Any] = [
            {"role": "user", "content": "one"},
            *first.output,
            {"role": "user", "content": "two"},
        ]
        second = client.responses.create(
            model="echo", input=items, include=["reasoning.encrypted_content"], store=False
        )
    assert second.output_text == "two"


def test_the_tokens_of_a_request_are_counted(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        counted = client.responses.input_tokens.count(model="echo", input=QUESTION, instructions="x")
        reply = client.responses.create(model="echo", input=QUESTION, instructions="x")
    assert counted.object == "response.input_tokens"
    assert reply.usage is not None
    assert counted.input_tokens == reply.usage.input_tokens


def test_a_limit_makes_it_incomplete(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        reply = client.responses.create(model="echo", input="abcdef", max_output_tokens=3)
    assert reply.status == "incomplete"
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    assert reply.output_text == "abc"


def test_the_form_of_an_answer_is_kept(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        reply = client.responses.parse(
            model="echo", input='{"name": "Paris"}', text_format=City, temperature=0
        )
    assert reply.output_parsed == City(name="Paris")


def test_log_probabilities(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        reply = client.responses.create(
            model="echo", input="ab", include=["message.output_text.logprobs"], top_logprobs=2, temperature=0
        )
    (message,) = reply.output
    assert message.type == "message"
    (part,) = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [entry.token for entry in part.logprobs] == ["a", "b"]
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


@pytest.mark.parametrize(
    ("extra", "error", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 9}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"previous_response_id": "resp_1"}, openai.BadRequestError, "unsupported_value", "previous_response_id"),
        ({"max_output_tokens": 10_000_000}, openai.BadRequestError, "context_length_exceeded", "max_output_tokens"),
        ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "unsupported_value", "tools[0].type"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"not": {}}}}}, openai.BadRequestError, "unsupported_schema", "text.format.schema.not"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_the_sdk_s_own(
    echo_daemon: RunningDaemon,
    stream: bool,
    extra: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str,
    param: str,
) -> None:
    with sync_client(echo_daemon) as client:
        with pytest.raises(error) as caught:
            client.responses.create(**{"model": "echo", "input": QUESTION, "stream": stream, **extra})
    assert caught.value.code == code
    assert caught.value.param == param


async def _ask_async(daemon: RunningDaemon) -> tuple[str, str]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0) as client:
        reply = await client.responses.create(model="echo", input=QUESTION)
        async with client.responses.stream(model="echo", input=QUESTION) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_response()
    return reply.output_text, final.output_text


@pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2):ResourceWarning")
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(echo_daemon: RunningDaemon, backend: str) -> None:
    assert anyio.run(_ask_async, echo_daemon, backend=backend) == (QUESTION, QUESTION)
