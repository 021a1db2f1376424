"""The real SmolLM2 in float32 against ``transformers`` on the same dequantised weights.

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
from support.backend_driver import Driver  # noqa: E402
from support.torch_runs import loaded, reference_logits, reference_of_source  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.real_model, pytest.mark.timeout(600)]

TOLERANCE = 1e-4
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
        self.model: Any = reference_of_source(source)
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


def test_every_row_of_a_long_prompt_whole_in_chunks_and_over_shuffled_blocks(real: Real) -> None:
    # Over seven million logits, up to 38 in size, float32 itself shows: the reference in float32 is 9.3e-5 away from
    # the reference in float64. So this compares with float64, and the typical distance is the sharper of the limits.
    prompt = real.prompts[-1]
    wanted = reference_logits(real.model.double(), prompt)
    real.model.float()
    for shuffled, chunk in ((False, len(prompt)), (True, 37)):
        driver = Driver(real.backend, blocks=20, block_tokens=16, shuffled=shuffled)
        distance = driver.prefill(driver.start(prompt), chunk) - wanted
        assert float(np.abs(distance).max()) < 2 * TOLERANCE
        assert float(np.sqrt(np.mean(distance**2))) < TOLERANCE / 4


def test_logits_and_greedy_text_of_each_prompt_alone(real: Real) -> None:
    for prompt in real.prompts:
        driver = Driver(real.backend, blocks=20, block_tokens=16)
        sequence = driver.start(prompt, len(prompt) + NEW_TOKENS)
        rows = [driver.step([(sequence, len(prompt))], rows=1)[0]]
        while len(sequence.tokens) < len(prompt) + NEW_TOKENS:
            sequence.tokens.append(int(rows[-1][0].argmax()))
            rows += driver.step([(sequence, 1)])
        text = sequence.tokens[len(prompt) :]
        wanted = reference_logits(real.model, sequence.tokens, NEW_TOKENS + 1)
        assert float(np.abs(np.concatenate(rows) - wanted).max()) < TOLERANCE
        assert text == wanted[:-1].argmax(-1).tolist()
        real.alone.append(text)


def test_greedy_text_eight_at_a_time_is_the_same(real: Real) -> None:
    assert len(real.alone) == len(real.prompts), "this test compares with the one before it"
    together: list[list[int]] = []
    for first in range(0, len(real.prompts), 8):
        driver = Driver(real.backend, blocks=120, block_tokens=16, shuffled=first == 8)
        together += driver.greedy(real.prompts[first : first + 8], NEW_TOKENS)
    assert together == real.alone
