"""The real SmolLM2 in float32 against ``transformers`` on the same dequantised weights.

Where every digit counts the reference computes in float64: in float32 its own logits, up to 38 in size, are 9e-5 away
from that, which would leave no room to find a fault of ours.

Greedy text is compared position by position: when each of our tokens is the reference's best one after our own text so
far, the two texts are equal, and the reference needs one pass a prompt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stretto.backends.torch import TorchBackend  # noqa: E402
from stretto.weights import load_tokenizer, open_model  # noqa: E402
from support.torch_runs import Driver, loaded, reference_logits, reference_of_source  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.real_model, pytest.mark.timeout(600)]

TOLERANCE = 1e-4
RELATIVE = 1e-5
"""Logits reach 20 here, where float32 sums of 1,536 terms differ by their order alone; the worst seen was 1.1e-4 at 19."""
NEW_TOKENS = 8
QUESTIONS = (
    "Hi",
    "What is the capital of France?",
    "Name three fruits.",
    "Write a short poem about the sea.",
    "What is 12 times 11?",
    "Translate 'good morning' to Spanish.",
    "Explain gravity to a child in one sentence.",
    "Who wrote Hamlet?",
    "Write a Python function that reverses a string.",
    "List the planets of the solar system in order, starting with the one nearest to the sun.",
    "Why is the sky blue? Answer in two sentences, and mention how light is scattered by the air.",
    "Gib mir ein Beispiel für einen Satz auf Deutsch.",
    "日本の首都はどこですか?",
    'Complete this JSON: {"name": "Ada", "born": ',
    "Summarise: "
    + "The quick brown fox jumps over the lazy dog while the sun sets over the quiet hills. " * 3,
    "Which of these is odd? " + ", ".join(str(n) for n in range(2, 40, 2)) + ", 41",
    "Give me a recipe for pancakes with only four ingredients, and say how long each step takes.",
    "What does this do?\n\nfor i in range(10):\n    print(i * i)\n",
    "A train leaves at 9:40 and arrives at 11:15. How long does the journey take, in minutes?",
    "Tell me about rivers. " + "Rivers carry water, sand and life from the mountains to the sea. " * 9,
)


class Real:
    """Our backend, the reference and the prompts."""

    def __init__(self, path: Path) -> None:
        source = open_model(path)
        tokenizer = load_tokenizer(source)
        # float64 as well, so that the two differ by their arithmetic alone: the same dequantised float32 weights.
        self.single: Any = reference_of_source(source)
        self.model: Any = reference_of_source(source).double()
        self.backend: TorchBackend = loaded(path)
        self.prompts = [
            tokenizer.encode(
                f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", allow_special=True
            )
            for question in QUESTIONS
        ]
        self.alone: list[list[int]] = []
        source.close()


@pytest.fixture(scope="module")
def real(smollm2_path: Path) -> Real:
    return Real(smollm2_path)


def test_prompts_differ_in_length(real: Real) -> None:
    assert len(real.prompts) == 20
    lengths = sorted({len(prompt) for prompt in real.prompts})
    assert len(lengths) >= 12
    assert lengths[-1] > 10 * lengths[0]


def test_logits_of_prompts_whole_in_chunks_and_over_shuffled_blocks(real: Real) -> None:
    prompt = real.prompts[-1]
    wanted = reference_logits(real.model, prompt)
    for shuffled, chunk in ((False, len(prompt)), (True, 37)):
        driver = Driver(real.backend, blocks=20, block_tokens=16, shuffled=shuffled)
        found = driver.prefill(driver.start(prompt), chunk)
        np.testing.assert_allclose(found, wanted, rtol=RELATIVE, atol=TOLERANCE)


def test_logits_against_the_reference_in_float32_too(real: Real) -> None:
    for prompt in real.prompts[:2]:
        driver = Driver(real.backend, blocks=20, block_tokens=16)
        found = driver.prefill(driver.start(prompt), len(prompt))
        np.testing.assert_allclose(
            found, reference_logits(real.single, prompt), rtol=RELATIVE, atol=TOLERANCE
        )


def test_greedy_text_of_each_prompt_alone(real: Real) -> None:
    for prompt in real.prompts:
        driver = Driver(real.backend, blocks=20, block_tokens=16)
        sequence = driver.start(prompt, len(prompt) + NEW_TOKENS)
        rows = [driver.step([(sequence, len(prompt))], rows=1)[0]]
        while len(sequence.tokens) < len(prompt) + NEW_TOKENS:
            sequence.tokens.append(int(rows[-1][0].argmax()))
            rows += driver.step([(sequence, 1)])
        text = sequence.tokens[len(prompt) :]
        wanted = reference_logits(real.single, sequence.tokens, NEW_TOKENS + 1)
        assert text == wanted[:-1].argmax(-1).tolist()
        real.alone.append(text)
        if len(real.alone) % 5 == 1:
            wanted = reference_logits(real.model, sequence.tokens, NEW_TOKENS + 1)
            np.testing.assert_allclose(np.concatenate(rows), wanted, rtol=RELATIVE, atol=TOLERANCE)


def test_greedy_text_eight_at_a_time_is_the_same(real: Real) -> None:
    assert len(real.alone) == len(real.prompts), "this test compares with the one before it"
    together: list[list[int]] = []
    for first in range(0, len(real.prompts), 8):
        driver = Driver(real.backend, blocks=120, block_tokens=16, shuffled=first == 8)
        together += driver.greedy(real.prompts[first : first + 8], NEW_TOKENS)
    assert together == real.alone
