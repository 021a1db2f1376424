"""The real SmolLM2 weights behind the whole daemon: many at once, and each as if it were alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from support.daemon import RunningDaemon, running

pytestmark = [pytest.mark.torch, pytest.mark.real_model, pytest.mark.timeout(600)]

PROMPTS = [
    "What is the capital of France?",
    "Name three fruits.",
    "Write one sentence about the sea.",
    "How many legs has a spider?",
    "Translate 'good morning' to Spanish.",
    "What colour is the sky on a clear day?",
    "Give me a synonym for 'quick'.",
    "Who wrote Hamlet?",
]


def ask(daemon: RunningDaemon, prompt: str, **options: Any) -> str:
    with openai.OpenAI(base_url=f"{daemon.url}/v1", api_key="local", max_retries=0) as client:
        reply = client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": prompt}], max_tokens=24, **options
        )
    return reply.choices[0].message.content or ""


def test_eight_at_once_answer_as_they_do_alone(real_daemon: RunningDaemon) -> None:
    alone = [ask(real_daemon, prompt, temperature=0) for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda prompt: ask(real_daemon, prompt, temperature=0), PROMPTS))
    assert together == alone
    assert "Paris" in alone[0]


def test_a_seed_is_reproducible_in_any_company(real_daemon: RunningDaemon) -> None:
    alone = ask(real_daemon, PROMPTS[2], temperature=1, seed=7)
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(ask, real_daemon, prompt, temperature=1) for prompt in PROMPTS[3:8]]
        together = ask(real_daemon, PROMPTS[2], temperature=1, seed=7)
        assert all(other.result() for other in others)
    assert together == alone


def test_the_native_kernels_serve_it_too(tmp_path: Path, smollm2_path: Path) -> None:
    with running(
        tmp_path, "--model", str(smollm2_path), "--served-name", "smollm2", "--backend", "native"
    ) as daemon:
        assert "backend=native" in daemon.ready_line
        answer = ask(daemon, "Name three fruits.", temperature=0)
    assert any(fruit in answer.lower() for fruit in ("apple", "banana", "orange", "grape"))
