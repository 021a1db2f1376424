"""The official ``openai`` package, unmodified, against the daemon: sync, and async on trio and on asyncio."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest

from support.daemon import RunningDaemon
from support.wire_answers import steady

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


def sync_client(daemon: RunningDaemon, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0, **options)


def test_chat_names_its_words(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        reply = client.chat.completions.create(model="echo", messages=QUESTION)
    assert reply.choices[0].message.content == "What is the capital of France?"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.id.startswith("chatcmpl-")


def test_stream_equals_the_whole(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        whole = client.chat.completions.create(model="echo", messages=QUESTION)
        chunks = list(
            client.chat.completions.create(
                model="echo", messages=QUESTION, stream=True, stream_options={"include_usage": True}
            )
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    streamed = chunks[-1].usage
    assert streamed is not None
    assert whole.usage is not None
    assert steady(streamed.model_dump()) == steady(whole.usage.model_dump())
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]


def test_a_predicted_output(echo_daemon: RunningDaemon) -> None:
    text = "def area(width, height):\n    return width * height\n" * 3
    with sync_client(echo_daemon) as client:
        reply = client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": text}],
            prediction={"type": "content", "content": text.replace("area", "size")},
        )
    assert reply.choices[0].message.content == text
    assert reply.usage is not None
    details = reply.usage.completion_tokens_details
    assert details is not None
    assert details.accepted_prediction_tokens is not None
    assert 0 <= details.accepted_prediction_tokens <= reply.usage.completion_tokens
    assert details.rejected_prediction_tokens is not None


def test_stream_without_include_usage_has_none(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        chunks = list(client.chat.completions.create(model="echo", messages=QUESTION, stream=True))
    assert all(chunk.usage is None for chunk in chunks)
    assert all(chunk.choices for chunk in chunks)


def test_several_choices(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        reply = client.chat.completions.create(model="echo", messages=QUESTION, n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert {choice.message.content for choice in reply.choices} == {"What is the capital of France?"}


def test_logprobs_agree_between_stream_and_whole(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        whole = client.chat.completions.create(
            model="echo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2
        )
        chunks = list(
            client.chat.completions.create(
                model="echo", messages=QUESTION, temperature=0, logprobs=True, top_logprobs=2, stream=True
            )
        )
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.content
    streamed = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in streamed) == whole.choices[0].message.content


def test_early_close_then_the_next_is_served(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        with client.chat.completions.create(model="echo", messages=QUESTION, stream=True) as stream:
            next(iter(stream))
        reply = client.chat.completions.create(model="echo", messages=QUESTION)
    assert reply.choices[0].message.content == "What is the capital of France?"


@pytest.mark.parametrize(
    ("extra", "error", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 9}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"extra_body": {"keep_alive": "5m"}}, openai.BadRequestError, "unknown_parameter", "keep_alive"),
        ({"verbosity": "low"}, openai.BadRequestError, "unsupported_value", "verbosity"),
        ({"max_tokens": 10_000_000}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
    ],
)
def test_errors_are_the_sdk_s_own(
    echo_daemon: RunningDaemon,
    extra: dict[str, Any],
    error: type[openai.APIStatusError],
    code: str,
    param: str,
) -> None:
    with sync_client(echo_daemon) as client:
        with pytest.raises(error) as caught:
            client.chat.completions.create(**{"model": "echo", "messages": QUESTION, **extra})
    assert caught.value.code == code
    assert caught.value.param == param
    assert caught.value.request_id


def test_models(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        listed = client.models.list().data
        assert [model.id for model in listed] == ["echo"]
        assert client.models.retrieve("echo").id == "echo"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("other")


async def _ask_async(daemon: RunningDaemon) -> tuple[str | None, str]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0) as client:
        reply = await client.chat.completions.create(model="echo", messages=QUESTION)
        text = ""
        async with await client.chat.completions.create(
            model="echo", messages=QUESTION, stream=True
        ) as stream:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        async with await client.chat.completions.create(
            model="echo", messages=QUESTION, stream=True
        ) as stream:
            async for _ in stream:
                break
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=QUESTION)
    return reply.choices[0].message.content, text


# The package leaves its own generators open when a stream is left early, which trio points out.
@pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2):ResourceWarning")
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(echo_daemon: RunningDaemon, backend: str) -> None:
    whole, streamed = anyio.run(_ask_async, echo_daemon, backend=backend)
    assert whole == streamed == "What is the capital of France?"
