"""A family without a module of ours, served by ``transformers``' code through the whole daemon."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import tokenizers

pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.daemon import RunningDaemon, running
from support.http1 import exchange_json
from support.torch_runs import reference_logits, reference_of_directory
from support.weights_foreign import tiny_foreign

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_foreign(tmp_path_factory.mktemp("model") / "neox", "GPTNeoX", context=2048)


@pytest.fixture(scope="module")
def daemon(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    flags = ("--model", str(model), "--backend", "torch", "--dtype", "float32", "--threads", "1")
    with running(tmp_path_factory.mktemp("run"), *flags, "--kv-cache-gb", "0.05") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0) as client:
        yield client


def test_greedy_text_is_the_models_own(client: openai.OpenAI, model: Path) -> None:
    reference = reference_of_directory(model)
    ids = [5, 99, 120, 40, 7, 200, 31]
    reply = client.completions.create(model="neox", prompt=ids, max_tokens=6, temperature=0)
    answer: list[int] = []
    while len(answer) < 6 and not {0, 2} & set(answer):
        answer.append(int(reference_logits(reference, ids + answer, rows=1)[-1].argmax()))
    wanted = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")).decode(answer)
    # The last character may be cut in two, by both.
    assert reply.choices[0].text.rstrip("\ufffd") == wanted.rstrip("\ufffd")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(ids), len(answer))


def test_chat_streams_and_known_text_is_not_read_again(client: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "the world is what you are " * 6}]
    first = client.chat.completions.create(model="neox", messages=long, max_tokens=4)  # type: ignore[arg-type]
    chunks = list(
        client.chat.completions.create(  # type: ignore[call-overload]
            model="neox", messages=long, max_tokens=4, stream=True, stream_options={"include_usage": True}
        )
    )
    usage = chunks[-1].usage
    assert first.usage is not None
    assert usage.prompt_tokens == first.usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens > 0


def test_structured_output_and_functions(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    reply = client.chat.completions.create(
        model="neox",
        messages=QUESTION,
        max_tokens=120,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "it", "schema": schema, "strict": True},
        },
    )
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content or "")["ok"], bool)
    reply = client.chat.completions.create(
        model="neox", messages=QUESTION, max_tokens=150, tools=[WEATHER], tool_choice="required"
    )
    (choice,) = reply.choices
    assert choice.finish_reason in ("tool_calls", "length")
    for call in choice.message.tool_calls or ():
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_status_says_whose_code_computes(daemon: RunningDaemon) -> None:
    _, status = exchange_json(daemon.socket, "GET", "/admin/status")
    backend = status["engine"]["backend"]
    assert backend["model_code"] == "transformers"
    assert "GPTNeoXForCausalLM" in backend["model_code_reason"]
    assert "keys and values" in backend["prefix_reuse"]
