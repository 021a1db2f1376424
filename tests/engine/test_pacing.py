"""Sizing prefill in time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.engine.pacing import IDLE_STALL_TARGETS, MIN_PREFILL_TOKENS, Pace


def test_before_anything_is_measured_the_chunk_is_whole() -> None:
    pace = Pace(stall_target_s=0.25, chunk_tokens=512)
    assert pace.prefill_budget_tokens(decoding=False) == 512
    assert pace.prefill_budget_tokens(decoding=True) == 512


def test_the_budget_is_what_the_target_leaves_beside_decodes() -> None:
    pace = Pace(stall_target_s=0.25, chunk_tokens=512)
    pace.observe(step_s=0.5, prefill_tokens=500, decode_rows=0)
    pace.observe(step_s=0.05, prefill_tokens=0, decode_rows=4)
    assert pace.prefill_tokens_per_s == pytest.approx(1000)
    assert pace.decode_tokens_per_s == pytest.approx(80)
    assert pace.prefill_budget_tokens(decoding=True) == 200
    assert pace.prefill_budget_tokens(decoding=False) == 512


def test_without_answers_the_step_is_bounded_too() -> None:
    pace = Pace(stall_target_s=0.25, chunk_tokens=512)
    pace.observe(step_s=10, prefill_tokens=500, decode_rows=0)
    assert pace.prefill_budget_tokens(decoding=False) == int(50 * 0.25 * IDLE_STALL_TARGETS)


def test_there_is_always_some_progress() -> None:
    pace = Pace(stall_target_s=0.1, chunk_tokens=512)
    pace.observe(step_s=100, prefill_tokens=100, decode_rows=0)
    pace.observe(step_s=1, prefill_tokens=0, decode_rows=1)
    assert pace.prefill_budget_tokens(decoding=True) == MIN_PREFILL_TOKENS


def test_a_slowdown_is_followed_faster_than_a_speedup() -> None:
    slower, faster = (Pace(stall_target_s=1, chunk_tokens=4096) for _ in range(2))
    for pace in (slower, faster):
        pace.observe(step_s=1, prefill_tokens=1000, decode_rows=0)
    slower.observe(step_s=2, prefill_tokens=1000, decode_rows=0)
    faster.observe(step_s=0.5, prefill_tokens=1000, decode_rows=0)
    assert slower.prefill_tokens_per_s < 700
    assert 1000 < faster.prefill_tokens_per_s < 1400


def test_scraps_of_prompts_are_not_measured() -> None:
    pace = Pace(stall_target_s=1, chunk_tokens=4096)
    pace.observe(step_s=1, prefill_tokens=1000, decode_rows=0)
    pace.observe(step_s=1, prefill_tokens=3, decode_rows=0)
    assert pace.prefill_tokens_per_s == 1000


@given(
    overhead_s=st.floats(0, 0.02),
    token_s=st.floats(1e-4, 5e-3),
    decode_s=st.floats(1e-3, 0.05),
    first=st.integers(1, 512),
)
@settings(max_examples=60, deadline=None)
def test_on_a_steady_machine_steps_converge_to_the_target(
    overhead_s: float, token_s: float, decode_s: float, first: int
) -> None:
    pace = Pace(stall_target_s=0.25, chunk_tokens=512)
    pace.observe(step_s=overhead_s + first * token_s, prefill_tokens=first, decode_rows=0)
    step_s = 0.0
    for _ in range(40):
        pace.observe(step_s=overhead_s + decode_s, prefill_tokens=0, decode_rows=2)
        tokens = pace.prefill_budget_tokens(decoding=True)
        step_s = overhead_s + decode_s + tokens * token_s
        pace.observe(step_s=step_s, prefill_tokens=tokens, decode_rows=2)
    assert step_s <= 0.25 * 1.01
    if tokens < 512 and tokens > MIN_PREFILL_TOKENS:
        assert step_s >= 0.25 * 0.9
