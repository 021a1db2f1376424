"""The real SmolLM2 weights given raw prompts."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from support.daemon import RunningDaemon

pytestmark = [pytest.mark.torch, pytest.mark.real_model, pytest.mark.timeout(600)]

TEXT = "The capital of France is Paris, and the capital of Italy is Rome. Zoë said so 😀."
SCRAMBLED = "capital Rome is of and the Italy Paris, The is France of capital. said 😀 so Zoë."


def complete(daemon: RunningDaemon, **options: Any) -> Any:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0) as client:
        return client.completions.create(model="smollm2", **options)


def score(daemon: RunningDaemon, prompt: Any) -> Any:
    reply = complete(daemon, prompt=prompt, echo=True, logprobs=3, max_tokens=0)
    return reply.choices[0].logprobs


def test_sense_is_likelier_than_nonsense(real_daemon: RunningDaemon) -> None:
    sense, nonsense = score(real_daemon, TEXT), score(real_daemon, SCRAMBLED)
    mean = [sum(found.token_logprobs[1:]) / len(found.token_logprobs[1:]) for found in (sense, nonsense)]
    assert mean[0] > mean[1] + 1


def test_a_score_does_not_depend_on_what_is_known(real_daemon: RunningDaemon) -> None:
    first = score(real_daemon, TEXT)
    again = score(real_daemon, TEXT)
    assert again.tokens == first.tokens
    assert again.token_logprobs[1:] == pytest.approx(first.token_logprobs[1:], abs=1e-4)
    ids = httpx2.post(f"{real_daemon.url}/tokenize", json={"prompt": TEXT}).json()["tokens"]
    by_ids = score(real_daemon, ids)
    assert by_ids.tokens == first.tokens
    assert by_ids.token_logprobs[1:] == pytest.approx(first.token_logprobs[1:], abs=1e-4)
    assert httpx2.post(f"{real_daemon.url}/detokenize", json={"tokens": ids}).json()["prompt"] == TEXT


def test_offsets_and_tokens_lie_over_the_text(real_daemon: RunningDaemon) -> None:
    found = score(real_daemon, TEXT)
    bounds = [*found.text_offset, len(TEXT)]
    for token, start, end in zip(found.tokens, bounds, bounds[1:], strict=False):
        if not token.startswith("bytes:"):
            assert TEXT[start:end] == token
    assert any(token.startswith("bytes:") for token in found.tokens)  # the smile is several tokens


def test_a_raw_prompt_in_the_model_s_own_format_is_a_chat(real_daemon: RunningDaemon) -> None:
    question = "What is the capital of France?"
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    raw = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    with openai.OpenAI(base_url=f"{real_daemon.url}/v1", api_key="local", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24
        )
    reply = complete(real_daemon, prompt=raw, temperature=0, max_tokens=24)
    assert reply.usage.prompt_tokens == chat.usage.prompt_tokens  # type: ignore[union-attr]
    assert reply.choices[0].text == chat.choices[0].message.content


def test_no_token_for_filling_in_the_middle(real_daemon: RunningDaemon) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(real_daemon, prompt="def f(", suffix="return x")
    assert caught.value.param == "suffix"
