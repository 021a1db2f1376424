"""Log-probabilities of a prompt's own tokens, and prompts that are only read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.backends.base import Chunk, KVPlan
from stretto.backends.echo import EchoBackend, EchoScript
from stretto.engine import CacheMiss, EngineConfig, Phase, SequenceRequest, Token
from stretto.engine import stepper as stepper_module
from stretto.engine.budget import plan_kv
from stretto.engine.live import LiveSequence
from stretto.engine.sampler import SamplerState
from stretto.engine.stepper import Stepper
from stretto.errors import EngineError
from support.engine_echo import TOKENIZER, chat_ids
from support.engine_harness import GREEDY, Bench, FakeClock, Heard, check_blocks, request
from support.engine_reference import logprobs

PROMPT = chat_ids("zwölf Boxkämpfer jagen Viktor " * 3)


def scored(
    name: str, ids: Sequence[int] = PROMPT, *, alternatives: int = 0, max_tokens: int = 5, **more: Any
) -> SequenceRequest:
    return SequenceRequest(
        name, ids, GREEDY, max_tokens, TOKENIZER.end_ids, prompt_logprobs=alternatives, **more
    )


def prompt_of(heard: Heard) -> list[Token]:
    return [token for update in heard.updates for token in update.prompt]


def echo_logits(ids: Sequence[int]) -> list[list[float]]:
    """What the echo model says after each token, all in one chunk and without an engine."""
    backend = EchoBackend()
    backend.load(lambda phase, fraction: None)
    backend.allocate(KVPlan(len(ids), (1,)))
    table = np.zeros(1, dtype=np.int32)
    logits: list[list[float]] = backend.forward(
        [Chunk(np.array(ids, dtype=np.int32), 0, (table,), len(ids))]
    ).tolist()
    return logits


@pytest.mark.parametrize("chunk", [1, 7, 4096])
def test_each_token_of_a_prompt_after_the_ones_before_it(chunk: int) -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=chunk))
    bench.submit(scored("s", alternatives=3))
    bench.submit(request("beside", "hello"))
    bench.run()
    found = prompt_of(bench.heard["s"])
    assert [token.id for token in found] == PROMPT
    assert found[0] == Token(PROMPT[0])
    for token, row in zip(found[1:], echo_logits(PROMPT), strict=False):
        expected = logprobs(row)
        assert token.logprob == pytest.approx(expected[token.id], abs=1e-5)
        best = sorted(range(len(row)), key=lambda other: (-row[other], other))[:3]
        assert [other for other, _ in token.top] == best
        assert [value for _, value in token.top] == pytest.approx([expected[b] for b in best], abs=1e-5)
    assert bench.heard["s"].text == "zwölf"[:4]
    assert bench.heard["beside"].text == "hello"


def test_nothing_is_told_of_a_prompt_unless_asked_for() -> None:
    bench = Bench()
    bench.submit(request("s", "hello", logprobs=2))
    bench.run()
    assert prompt_of(bench.heard["s"]) == []


def test_known_text_is_computed_again_for_its_log_probabilities_and_shared_with_others() -> None:
    bench = Bench(config=EngineConfig(block_tokens=4))
    bench.submit(request("before", prompt_ids=PROMPT))
    bench.run()
    counts = bench.stepper.scheduler.kv.counts
    misses, hits = counts.misses, counts.hits
    bench.submit(scored("s"))
    bench.step()
    check_blocks(bench)
    bench.run()
    outcome = bench.heard["s"].outcome
    assert outcome.cached_tokens == 0
    assert outcome.cache_miss == CacheMiss(0, "logprobs")
    assert (counts.misses, counts.hits) == (misses, hits)  # neither: nothing was looked for
    assert [token.id for token in prompt_of(bench.heard["s"])] == PROMPT
    bench.submit(request("after", prompt_ids=PROMPT))
    bench.run()
    assert bench.heard["after"].outcome.cached_tokens == (len(PROMPT) - 1) // 4 * 4
    check_blocks(bench)


def test_what_was_computed_for_log_probabilities_is_known_afterwards() -> None:
    bench = Bench(config=EngineConfig(block_tokens=4))
    bench.submit(scored("s"))
    bench.submit(request("beside", prompt_ids=PROMPT))
    bench.run()
    assert bench.heard["beside"].outcome.cached_tokens > 0
    assert bench.heard["beside"].text == "zwölf Boxkämpfer jagen Viktor " * 3


@pytest.mark.parametrize("chunk", [1, 10, 4096])
def test_no_token_at_all(chunk: int) -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=chunk, block_tokens=4))
    bench.submit(request("read", prompt_ids=PROMPT, max_tokens=0))
    bench.submit(scored("scored", max_tokens=0))
    bench.submit(request("beside", "hello"))
    bench.run()
    for name in ("read", "scored"):
        heard = bench.heard[name]
        assert heard.tokens == []
        assert heard.outcome.phase is Phase.FINISHED
        assert heard.outcome.reason == "length"
        assert heard.outcome.completion_tokens == 0
        assert heard.updates[-1].prefilled_tokens == len(PROMPT)
    assert [token.id for token in prompt_of(bench.heard["scored"])] == PROMPT
    assert prompt_of(bench.heard["read"]) == []
    assert bench.heard["beside"].text == "hello"
    assert bench.blocks_used == 0
    bench.submit(request("later", prompt_ids=PROMPT))
    bench.run()
    assert bench.heard["later"].outcome.cached_tokens == (len(PROMPT) - 1) // 4 * 4


def test_a_prompt_may_fill_the_whole_context() -> None:
    bench = Bench(EchoScript(context_tokens=len(PROMPT)))
    bench.submit(scored("s", max_tokens=0))
    bench.run()
    assert len(prompt_of(bench.heard["s"])) == len(PROMPT)


def test_one_token_has_no_log_probability() -> None:
    bench = Bench()
    bench.submit(scored("s", [7], max_tokens=0))
    bench.run()
    assert prompt_of(bench.heard["s"]) == [Token(7)]


def test_the_logits_of_a_step_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=4096))
    monkeypatch.setattr(stepper_module, "MOST_SCORED_LOGITS", 10 * bench.facts.spec.vocab_size)
    assert bench.stepper.prefill_budget_tokens == 4096
    bench.submit(scored("s"))
    bench.submit(scored("t"))
    bench.step()
    assert bench.stepper.prefill_budget_tokens == 10
    parts = bench.stepper.scheduler.plan(bench.stepper.prefill_budget_tokens)
    assert sum(part.count for part in parts) == 10
    bench.run()
    assert [token.id for token in prompt_of(bench.heard["t"])] == PROMPT


def test_logits_that_are_not_finite_fail_the_prompt_and_drop_its_text() -> None:
    bench = Bench(EchoScript(nan_at_step=2), EngineConfig(prefill_chunk_tokens=16, block_tokens=4))
    bench.submit(scored("s"))
    bench.step()
    assert bench.stepper.scheduler.kv.current_digest(bench.stepper.scheduler.live()[0]) is not None
    bench.run()
    assert isinstance(bench.heard["s"].outcome.error, EngineError)
    assert bench.stepper.scheduler.kv.blocks_cached == 0
    check_blocks(bench)


def test_a_cancelled_prompt_ends_in_the_middle() -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=16))
    sequence = bench.submit(scored("s"))
    bench.step()
    sequence.cancelled = True
    bench.run()
    assert bench.heard["s"].outcome.phase is Phase.CANCELLED
    assert len(prompt_of(bench.heard["s"])) == 17


@pytest.mark.torch
@pytest.mark.parametrize("chunk", [7, 512])
def test_a_real_network_against_transformers(tmp_path: Path, chunk: int) -> None:
    pytest.importorskip("torch")
    from stretto.backends.torch import TorchBackend
    from stretto.weights import open_model
    from support.torch_runs import reference_logits, reference_of_directory
    from support.weights_tiny import tiny_hf

    path = tiny_hf(tmp_path, seed=5)
    model = reference_of_directory(path)
    ids = np.random.default_rng(5).integers(0, model.config.vocab_size, 61).tolist()
    rows = reference_logits(model, ids).astype(np.float64)
    expected = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    source = open_model(path)
    backend = TorchBackend(source, device="cpu", dtype="float32", threads=1)
    config = EngineConfig(
        max_context_tokens=96, kv_cache_bytes=2**20, prefill_chunk_tokens=chunk, block_tokens=4
    )
    spec = backend.load(lambda phase, fraction: None)
    facts = plan_kv(spec, backend.memory(), config)
    backend.allocate(facts.kv)
    stepper = Stepper(backend, facts, config, clock=FakeClock(), lock=threading.RLock())
    prompt = np.array(ids, dtype=np.int32)
    heard = Heard()
    for name in ("cold", "known"):  # what the first has published changes nothing for the second
        heard = Heard()
        sampler = SamplerState(GREEDY, prompt, facts.spec.vocab_size)
        stepper.scheduler.enqueue(LiveSequence(scored(name, ids, alternatives=4), prompt, sampler, 0.0))
        while stepper.scheduler.busy:
            stepper.step()
            heard.updates += stepper.take_updates()
        found = prompt_of(heard)
        assert [token.id for token in found] == ids
        values = [token.logprob for token in found[1:]]
        np.testing.assert_allclose(values, expected[np.arange(60), ids[1:]], atol=1e-4)
        for token, row in zip(found[1:], expected, strict=False):
            np.testing.assert_allclose([value for _, value in token.top], np.sort(row)[::-1][:4], atol=1e-4)
            np.testing.assert_allclose(
                [row[other] for other, _ in token.top], np.sort(row)[::-1][:4], atol=1e-4
            )
    assert heard.tokens
    backend.close()
    source.close()
