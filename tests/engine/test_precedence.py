"""Priorities: who starts first, how a step's prompt tokens are divided, and that nobody starves or is stopped for another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.base import KVPlan
from stretto.backends.echo import EchoScript
from stretto.conversation import Priority
from stretto.engine import EngineConfig
from stretto.engine.live import LiveSequence
from stretto.engine.pacing import IDLE_STALL_TARGETS
from stretto.engine.precedence import LOWER_SHARE, RISE_S, share_by_rank, share_prefill
from stretto.engine.scheduler import Scheduler
from stretto.engine.sequence import Phase
from support.engine_echo import chat_ids
from support.engine_harness import Bench, live_sequence, request

BLOCK = 16


def live(name: str, priority: Priority = "normal", *, at: float = 0.0, prompt: int = 10) -> LiveSequence:
    asked = request(name, prompt_ids=[1] * prompt, max_tokens=6)
    return live_sequence(replace(asked, priority=priority), submitted_at=at)


def queued(max_batch: int, *sequences: LiveSequence, blocks: int = 64) -> Scheduler:
    scheduler = Scheduler(KVPlan(16, (blocks,)), max_batch=max_batch)
    for sequence in sequences:
        scheduler.enqueue(sequence)
    return scheduler


def started(scheduler: Scheduler, now: float) -> list[str]:
    """Who starts at a time, in order."""
    before = set(scheduler.live()[: scheduler.running])
    scheduler.admit(now)
    return [s.id for s in scheduler.live()[: scheduler.running] if s not in before]


def test_the_urgent_start_first_and_equals_by_arrival() -> None:
    scheduler = queued(
        5,
        live("b1", "background"),
        live("n1"),
        live("b2", "background"),
        live("h1", "high"),
        live("n2"),
        live("h2", "high"),
    )
    assert [s.id for s in scheduler.live()] == ["h1", "h2", "n1", "n2", "b1", "b2"]
    assert started(scheduler, 1.0) == ["h1", "h2", "n1", "n2", "b1"]


def test_background_work_leaves_a_place_free() -> None:
    scheduler = queued(3, *(live(f"b{n}", "background") for n in range(4)))
    assert started(scheduler, 1.0) == ["b0", "b1"]
    assert started(scheduler, 1.0 + 10 * RISE_S) == []  # nobody else waits, so there is nothing to rise above
    scheduler.enqueue(live("person", at=400.0))
    assert started(scheduler, 400.0) == ["person"]
    alone = queued(1, live("only", "background"))
    assert started(alone, 1.0) == ["only"]


def test_a_small_one_in_the_background_does_not_take_the_room_that_a_person_waits_for() -> None:
    scheduler = queued(4, live("first", prompt=60), blocks=8)
    assert started(scheduler, 0.0) == ["first"]  # and the rest of the memory is too small for another like it
    scheduler.enqueue(live("small", "background"))
    scheduler.enqueue(live("large", prompt=70))
    assert started(scheduler, 1.0) == []
    scheduler.remove(scheduler.live()[0])
    assert started(scheduler, 2.0) == ["large", "small"]


def test_nobody_starves() -> None:
    # There is one place, and whenever it is free somebody more urgent waits for it.
    waiting = [live("b0", "background"), live("b1", "background")]
    scheduler = queued(1, *waiting)
    order: list[str] = []
    now = 0.0
    for number in range(100):
        scheduler.enqueue(live(f"n{number}", at=now))
        order += started(scheduler, now)
        scheduler.remove(scheduler.live()[0])
        now += 1.0
    assert [(name, order.index(name)) for name in ("b0", "b1")] == [("b0", 30), ("b1", 60)]
    assert [name for name in order if name.startswith("n")] == [f"n{n}" for n in range(98)]
    assert scheduler.raised == 2
    assert waiting[0].request.priority == "background"


def test_a_backlog_rises_one_by_one() -> None:
    scheduler = queued(2, live("long"), live("longer"), *(live(f"b{n}", "background") for n in range(50)))
    assert started(scheduler, 0.0) == ["long", "longer"]
    scheduler.enqueue(live("n0", at=1000.0))
    scheduler.enqueue(live("n1", at=1000.0))
    order = []
    for now in (1000.0, 1001.0, 1002.0):
        scheduler.remove(scheduler.live()[0])
        order += started(scheduler, now)
    assert order == [
        "b0",
        "n0",
        "n1",
    ]  # the first has waited long enough, and is the elder; the others wait on


def test_who_waits_for_others_in_the_background_does_not_rise() -> None:
    scheduler = queued(2, *(live(f"b{n}", "background") for n in range(50)))
    assert started(scheduler, 0.0) == ["b0"]
    scheduler.enqueue(live("n0", at=1000.0))
    scheduler.enqueue(live("n1", at=1000.0))
    assert started(scheduler, 1000.0) == ["n0"]
    scheduler.remove(scheduler.live()[0])
    assert started(scheduler, 1001.0) == ["n1"]
    assert scheduler.raised == 0


def test_the_usual_rises_above_the_high() -> None:
    scheduler = queued(1, live("n"))
    for number in range(30):
        scheduler.enqueue(live(f"h{number}", "high", at=float(number)))
        assert started(scheduler, float(number)) == [f"h{number}"]
        scheduler.remove(scheduler.live()[0])
    scheduler.enqueue(live("late", "high", at=30.0))
    assert started(scheduler, 30.0) == ["n"]


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 2)), min_size=1, max_size=20),
    st.integers(1, 600),
)
@settings(max_examples=100, deadline=None)
def test_shares_of_prefill(prompts: list[tuple[int, int]], budget: int) -> None:
    unread, ranks = [count for count, _ in prompts], [rank for _, rank in prompts]
    shares = share_by_rank(unread, ranks, budget)
    assert all(0 <= share <= most for share, most in zip(shares, unread, strict=True))
    assert sum(shares) == min(budget, sum(unread))
    of = {rank: sum(s for s, r in zip(shares, ranks, strict=True) if r == rank) for rank in set(ranks)}
    wanted = {rank: sum(u for u, r in zip(unread, ranks, strict=True) if r == rank) for rank in set(ranks)}
    first = min(of)
    assert of[first] >= min(wanted[first], budget - max(1, budget // LOWER_SHARE))
    if budget >= LOWER_SHARE**2:
        assert all(of.values())  # nobody is left out
    if len(of) == 1:
        assert shares == share_prefill(unread, budget)


def test_what_the_urgent_do_not_need_the_others_get() -> None:
    assert share_by_rank([1000, 1000], [1, 2], 256) == [224, 32]
    assert share_by_rank([1000, 1000], [2, 1], 256) == [32, 224]
    assert share_by_rank([100, 1000], [1, 2], 256) == [100, 156]
    assert share_by_rank([1000, 10], [1, 2], 256) == [246, 10]
    assert share_by_rank([1000, 1000, 1000], [0, 1, 2], 256) == [224, 28, 4]
    assert share_by_rank([], [], 256) == []


def parts(bench: Bench, steps: int = 1) -> list[dict[str, int]]:
    """What each sequence has of the next steps."""
    found = []
    for _ in range(steps):
        before = {s.id: s.prefilled for s in bench.stepper.scheduler.live()}
        bench.step()
        after = {s.id: s.prefilled for s in bench.stepper.scheduler.live()}
        found.append({name: after[name] - count for name, count in before.items() if name in after})
    return found


def chatting(bench: Bench, name: str, letter: str, priority: Priority, size: int = 600) -> LiveSequence:
    asked = request(name, prompt_ids=chat_ids(letter * size), max_tokens=100)
    return bench.submit(replace(asked, priority=priority))


def test_a_person_s_prompt_is_read_before_a_title_s() -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=64, max_context_tokens=4096))
    chatting(bench, "title", "t", "background")
    bench.step()
    chatting(bench, "person", "p", "normal")
    shares = parts(bench, 3)
    assert [(share["title"], share["person"]) for share in shares] == [(8, 56)] * 3
    bench.run()
    assert bench.heard["title"].text == "t" * 100
    assert bench.heard["person"].text == "p" * 100


def test_how_much_of_a_prompt_is_read_beside_an_answer() -> None:
    script = EchoScript(prefill_token_delay_s=0.001, decode_delay_s=0.0001)
    config = EngineConfig(prefill_chunk_tokens=512, max_context_tokens=8192, stall_target_s=0.256)
    cases: list[tuple[Priority, Priority, int]] = [
        ("normal", "background", 256 // LOWER_SHARE),
        ("normal", "normal", 256),
        ("background", "normal", 256 * IDLE_STALL_TARGETS),
    ]
    for answering, reading, most in cases:
        bench = Bench(script, config)
        chatting(bench, "warm", "w", "normal")
        bench.run()
        talking = chatting(bench, "answer", "a", answering, 40)
        while talking.phase is not Phase.GENERATING or len(talking.tokens) < 3:
            bench.step()
        chatting(bench, "prompt", "p", reading, 2000)
        (share,) = parts(bench)
        assert share["prompt"] == pytest.approx(min(most, config.prefill_chunk_tokens), abs=2)
        bench.run()
        assert (bench.heard["answer"].text, bench.heard["prompt"].text) == ("a" * 40, "p" * 100)


def test_who_computes_for_a_person_is_as_urgent() -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=72, max_context_tokens=4096))
    chatting(bench, "summary", "s", "background", 900)
    bench.step()
    chatting(bench, "other", "o", "normal", 900)
    chatting(bench, "same", "s", "normal", 900)
    assert [parts(bench)[0][name] for name in ("summary", "other")] == [36, 36]
    bench.run()
    assert (
        bench.stepper.prompt_tokens < 2 * len(chat_ids("s" * 900)) + 100
    )  # what the two share is computed once
    assert {name: heard.text for name, heard in bench.heard.items()} == {
        "summary": "s" * 100,
        "other": "o" * 100,
        "same": "s" * 100,
    }


def test_what_runs_goes_on_whoever_comes() -> None:
    bench = Bench(config=EngineConfig(max_batch=2, max_context_tokens=1024))
    title = bench.submit(replace(request("title", "t" * 30), priority="background"))
    while len(title.tokens) < 3:
        bench.step()
    for number in range(5):
        bench.submit(replace(request(f"h{number}", "h" * 30), priority="high"))
    count = len(title.tokens)
    while not bench.heard["title"].ended:
        bench.step()
        count += 1
    assert count == 31  # a token in every step, the last one ends it
    bench.run()
    assert bench.heard["title"].text == "t" * 30


def test_a_long_summary_in_the_background_goes_before_a_short_conversation() -> None:
    # 64 blocks. The conversation takes 8 of them once, the summary 30: whatever else then comes needs some of both.
    cases: list[tuple[Priority, bool]] = [("background", True), ("normal", False)]
    for priority, known in cases:
        bench = Bench(config=EngineConfig(kv_cache_bytes=8 * BLOCK * 64, max_context_tokens=1024))
        main = chat_ids("m" * 60)
        bench.submit(request("main", prompt_ids=main, max_tokens=60))
        bench.run()
        asked = request("summary", prompt_ids=chat_ids("s" * 450), max_tokens=20)
        bench.submit(replace(asked, priority=priority))
        bench.run()
        bench.submit(request("other", prompt_ids=chat_ids("o" * 600), max_tokens=20))
        bench.run()
        again = bench.submit(request("again", prompt_ids=main, max_tokens=60))
        bench.run()
        assert (again.cached_tokens > 0) is known
