"""Who runs: first come first served, shares of a step's prefill, the table of phases."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.base import KVPlan
from stretto.engine.live import LiveSequence
from stretto.engine.precedence import share_prefill
from stretto.engine.scheduler import Scheduler
from stretto.engine.sequence import TRANSITIONS, Phase
from support.engine_harness import live_sequence, request


def live(name: str, *, prompt: int = 10, max_tokens: int = 6) -> LiveSequence:
    return live_sequence(request(name, prompt_ids=[1] * prompt, max_tokens=max_tokens))


@given(st.lists(st.integers(1, 2000), max_size=20), st.integers(1, 600))
@settings(max_examples=60, deadline=None)
def test_shares_of_prefill(unread: list[int], budget: int) -> None:
    shares = share_prefill(unread, budget)
    assert all(0 <= share <= most for share, most in zip(shares, unread, strict=True))
    assert sum(shares) == min(budget, sum(unread))
    if unread:
        assert shares[0] >= min(unread[0], (budget + 1) // 2)
        shortest = min(range(len(unread)), key=lambda index: (unread[index], index))
        assert shares[shortest] >= min(unread[shortest], budget // 2)


def test_a_short_prompt_is_read_beside_a_long_one() -> None:
    assert share_prefill([2000, 1500, 30], 512) == [482, 0, 30]
    assert share_prefill([2000, 1500], 100) == [50, 50]
    assert share_prefill([100, 1500, 1700], 512) == [100, 412, 0]
    assert share_prefill([], 512) == []


def test_nobody_overtakes_and_places_are_limited() -> None:
    scheduler = Scheduler(KVPlan(16, (8,)), max_batch=3)
    small, large, late = live("small"), live("large", max_tokens=118), live("late")
    for sequence in (small, large, late):
        scheduler.enqueue(sequence)
    scheduler.admit(1.0)
    assert [s.phase for s in (small, large, late)] == [Phase.PREFILLING, Phase.QUEUED, Phase.QUEUED]
    assert scheduler.kv.blocks_used == (1,)
    scheduler.remove(small)
    scheduler.admit(2.0)
    assert [s.phase for s in (large, late)] == [Phase.PREFILLING, Phase.QUEUED]
    assert scheduler.kv.blocks_used == (5,)  # its prompt and some; the other 3 are promised to it
    assert scheduler.live() == [large, late]
    scheduler.remove(large)
    others = [live(str(n)) for n in range(3)]
    for sequence in others:
        scheduler.enqueue(sequence)
    scheduler.admit(3.0)
    assert (scheduler.running, scheduler.queued) == (3, 1)
    assert others[-1].phase is Phase.QUEUED


def test_an_id_is_live_once() -> None:
    scheduler = Scheduler(KVPlan(16, (8,)), max_batch=3)
    scheduler.enqueue(live("x"))
    with pytest.raises(ValueError, match="'x' is live already"):
        scheduler.enqueue(live("x"))


def test_clear_forgets_everything() -> None:
    scheduler = Scheduler(KVPlan(16, (8, 8)), max_batch=1)
    running, queued = live("a"), live("b")
    scheduler.enqueue(running)
    scheduler.enqueue(queued)
    scheduler.admit(0.0)
    assert scheduler.kv.blocks_used == (1, 1)
    assert scheduler.clear() == [running, queued]
    assert not scheduler.busy
    assert scheduler.kv.blocks_used == (0, 0)
    assert running.block_tables == ()


@pytest.mark.parametrize("start", list(Phase))
def test_only_the_changes_of_the_table(start: Phase) -> None:
    for end in Phase:
        sequence = live("x")
        sequence.phase = start
        if end in TRANSITIONS[start]:
            sequence.advance(end)
            assert sequence.phase is end
        else:
            with pytest.raises(RuntimeError, match=f"from {start.value} to {end.value}"):
                sequence.advance(end)
    assert live("x").ended is False
