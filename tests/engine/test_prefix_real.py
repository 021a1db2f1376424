"""A real model gives the same text with its prefix cache and without."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import numpy as np
import pytest

from stretto.conversation import Tokenizer
from stretto.conversation.messages import SamplingParams
from stretto.engine import EngineConfig, EngineFacts, Outcome, SequenceRequest
from stretto.engine.budget import plan_kv
from stretto.engine.live import LiveSequence
from stretto.engine.sampler import SamplerState
from stretto.engine.stepper import Stepper
from support.engine_harness import FakeClock

QUESTIONS = ("What is the capital of France?", "And of Italy?", "Which of the two has more people?")


@pytest.mark.torch
@pytest.mark.real_model
def test_greedy_text_is_the_same_with_and_without(smollm2_path: Path) -> None:
    from stretto.backends.torch import TorchBackend
    from stretto.weights import load_tokenizer, open_model

    source = open_model(smollm2_path)
    tokenizer = load_tokenizer(source)
    backend = TorchBackend(source, device="cpu", dtype="float32", threads=1)
    spec = backend.load(lambda phase, fraction: None)
    config = EngineConfig(
        max_context_tokens=512, kv_cache_bytes=spec.kv_bytes_per_token * 1024, prefill_chunk_tokens=48
    )
    facts = plan_kv(spec, backend.memory(), config)
    backend.allocate(facts.kv)

    def converse(prefix_cache: bool) -> tuple[list[list[int]], list[Outcome]]:
        stepper = Stepper(
            backend,
            facts,
            EngineConfig(prefill_chunk_tokens=48, prefix_cache=prefix_cache),
            clock=FakeClock(),
            lock=threading.RLock(),
        )
        text = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        answers, outcomes = [], []
        for number, question in enumerate(QUESTIONS):
            text += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            ids, outcome = run(stepper, facts, tokenizer, str(number), text)
            answers.append(ids)
            outcomes.append(outcome)
            text += tokenizer.decode(ids) + "<|im_end|>\n"
        return answers, outcomes

    try:
        plain, computed = converse(prefix_cache=False)
        cached, reused = converse(prefix_cache=True)
    finally:
        backend.close()
        source.close()
    assert cached == plain
    assert [outcome.cached_tokens for outcome in computed] == [0, 0, 0]
    assert reused[0].cached_tokens == 0
    for before, now in itertools.pairwise(reused):
        assert now.cached_tokens >= before.prompt_tokens // 16 * 16


def run(
    stepper: Stepper, facts: EngineFacts, tokenizer: Tokenizer, name: str, text: str
) -> tuple[list[int], Outcome]:
    """Greedy answer to a text."""
    prompt = np.array(tokenizer.encode(text, allow_special=True), dtype=np.int32)
    sampling = SamplingParams(temperature=0.0)
    asked = SequenceRequest(name, prompt.tolist(), sampling, 8, tokenizer.end_ids)
    stepper.scheduler.enqueue(
        LiveSequence(asked, prompt, SamplerState(sampling, prompt, facts.spec.vocab_size), 0.0)
    )
    ids: list[int] = []
    while stepper.scheduler.busy:
        stepper.step()
        for update in stepper.take_updates():
            ids += [token.id for token in update.tokens if token.id not in tokenizer.end_ids]
            if update.outcome is not None:
                outcome = update.outcome
    return ids, outcome
