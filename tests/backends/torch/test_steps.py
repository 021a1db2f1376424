"""What a step promises beside its numbers: order of rows, company, and the ways that decodes are batched."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stretto.backends.base import Chunk, KVPlan  # noqa: E402
from stretto.backends.chunks import StepLimits  # noqa: E402
from stretto.backends.torch import TorchBackend  # noqa: E402
from stretto.backends.torch.attention import (  # noqa: E402
    BatchedDecodeAttention,
    DecodeAttention,
    ScoreRule,
    causal_mask,
)
from stretto.backends.torch.kv import KVPool  # noqa: E402
from stretto.backends.torch.plan import plan_step  # noqa: E402
from support.backend_driver import Driver, RunningSequence  # noqa: E402
from support.torch_runs import loaded  # noqa: E402
from support.weights_tiny import tiny_gguf  # noqa: E402

pytestmark = pytest.mark.torch

VOCAB = 340


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchBackend]:
    backend = loaded(tiny_gguf(tmp_path_factory.mktemp("steps")))
    yield backend
    backend.close()


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_rows_come_in_the_order_of_the_batch(backend: TorchBackend) -> None:
    driver = Driver(backend, blocks=60)
    long, short = driver.start(range(20)), driver.start(range(50, 60))
    driver.step([(short, 9)], rows=0)
    together = driver.step([(long, 20), (short, 1)], rows=2)
    assert [part.shape[0] for part in together] == [2, 1]
    again = Driver(backend, blocks=60)
    long, short = again.start(range(20)), again.start(range(50, 60))
    assert np.allclose(together[0], again.prefill(long, 20)[-2:], atol=1e-5)
    assert np.allclose(together[1], again.prefill(short, 10)[-1:], atol=1e-5)


def test_no_rows_wanted_gives_none_but_fills_the_cache(backend: TorchBackend) -> None:
    driver = Driver(backend, blocks=60)
    sequence = driver.start(range(12))
    (empty,) = driver.step([(sequence, 11)], rows=0)
    assert empty.shape == (0, driver.prefill(driver.start(range(3)), 3).shape[1])
    (last,) = driver.step([(sequence, 1)])
    whole = driver.prefill(driver.start(range(12)), 12)
    assert np.allclose(last[0], whole[-1], atol=1e-5)


@pytest.mark.parametrize("shuffled", [False, True])
def test_company_changes_nothing_but_last_bits(backend: TorchBackend, shuffled: bool) -> None:
    def decode(company: int) -> tuple[list[int], np.ndarray]:
        driver = Driver(backend, blocks=200, shuffled=shuffled)
        rng = np.random.default_rng(company)
        subject = driver.start(range(30, 45), 25)
        others = [driver.start(rng.integers(0, VOCAB, 5 + 3 * n).tolist(), 40) for n in range(company)]
        driver.step([*((o, len(o.tokens)) for o in others), (subject, 15)], rows=1)
        logits = []
        for token in range(10):
            subject.tokens.append(token)
            for other in others:
                other.tokens.append(int(rng.integers(0, VOCAB)))
            parts = [(subject, 1), *((other, 1) for other in others)]
            logits.append(driver.step(parts if token % 2 else parts[::-1])[0 if token % 2 else -1])
        return subject.tokens, np.concatenate(logits)

    alone, crowded = decode(0), decode(7)
    assert alone[0] == crowded[0]
    assert float(np.abs(alone[1] - crowded[1]).max()) < 1e-5


def test_a_neighbours_broken_cache_is_never_read(backend: TorchBackend) -> None:
    def last_logits(poison: bool) -> np.ndarray:
        driver = Driver(backend, blocks=24, shuffled=True)
        if poison:
            size = len(backend.read_block(0, 0))
            for block in range(24):
                backend.write_block(0, block, np.full(size // 4, np.nan, dtype=np.float32).tobytes())
        sequences = [driver.start(range(7)), driver.start(range(9, 22))]
        driver.step([(s, len(s.tokens) - 1) for s in sequences], rows=0)
        return np.concatenate(driver.step([(s, 1) for s in sequences]))

    assert np.array_equal(last_logits(True), last_logits(False))


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("rule", [ScoreRule(), ScoreRule(0.2, 1.5)])
def test_batched_decodes_equal_single_ones(window: int | None, rule: ScoreRule) -> None:
    pool = KVPool(
        layers=2,
        kv_heads=2,
        head_size=8,
        block_tokens=4,
        blocks=30,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    generator = torch.Generator().manual_seed(0)
    for layer in range(2):
        for run in (0, 60):
            pool.write(layer, torch.randn(60, 4, 8, generator=generator), torch.arange(60), run)
    tables = [[3, 1, 8, 2], [10, 11], [20], [29, 0, 5]]
    contexts = [14, 8, 1, 11]
    batch = [Chunk(ids(1), n - 1, (ids(*table),), 1) for table, n in zip(tables, contexts, strict=True)]
    plan = plan_step(batch, StepLimits(4, (30,), (window,), 5, 100)).groups[0]
    queries = torch.randn(4, 6, 8, generator=generator)
    device = torch.device("cpu")
    batched = BatchedDecodeAttention(pool, plan.spans, device, torch.float32)
    singles = [DecodeAttention(pool, span, device) for span in plan.spans]
    for layer in range(2):
        assert torch.allclose(
            batched(layer, queries, rule),
            torch.cat([single(layer, queries, rule) for single in singles]),
            atol=1e-6,
        )


def test_causal_mask() -> None:
    def seen(start: int, window: int | None) -> list[list[int]]:
        """Positions that each of two rows sees."""
        batch = [Chunk(ids(1, 1), start, (ids(1, 2, 3),), 0)]
        (span,) = plan_step(batch, StepLimits(4, (8,), (window,), 5, 100)).groups[0].spans
        mask = causal_mask(span, window, torch.device("cpu"), torch.float32)
        assert set(mask.unique().tolist()) <= {0.0, float("-inf")}
        return [[span.first + column for column in row.nonzero().flatten().tolist()] for row in mask == 0]

    assert seen(3, None) == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert seen(3, 4) == [[0, 1, 2, 3], [1, 2, 3, 4]]
    assert seen(6, 3) == [[4, 5, 6], [5, 6, 7]]
    assert seen(0, 1) == [[0], [1]]


def test_blocks_are_copied_read_and_written_back(backend: TorchBackend) -> None:
    driver = Driver(backend, blocks=40)
    original = driver.start(range(16), 17)
    driver.prefill(original, 16)
    copy = driver.start(range(16), 17)
    pairs = list(zip(original.tables[0][:2], copy.tables[0][:2], strict=True))
    backend.copy_blocks(0, pairs)
    for source, target in zip(original.tables[0][2:], copy.tables[0][2:], strict=True):
        backend.write_block(0, target, backend.read_block(0, source))
        assert backend.read_block(0, target) == backend.read_block(0, source)
    twin = RunningSequence([*range(16), 99], copy.tables, 16)
    original.tokens.append(99)
    first, second = driver.step([(original, 1), (twin, 1)])
    assert np.array_equal(first, second)


def test_copies_happen_one_after_the_other(backend: TorchBackend) -> None:
    driver = Driver(backend, blocks=3)
    driver.prefill(driver.start(range(4)), 4)
    wanted = backend.read_block(0, 0)
    backend.copy_blocks(0, [(0, 1), (1, 2)])
    assert backend.read_block(0, 2) == wanted


def test_a_block_is_laid_out_as_documented(backend: TorchBackend) -> None:
    spec_layers, kv_heads, block_tokens, head_size = 2, 2, 4, 16
    backend.allocate(KVPlan(block_tokens, (2,)))
    assert len(backend.read_block(0, 1)) == spec_layers * 2 * kv_heads * block_tokens * head_size * 4
