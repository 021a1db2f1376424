"""The sampler against a slow plain-Python reference, and its draws against the distribution they should have."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.base import Float32Array
from stretto.conversation.messages import SamplingParams
from stretto.engine.sampler import SamplerState, draw_all, finite_rows, kept_ids, largest, sample
from support.engine_reference import adjusted, distribution, logprobs

NO_PROMPT = np.zeros(0, dtype=np.int32)


def some_logits(vocab: int, seed: int, spread: float = 3.0) -> Float32Array:
    return np.random.default_rng(seed).normal(0, spread, vocab).astype(np.float32)


def state(params: SamplingParams, prompt: list[int] | None = None, vocab: int = 300) -> SamplerState:
    return SamplerState(params, np.array(prompt or [], dtype=np.int32), vocab)


PARAMS = st.builds(
    SamplingParams,
    temperature=st.floats(0.1, 3.0),
    top_k=st.sampled_from([0, 0, 1, 5, 40, 299, 1000]),
    top_p=st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.3]),
    presence_penalty=st.sampled_from([0.0, -2.0, 1.5]),
    frequency_penalty=st.sampled_from([0.0, -0.5, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, 299), st.sampled_from([-100.0, -1.5, 2.0, 100.0]), max_size=4),
    seed=st.integers(-5, 2**70),
)


@given(
    params=PARAMS,
    seed=st.integers(0, 1000),
    spread=st.sampled_from([0.1, 1.0, 6.0]),
    prompt=st.lists(st.integers(0, 299), max_size=20),
    answer=st.lists(st.integers(0, 299), max_size=20),
)
@settings(max_examples=100, deadline=None)
def test_agrees_with_the_reference(
    params: SamplingParams, seed: int, spread: float, prompt: list[int], answer: list[int]
) -> None:
    logits = some_logits(300, seed, spread)
    before = logits.copy()
    sampler = state(params, prompt)
    for token in answer:
        sampler.accept(token)
    values = np.array(adjusted(logits.tolist(), params, prompt, answer))
    np.testing.assert_allclose(sampler.adjust(logits), values, rtol=1e-5, atol=1e-5)
    expected = distribution(logits.tolist(), params, prompt, answer)
    with np.errstate(over="ignore"):
        scaled = ((values - values.max()) / params.temperature).astype(np.float32)
    ids = kept_ids(scaled, params)
    kept = set(range(300)) if ids is None else set(ids.tolist())
    # Sums in another order may differ at the very border of the nucleus: by one token, and only when it is a close call.
    assert len(kept ^ set(expected)) <= (1 if params.top_p < 1 else 0)
    chosen = sample(logits[None], [sampler], [None])[0]
    assert chosen is not None
    assert chosen.id in kept
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("vocab", [100, 3000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.4, top_k=12),
        SamplingParams(top_p=0.8),
        SamplingParams(temperature=1.7, top_p=0.97),
        SamplingParams(min_p=0.05),
        SamplingParams(top_k=50, top_p=0.9, min_p=0.02, logit_bias={3: 4.0}),
    ],
)
def test_draws_follow_the_distribution(params: SamplingParams, vocab: int) -> None:
    logits = some_logits(vocab, 7, 2.0)
    sampler = SamplerState(SamplingParams(**{**_fields(params), "seed": 11}), NO_PROMPT, vocab)
    draws = 1500
    counts = Counter(sampler.choose(logits) for _ in range(draws))
    expected = distribution(logits.tolist(), params)
    assert set(counts) <= set(expected)
    # Pearson's chi-square over tokens expected at least 5 times, the others pooled.
    rare = draws - sum(counts[token] for token, p in expected.items() if p * draws >= 5)
    rare_expected = sum(p for p in expected.values() if p * draws < 5) * draws
    cells = [(counts[token], p * draws) for token, p in expected.items() if p * draws >= 5]
    if rare_expected >= 5:
        cells.append((rare, rare_expected))
    else:
        assert rare <= 30
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    freedom = len(cells) - 1
    assert statistic < freedom + 4 * math.sqrt(2 * freedom) + 8


def _fields(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__slots__}


def test_draw_all_is_the_inverse_of_the_cumulative_weight() -> None:
    rng = np.random.default_rng(1)
    for size in (1, 5, 1024, 2048, 2049, 4096, 10_000):
        weights = rng.random(size, dtype=np.float32) * (rng.random(size) < 0.3)
        weights[size // 2] = 1.0
        weights = weights.astype(np.float32)
        cumulative = np.cumsum(weights, dtype=np.float64)
        for uniform in [0.0, *rng.random(200), np.nextafter(1.0, 0.0)]:
            index = draw_all(weights, float(uniform))
            assert weights[index] > 0
            target = uniform * cumulative[-1]
            assert cumulative[index] >= target - 1e-9
            assert cumulative[index] - weights[index] <= target + 1e-9


@given(
    values=st.lists(st.sampled_from([-3.0, -1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=400),
    count=st.integers(1, 40),
)
@settings(max_examples=60, deadline=None)
def test_largest_breaks_ties_by_the_lower_id(values: list[float], count: int) -> None:
    expected = sorted(range(len(values)), key=lambda index: (-values[index], index))[:count]
    assert largest(np.array(values, dtype=np.float32), count).tolist() == expected


def test_largest_of_a_large_vocabulary() -> None:
    row = some_logits(151_936, 3)
    for count in (1, 20, 64, 5000):
        assert largest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()


@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99])
def test_nucleus_of_a_large_vocabulary(spread: float, top_p: float) -> None:
    row = some_logits(50_000, 5, spread)
    scaled = row - row.max()
    ids = kept_ids(scaled, SamplingParams(top_p=top_p))
    assert ids is not None
    order = np.argsort(-scaled, kind="stable")
    share = np.cumsum(np.exp(scaled[order].astype(np.float64)))
    share /= share[-1]
    size = int(np.searchsorted(share, top_p)) + 1
    assert abs(len(ids) - size) <= 1 + size * 1e-4
    assert len(set(ids.tolist())) == len(ids)
    assert set(ids.tolist()) == set(order[: len(ids)].tolist())


def test_greedy_is_the_exact_argmax_and_the_lowest_id_wins_a_tie() -> None:
    logits = np.zeros((3, 50), dtype=np.float32)
    logits[0, [7, 20]] = 5.0
    logits[1, [49]] = np.float32(1e-30)
    logits[2] = -4.0
    greedy = SamplingParams(temperature=0)
    tokens = sample(logits, [state(greedy, vocab=50) for _ in range(3)], [None] * 3)
    assert [token.id for token in tokens if token] == [7, 49, 0]
    mixed = sample(
        logits,
        [state(greedy, vocab=50), state(greedy, vocab=50), state(SamplingParams(), vocab=50)],
        [None] * 3,
    )
    assert [token.id for token in mixed[:2] if token] == [7, 49]


def test_greedy_heeds_bias_and_penalties() -> None:
    logits = np.array([[1.0, 3.0, 2.5]], dtype=np.float32)
    biased = state(SamplingParams(temperature=0, logit_bias={0: 2.5}), vocab=3)
    assert sample(logits, [biased], [None])[0].id == 0  # type: ignore[union-attr]
    frequent = state(SamplingParams(temperature=0, frequency_penalty=0.3), vocab=3)
    said = [sample(logits, [frequent], [None])[0].id for _ in range(5)]  # type: ignore[union-attr]
    assert said == [1, 1, 2, 1, 2]
    repeated = state(SamplingParams(temperature=0, repetition_penalty=2.0), [1], vocab=3)
    assert sample(logits, [repeated], [None])[0].id == 2  # type: ignore[union-attr]


@pytest.mark.parametrize("temperature", [1e-300, 1e-45, 1e-6])
def test_the_smallest_temperatures_are_greedy(temperature: float) -> None:
    logits = some_logits(300, 1)
    assert state(SamplingParams(temperature=temperature, seed=1)).choose(logits) == int(logits.argmax())


def test_a_seed_draws_the_same_in_any_company() -> None:
    rows = [some_logits(5000, seed, 2.0) for seed in range(12)]
    for params in (
        SamplingParams(seed=5),
        SamplingParams(seed=5, top_p=0.9),
        SamplingParams(seed=5, top_k=30, min_p=0.1),
    ):
        alone = SamplerState(params, NO_PROMPT, 5000)
        expected = [sample(row[None], [alone], [None])[0] for row in rows]
        crowd = [SamplerState(SamplingParams(seed=n), NO_PROMPT, 5000) for n in range(7)]
        member = SamplerState(params, NO_PROMPT, 5000)
        for step, row in enumerate(rows):
            batch = np.stack([some_logits(5000, 100 + step + n) for n in range(7)])
            place = step % 8
            logits = np.insert(batch, place, row, axis=0)
            states = [*crowd[:place], member, *crowd[place:]]
            assert sample(logits, states, [None] * 8)[place] == expected[step]


def test_seeds_differ_and_no_seed_differs_each_time() -> None:
    logits = some_logits(5000, 1, 0.5)

    def drawn(seed: int | None) -> tuple[int | None, ...]:
        sampler = SamplerState(SamplingParams(seed=seed), NO_PROMPT, 5000)
        return tuple(sampler.choose(logits) for _ in range(8))

    assert drawn(1) == drawn(1)
    assert drawn(-1) == drawn(-1)
    assert len({drawn(1), drawn(2), drawn(-1), drawn(2**64), drawn(None), drawn(None)}) == 6


def test_logprobs_are_those_of_the_models_own_logits() -> None:
    logits = some_logits(300, 9)
    params = SamplingParams(temperature=0, logit_bias={17: 100.0})
    reference = logprobs(logits.tolist())
    for alternatives in (0, 1, 5):
        token = sample(logits[None], [state(params)], [alternatives])[0]
        assert token is not None
        assert token.id == 17
        assert token.logprob == pytest.approx(reference[17], abs=1e-5)
        best = sorted(range(300), key=lambda index: (-logits[index], index))[:alternatives]
        assert [index for index, _ in token.top] == best
        assert [value for _, value in token.top] == pytest.approx(
            [reference[index] for index in best], abs=1e-5
        )
    plain = sample(logits[None], [state(params)], [None])[0]
    assert plain is not None
    assert plain.logprob is None
    assert plain.top == ()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_gives_no_token(bad: float) -> None:
    logits = np.stack([some_logits(300, seed) for seed in range(3)])
    logits[1, 250] = bad
    for params in (SamplingParams(temperature=0), SamplingParams(seed=1, top_p=0.5)):
        tokens = sample(logits, [state(params) for _ in range(3)], [3] * 3)
        assert tokens[1] is None
        assert tokens[0] is not None
        assert tokens[2] is not None


def test_huge_finite_logits_are_finite() -> None:
    logits = np.full((1, 300), 3e38, dtype=np.float32)
    assert finite_rows(logits).all()


def test_penalties_that_overflow_give_no_token() -> None:
    logits = np.full((1, 10), 1e30, dtype=np.float32)
    sampler = state(SamplingParams(repetition_penalty=1e-30), [2], vocab=10)
    assert sample(logits, [sampler], [None]) == [None]
