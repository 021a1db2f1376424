"""The official ``openai`` package's Completions, unmodified, against the daemon: sync, and async on trio and on asyncio."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest

from support.daemon import RunningDaemon
from support.wire_answers import steady

# The echo model goes on with what the user said last.
TEXT = "<|im_start|>user\nOnce upon<|im_end|>\n<|im_start|>assistant\n"


def sync_client(daemon: RunningDaemon, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0, **options)


def test_a_text_is_gone_on_with(echo_daemon: RunningDaemon) -> None:
    with sync_client(echo_daemon) as client:
        reply = client.completions.create(model="echo", prompt=TEXT)
    (choice,) = reply.choices
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("Once upon", "stop", None)
    assert reply.id.startswith("cmpl-")
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len("Once upon") + 1


def test_sixteen_tokens_unless_told_otherwise(echo_daemon: RunningDaemon) -> None:
    long = TEXT.replace("Once upon", "x" * 40)
    with sync_client(echo_daemon) as client:
        short = client.completions.create(model="echo", prompt=long)
        whole = client.completions.create(model="echo", prompt=long, max_tokens=100)
    assert (short.choices[0].text, short.choices[0].finish_reason) == ("x" * 16, "length")
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("x" * 40, "stop")


def test_several_prompts_and_answers(echo_daemon: RunningDaemon) -> None:
    texts = [TEXT.replace("Once upon", word) for word in ("one", "two", "three")]
    with sync_client(echo_daemon) as client:
        reply = client.completions.create(model="echo", prompt=texts, n=2)
        best = client.completions.create(model="echo", prompt=texts[:2], best_of=3, temperature=0)
    assert [(c.index, c.text) for c in reply.choices] == list(enumerate(["one", "one", "two", "two", "three", "three"]))  # fmt: skip
    assert [(c.index, c.text) for c in best.choices] == [(0, "one"), (1, "two")]


def test_scoring_as_evaluations_do(echo_daemon: RunningDaemon) -> None:
    """Log-probabilities of the prompt's own tokens, from token ids, with one token of an answer or none."""
    ids = list(TEXT.encode())[:20]
    with sync_client(echo_daemon) as client:
        one = client.completions.create(
            model="echo", prompt=[ids, ids[:7]], echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        none = client.completions.create(
            model="echo", prompt=[ids, ids[:7]], echo=True, logprobs=1, max_tokens=0, temperature=0
        )
    for choice, read, length in zip(one.choices, none.choices, (20, 7), strict=True):
        assert choice.logprobs is not None
        assert read.logprobs is not None
        values, tops = choice.logprobs.token_logprobs, choice.logprobs.top_logprobs
        assert values is not None
        assert tops is not None
        assert len(values) == length + 1
        assert values[0] is None
        assert all(value <= max(top.values()) for value, top in zip(values[1:], tops[1:], strict=True))
        assert read.logprobs.token_logprobs == values[:-1]
        assert read.text == bytes(ids[:length]).decode()
        assert choice.logprobs.tokens is not None
        assert "".join(choice.logprobs.tokens[:-1]) == read.text
        assert choice.logprobs.text_offset == [*range(length), length]
    assert none.usage is not None
    assert (none.usage.prompt_tokens, none.usage.completion_tokens) == (27, 0)


@pytest.mark.parametrize("extra", [{}, {"echo": True}, {"echo": True, "logprobs": 2}, {"max_tokens": 0, "echo": True, "logprobs": 0}])  # fmt: skip
def test_the_stream_equals_the_whole(echo_daemon: RunningDaemon, extra: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": "echo", "prompt": TEXT, "temperature": 0, **extra}
    with sync_client(echo_daemon) as client:
        client.completions.create(**asked)
        (whole,) = (reply := client.completions.create(**asked)).choices
        chunks = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].usage is not None
    assert reply.usage is not None
    assert steady(chunks[-1].usage.model_dump()) == steady(reply.usage.model_dump())
    parts = [chunk.choices[0] for chunk in chunks[:-1]]
    assert "".join(part.text for part in parts) == whole.text
    assert [part.finish_reason for part in parts if part.finish_reason] == [whole.finish_reason]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        joined = [value for part in parts if part.logprobs for value in getattr(part.logprobs, name)]
        assert joined == (getattr(whole.logprobs, name) if whole.logprobs else [])


@pytest.mark.parametrize(
    ("extra", "error", "code", "param"),
    [
        ({"model": "other"}, openai.NotFoundError, "model_not_found", "model"),
        ({"suffix": "x"}, openai.BadRequestError, "unsupported_value", "suffix"),
        ({"prompt": [260]}, openai.BadRequestError, "invalid_value", "prompt"),
        ({"prompt": ""}, openai.BadRequestError, "invalid_value", "prompt"),
        ({"max_tokens": 10_000_000}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
        ({"extra_body": {"n_predict": 5}}, openai.BadRequestError, "unknown_parameter", "n_predict"),
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
            client.completions.create(**{"model": "echo", "prompt": TEXT, **extra})
    assert (caught.value.code, caught.value.param) == (code, param)


async def _ask_async(daemon: RunningDaemon) -> tuple[str, str]:
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0) as client:
        reply = await client.completions.create(model="echo", prompt=TEXT)
        text = ""
        async with await client.completions.create(model="echo", prompt=TEXT, stream=True) as stream:
            async for chunk in stream:
                text += chunk.choices[0].text
    return reply.choices[0].text, text


@pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2):ResourceWarning")
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_async(echo_daemon: RunningDaemon, backend: str) -> None:
    assert anyio.run(_ask_async, echo_daemon, backend=backend) == ("Once upon", "Once upon")
