"""The real SmolLM2, converted by mlx-lm, through the whole daemon: the tokens that mlx-lm's own generation gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from stretto.weights import Tokenizer, load_tokenizer, open_model
from support.daemon import RunningDaemon, running
from support.http1 import connect, exchange_json, request_bytes
from support.mlx_real import PROMPTS, VARIANTS, Variant, answers, conversions

pytestmark = [pytest.mark.mlx, pytest.mark.real_model, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Real:
    """A conversion in the daemon, and what mlx-lm answers."""

    variant: Variant
    daemon: RunningDaemon
    tokenizer: Tokenizer
    prompts: list[list[int]]
    answers: list[list[int]]

    def wanted(self, number: int) -> list[str]:
        return [self.text(token) for token in self.answers[number]]

    def text(self, token_id: int) -> str:
        return self.tokenizer.token_bytes(token_id).decode() or self.tokenizer.token_text(token_id)

    def ask(self, number: int) -> tuple[list[str], int]:
        """The daemon's tokens after a prompt, and how many of the prompt it knew."""
        with openai.OpenAI(base_url=f"{self.daemon.url}/v1", api_key="local", max_retries=0) as client:
            reply = client.completions.create(
                model="smollm2", prompt=self.prompts[number], temperature=0, max_tokens=self.variant.new_tokens, logprobs=0
            )  # fmt: skip
        logprobs, usage = reply.choices[0].logprobs, reply.usage
        assert logprobs is not None
        assert usage is not None
        details = usage.prompt_tokens_details
        return logprobs.tokens or [], (details.cached_tokens or 0) if details else 0

    def leave_in_the_middle(self) -> None:
        """Ask for a long answer, and be gone after its second token."""
        body = {
            "model": "smollm2",
            "prompt": "She opened",
            "stream": True,
            "temperature": 0,
            "max_tokens": 200,
        }
        with connect(self.daemon.port) as sock:
            sock.settimeout(600)
            sock.sendall(request_bytes("POST", "/v1/completions", body))
            received = b""
            while received.count(b'"text":"') < 2:
                received += sock.recv(4096)


@pytest.fixture(scope="module")
def folder(smollm2_path: Path, pytestconfig: pytest.Config) -> Path:
    """A directory for each conversion, with mlx-lm's answers in it."""
    return conversions(smollm2_path, pytestconfig.cache.mkdir("mlx"))


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda variant: variant.name)
def real(
    request: pytest.FixtureRequest, folder: Path, smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Real]:
    variant: Variant = request.param
    source = open_model(smollm2_path)
    tokenizer = load_tokenizer(source)
    source.close()
    flags = ["--model", str(folder / variant.name), "--served-name", "smollm2", "--backend", "mlx"]
    flags += ["--max-batch", "7", "--queue-limit", "10", "--block-tokens", "2", "--max-context", "256"]
    # A busy machine may take long for a step, and no worse for it.
    flags += ["--kv-cache-gb", "0.1", "--step-deadline-s", "3000", "--dtype", variant.dtype or "auto"]
    with running(tmp_path_factory.mktemp(variant.name), *flags) as daemon:
        yield Real(
            variant,
            daemon,
            tokenizer,
            [tokenizer.encode(prompt, allow_special=False) for prompt in PROMPTS],
            answers(folder / variant.name),
        )


def test_alone_the_tokens_are_those_of_mlx_lm(real: Real) -> None:
    assert "backend=mlx device=cpu" in real.daemon.ready_line
    found = [real.ask(number) for number in range(len(PROMPTS))]
    assert [tokens for tokens, _ in found] == [real.wanted(number) for number in range(len(PROMPTS))]
    assert found[-1] == ([" Paris", ".", "\n"][: real.variant.new_tokens], 0)


def test_six_at_a_time_they_are_the_same_and_known_text_is_not_read_again(real: Real) -> None:
    """Beside a seventh, whose client leaves in the middle of its answer."""
    with ThreadPoolExecutor(7) as pool:
        leaving = pool.submit(real.leave_in_the_middle)
        found = list(pool.map(real.ask, range(len(PROMPTS))))
        leaving.result()
    assert [tokens for tokens, _ in found] == [real.wanted(number) for number in range(len(PROMPTS))]
    for prompt, (_, cached) in zip(real.prompts, found, strict=True):
        assert cached == (len(prompt) - 1) // 2 * 2
    _, status = exchange_json(real.daemon.socket, "GET", "/admin/status")
    engine = status["engine"]
    assert (engine["running"], engine["cancelled"], engine["failed"]) == (0, 1, 0)
    assert engine["kv_blocks_used"] == 0
    backend = engine["backend"]
    assert backend["packing"] == ("none" if real.variant.bits is None else "4 bits affine, groups of 64")
    assert backend["sequences_a_pass"] == "several"
    assert backend["passes"] < backend["tokens"]
    assert backend["memory"]["active_bytes"] > backend["weights_bytes"]


def test_an_answer_keeps_to_its_schema(real: Real) -> None:
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    with openai.OpenAI(base_url=f"{real.daemon.url}/v1", api_key="local", max_retries=0) as client:
        reply = client.completions.create(
            model="smollm2", prompt=PROMPTS[0], temperature=0, max_tokens=24, extra_body={"response_format": form}
        )  # fmt: skip
    assert reply.choices[0].finish_reason == "stop"
    value = json.loads(reply.choices[0].text)
    assert isinstance(value["ok"], bool)
    assert list(value) == ["ok"]
