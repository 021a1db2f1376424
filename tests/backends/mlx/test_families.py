"""Models of the zoo over our caches against the same models over mlx-lm's own: in pieces, over scattered blocks, and in company.

One sequence alone goes through the same operations on the same numbers, so its logits must be the very same. In company, sums may
be made in another order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from stretto.backends.mlx import MLXBackend, runtime  # noqa: E402
from stretto.backends.mlx.selfcheck import COVERED, check_model  # noqa: E402
from support.backend_driver import Driver  # noqa: E402
from support.mlx_models import VOCAB, Reference, loaded, tiny_mlx  # noqa: E402

pytestmark = pytest.mark.mlx

CHUNK = 7
LENGTHS = (37, 5, 21, 1)
TOLERANCE = 1e-4
CASES = [(family, bits) for family in sorted(COVERED) for bits in (None, 4)] + [("llama", 8)]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1] or 'plain'}")
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLXBackend]:
    family, bits = request.param
    made = loaded(tiny_mlx(tmp_path_factory.mktemp("model"), family, bits=bits))
    yield made
    made.close()


def groups(backend: MLXBackend) -> int:
    assert backend._runtime is not None
    return len(backend._runtime.spec.layer_groups)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB, count).tolist() for count in LENGTHS]


@pytest.mark.parametrize("shuffled", [False, True])
def test_one_sequence_in_odd_chunks_is_the_same_to_the_bit(backend: MLXBackend, shuffled: bool) -> None:
    prompt = prompts()[0]
    driver = Driver(backend, blocks=24, shuffled=shuffled, groups=groups(backend))
    found = driver.prefill(driver.start(prompt), CHUNK)
    wanted = Reference(backend).logits(prompt, range(CHUNK, len(prompt), CHUNK))
    assert np.array_equal(found, wanted)


def test_ragged_batches_compute_each_sequence_as_if_it_were_alone(backend: MLXBackend) -> None:
    reference = Reference(backend)
    driver = Driver(backend, blocks=40, shuffled=True, groups=groups(backend))
    sequences = [driver.start(prompt, len(prompt) + 1) for prompt in prompts()]
    rows = driver.step([(sequence, -(-len(sequence.tokens) // 2)) for sequence in sequences])
    more = driver.step([(s, len(s.tokens) - s.cached) for s in sequences if s.cached < len(s.tokens)])
    for sequence, first, rest in zip(sequences, rows, [*more, np.zeros((0, VOCAB))], strict=True):
        found = np.concatenate([first, rest])
        assert float(np.abs(found - reference.logits(sequence.tokens)).max()) < TOLERANCE


def test_greedy_answers_in_company(backend: MLXBackend) -> None:
    reference = Reference(backend)
    driver = Driver(backend, blocks=64, shuffled=True, groups=groups(backend))
    found = driver.greedy(prompts(), 6)
    assert found == [reference.greedy(prompt, 6) for prompt in prompts()]
    assert backend.stats()["sequences_a_pass"] == (
        runtime.ALONE_BY_TEST.get("gemma2") if family_of(backend) == "gemma2" else "several"
    )


def test_text_that_another_sequence_computed_is_taken_over(backend: MLXBackend) -> None:
    """As prefix reuse does it: the second begins with the first one's blocks, and computes only what is new."""
    prompt = prompts()[0]
    driver = Driver(backend, blocks=40, shuffled=True, groups=groups(backend))
    first = driver.start(prompt)
    driver.prefill(first, 16)
    second = driver.start([*prompt[:24], 5, 6, 7], len(prompt))
    for own, known in zip(second.tables, first.tables, strict=True):
        own[:6] = known[:6]
    second.cached = 24
    found = driver.prefill(second, 2)
    wanted = Reference(backend).logits(second.tokens, [24, 26])[24:]
    assert float(np.abs(found - wanted).max()) < TOLERANCE


def test_the_check_at_load_agrees_with_what_is_written_here(backend: MLXBackend) -> None:
    inner = backend._runtime
    assert inner is not None
    assert bool(check_model(inner._loaded.model, inner._layout)) == (
        family_of(backend) in runtime.ALONE_BY_TEST
    )


def test_half_precision(tmp_path: Path) -> None:
    made = loaded(tiny_mlx(tmp_path, dtype=mx.bfloat16))
    prompt = prompts()[0]
    driver = Driver(made, blocks=24)
    assert np.array_equal(driver.prefill(driver.start(prompt), 37), Reference(made).logits(prompt))
    assert made._runtime is not None
    assert made._runtime.spec.dtype == "bfloat16"
    assert made._runtime.spec.layer_groups[0].kv_bytes_per_token == 3 * 2 * 2 * 16 * 2
    made.close()


def family_of(backend: MLXBackend) -> str:
    assert backend._runtime is not None
    return backend._runtime.spec.family
