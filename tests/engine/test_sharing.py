"""Known text is shared and kept. The echo model answers from the KV memory alone, so a wrong share would show as wrong text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.base import BackendLost
from stretto.backends.echo import EchoBackend, EchoScript
from stretto.conversation.messages import SamplingParams
from stretto.engine import CacheMiss, EngineConfig, Outcome, Phase, SequenceRequest
from stretto.engine.kv import KVCache
from stretto.engine.live import LiveSequence
from stretto.errors import Unavailable
from support.engine_echo import TOKENIZER, chat_ids, dialogue_ids, text_of, turn_ids
from support.engine_harness import GREEDY, Bench, Running, check_blocks, request

BLOCK = 16


def ask(bench: Bench, name: str, ids: list[int], *, max_tokens: int = 100) -> Outcome:
    """Run one sequence alone."""
    bench.submit(request(name, prompt_ids=ids, max_tokens=max_tokens))
    bench.run()
    check_blocks(bench)
    return bench.heard[name].outcome


def down(tokens: int) -> int:
    """Rounded down to blocks."""
    return tokens // BLOCK * BLOCK


@pytest.mark.parametrize("groups", [1, 3])
def test_a_conversation_is_read_once(groups: int) -> None:
    bench = Bench(EchoScript(layer_groups=groups))
    turns: list[tuple[str, str]] = []
    before = 0
    for number in range(10):
        text = f"Question {number}: " + "why? " * (3 * number + 5)
        ids = dialogue_ids(turns, text, system="You are helpful.")
        outcome = ask(bench, str(number), ids, max_tokens=400)
        assert bench.heard[str(number)].text == text
        assert outcome.cached_tokens == down(before)
        if number == 0:
            assert outcome.cache_miss == CacheMiss(0, "cold")
        elif before % BLOCK:
            # Known text ends with the answer's last token that was computed; the end token was drawn, and never fed.
            assert outcome.cache_miss == CacheMiss(before, "partial_block")
        else:
            assert outcome.cache_miss is None
        before = len(ids) + len(text)
        turns.append((text, text))
    assert bench.stepper.scheduler.kv.counts.hits == 9
    assert bench.stepper.prompt_tokens < before


@pytest.mark.parametrize("extra", range(-1, 3))
def test_at_least_one_token_is_computed(extra: int) -> None:
    bench = Bench()
    text = "x" * (BLOCK * 3 + extra - len(chat_ids("")))
    ids = chat_ids(text)
    assert len(ids) == 3 * BLOCK + extra
    first, second = ask(bench, "first", ids), ask(bench, "second", ids)
    assert (first.cached_tokens, second.cached_tokens) == (0, down(len(ids) - 1))
    assert second.cache_miss is None
    assert bench.heard["second"].text == text


def test_answers_to_one_prompt_share_it() -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=40))
    ids = chat_ids("y" * 300)
    for number in range(4):
        bench.submit(request(str(number), prompt_ids=ids, max_tokens=400))
    while bench.stepper.scheduler.busy:
        bench.step()
        check_blocks(bench)
    limit = down(len(ids) - 1)
    assert [bench.heard[str(n)].outcome.cached_tokens for n in range(4)] == [0, limit, limit, limit]
    assert [bench.heard[str(n)].outcome.cache_miss for n in range(4)] == [
        CacheMiss(0, "cold"),
        None,
        None,
        None,
    ]
    assert all(bench.heard[str(n)].text == "y" * 300 for n in range(4))
    assert bench.stepper.prompt_tokens == len(ids) + 3 * (len(ids) - limit)
    assert bench.heard["1"].updates[0].cached_tokens == limit  # known with the first update


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_who_waited_for_another_goes_on_without_it(how: str) -> None:
    bench = Bench(EchoScript(fail_at_step=3 if how == "fail" else 0), EngineConfig(prefill_chunk_tokens=40))
    ids = chat_ids("z" * 300)
    leader = bench.submit(request("leader", prompt_ids=ids))
    bench.submit(request("follower", prompt_ids=ids))
    bench.step()
    bench.step()
    assert (leader.prefilled, bench.heard["follower"].updates) == (80, [])
    leader.cancelled = how == "cancel"
    bench.step()
    check_blocks(bench)
    assert bench.heard["leader"].ended
    bench.run()
    check_blocks(bench)
    follower = bench.heard["follower"]
    assert (follower.text, follower.outcome.phase) == ("z" * 300, Phase.FINISHED)
    assert follower.outcome.cached_tokens == 80


def test_a_short_prompt_does_not_wait_for_one_that_does_not_get_on() -> None:
    # The oldest gets half of each step and the shortest the rest. The one whose beginning the short prompt shares stands still
    # beside those two: the short one computes that itself, and the other takes it over.
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=64))
    shared = "The same beginning. " * 4
    bench.submit(request("oldest", "o" * 2000, max_tokens=1))
    middle = bench.submit(request("middle", shared + "m" * 1000, max_tokens=1500))
    bench.submit(request("other", "x" * 600))
    bench.submit(request("short", shared + "short"))
    tokens = len(chat_ids(shared + "short"))
    for _ in range(-(-tokens // 32)):
        bench.step()
        check_blocks(bench)
    assert bench.heard["short"].tokens
    assert middle.prefilled - middle.cached_tokens == 0
    bench.run()
    assert bench.heard["middle"].outcome.cached_tokens == down(len(turn_ids("user", shared)) - 2)
    assert bench.heard["middle"].text == shared + "m" * 1000
    assert bench.heard["oldest"].text == "o"


def test_what_was_cancelled_is_known_as_far_as_it_got() -> None:
    bench = Bench()
    cancelled = bench.submit(request("cancelled", "c" * 100))
    for _ in range(40):
        bench.step()
    cancelled.cancelled = True
    bench.run()
    fed = cancelled.computed_tokens
    again = dialogue_ids([], "c" * 100) + list(b"c" * 60)
    assert fed > 139
    assert ask(bench, "again", again).cached_tokens == down(fed)


def test_where_texts_part_and_why() -> None:
    bench = Bench(config=EngineConfig(kv_cache_bytes=8 * BLOCK * 32, max_context_tokens=400))
    ids = chat_ids("The quick brown fox jumps over the lazy dog. " * 4)
    ask(bench, "first", ids)
    other = list(ids)
    other[100] ^= 1
    outcome = ask(bench, "parted", other, max_tokens=1)
    assert (outcome.cached_tokens, outcome.cache_miss) == (96, CacheMiss(100, "diverged"))
    ask(bench, "big", chat_ids("big" * 120), max_tokens=20)
    outcome = ask(bench, "gone", ids, max_tokens=1)
    assert outcome.cache_miss == CacheMiss(outcome.cached_tokens, "evicted")
    assert bench.stepper.scheduler.kv.counts.evictions > 0


def test_off_is_off() -> None:
    bench = Bench(config=EngineConfig(prefix_cache=False))
    ids = chat_ids("t" * 100)
    for number in range(3):
        bench.submit(request(str(number), prompt_ids=ids))
    bench.run()
    check_blocks(bench)
    for number in range(3):
        outcome = bench.heard[str(number)].outcome
        assert (outcome.cached_tokens, outcome.cache_miss) == (0, CacheMiss(0, "disabled"))
        assert bench.heard[str(number)].text == "t" * 100
    kv = bench.stepper.scheduler.kv
    assert (kv.blocks_cached, kv.counts.hits, kv.counts.misses) == (0, 0, 0)


def test_side_requests_do_not_evict_the_main_conversation() -> None:
    # 64 blocks; the conversation grows to 45 of them, each title takes 15: there is never room for two titles beside it.
    bench = Bench(config=EngineConfig(kv_cache_bytes=8 * BLOCK * 64, max_context_tokens=1024))
    turns: list[tuple[str, str]] = []
    before = 0
    for number in range(5):
        text = f"{number} " + "main " * 12
        ids = dialogue_ids(turns, text)
        outcome = ask(bench, f"main{number}", ids)
        assert outcome.cached_tokens == down(before)
        assert bench.heard[f"main{number}"].text == text
        before = len(ids) + len(text)
        turns.append((text, text))
        for side in range(4):
            title = chat_ids(f"{number}{side}" + " a title for this, please" * 5)
            assert ask(bench, f"side{number}{side}", title, max_tokens=60).cached_tokens == 0
    kv = bench.stepper.scheduler.kv
    assert kv.counts.evictions > 100
    assert before > 600


def test_an_answer_that_could_be_long_evicts_nothing_as_long_as_it_is_not() -> None:
    # 64 blocks. The side request may fill the whole context, which would take every block there is; it takes what it needs.
    bench = Bench(config=EngineConfig(kv_cache_bytes=8 * BLOCK * 64, max_context_tokens=1024))
    ids = dialogue_ids([("m" * 250, "m" * 250)], "m" * 20)
    ask(bench, "main", ids)
    title = chat_ids("a title")
    assert ask(bench, "side", title, max_tokens=1024 - len(title)).phase is Phase.FINISHED
    assert ask(bench, "main again", ids).cached_tokens == down(len(ids) - 1)
    assert bench.stepper.scheduler.kv.counts.evictions == 0


def test_long_answers_take_turns_when_the_promises_fill_the_memory() -> None:
    bench = Bench(EchoScript(repeat=0), EngineConfig(kv_cache_bytes=8 * BLOCK * 64, max_context_tokens=1024))
    for name in "abc":
        bench.submit(request(name, name, max_tokens=480))
    bench.step()
    assert (bench.stepper.scheduler.running, bench.stepper.scheduler.queued) == (2, 1)
    while bench.stepper.scheduler.busy:
        bench.step()
        check_blocks(bench)
    assert all(bench.heard[name].text == name * 480 for name in "abc")


def test_a_wait_for_room_counts_only_what_is_not_shared() -> None:
    # 20 blocks: two of these need 2 x 12, but share 8.
    bench = Bench(config=EngineConfig(kv_cache_bytes=8 * BLOCK * 20, max_context_tokens=320))
    ids = chat_ids("w" * 110)
    ask(bench, "before", ids, max_tokens=10)
    for name in ("one", "two"):
        bench.submit(request(name, prompt_ids=ids, max_tokens=50))
    bench.step()
    assert (bench.stepper.scheduler.running, bench.stepper.scheduler.queued) == (2, 0)
    bench.run()
    assert bench.heard["one"].text == bench.heard["two"].text == "w" * 50


def test_known_blocks_that_are_shared_are_no_room() -> None:
    # 20 blocks: 8 known and unused, 9 promised to another, 3 free. The third shares the 8 and needs 4 more.
    bench = Bench(config=EngineConfig(kv_cache_bytes=8 * BLOCK * 20, max_context_tokens=320))
    ids = chat_ids("w" * 110)
    ask(bench, "before", ids, max_tokens=10)
    other = chat_ids("other")
    bench.submit(request("other", prompt_ids=other, max_tokens=9 * BLOCK - len(other)))
    bench.step()
    assert bench.stepper.scheduler.kv.blocks_cached == 8
    bench.submit(request("third", prompt_ids=ids, max_tokens=12 * BLOCK - len(ids)))
    bench.step()
    check_blocks(bench)
    assert (bench.stepper.scheduler.running, bench.stepper.scheduler.queued) == (1, 1)
    bench.run()
    assert bench.heard["third"].outcome.cached_tokens == 8 * BLOCK
    assert bench.heard["third"].text == "w" * (12 * BLOCK - len(ids))


def test_a_conversation_goes_on_right_behind_its_known_blocks() -> None:
    bench = Bench()
    first = chat_ids("r" * 100)
    ask(bench, "first", first)
    ask(bench, "other", chat_ids("q" * 100))
    second = bench.submit(
        request("second", prompt_ids=dialogue_ids([("r" * 100, "r" * 100)], "more"), max_tokens=100)
    )
    bench.step()
    table = second.block_tables[0]
    assert second.cached_tokens > 200
    assert (table[1:] - table[:-1] == 1).all()


def test_extra_keys_keep_texts_apart() -> None:
    bench = Bench()
    ids = chat_ids("e" * 100)
    for number, key in enumerate([b"", b"adapter", b"adapter", b""]):
        bench.submit(SequenceRequest(str(number), ids, GREEDY, 200, TOKENIZER.end_ids, extra_key=key))
        bench.run()
    assert [bool(bench.heard[str(n)].outcome.cached_tokens) for n in range(4)] == [False, False, True, True]


def test_digests_that_collide_cost_a_miss_and_no_wrong_text() -> None:
    bench = Bench()
    bench.stepper.scheduler.kv = KVCache(
        bench.facts.kv, digester=lambda parent, tokens: bytes([tokens[0] % 2])
    )
    texts = [letter * 70 for letter in "abcd"]
    for round_ in range(2):
        for text in texts:
            bench.submit(request(f"{text}{round_}", text))
            bench.step()
        bench.run()
        check_blocks(bench)
    assert all(bench.heard[f"{text}{round_}"].text == text for text in texts for round_ in range(2))


def test_kv_that_may_be_wrong_is_forgotten() -> None:
    bench = Bench(EchoScript(nan_at_step=3), EngineConfig(prefill_chunk_tokens=64))
    ids = chat_ids("n" * 150)
    outcome = ask(bench, "poisoned", ids)
    assert outcome.phase is Phase.FAILED
    assert bench.stepper.scheduler.kv.blocks_cached == 0
    again = ask(bench, "again", ids, max_tokens=200)
    assert (again.cached_tokens, again.cache_miss) == (0, CacheMiss(0, "evicted"))
    assert bench.heard["again"].text == "n" * 150


def test_a_request_cannot_make_others_forget_by_its_own_penalties() -> None:
    bench = Bench()
    ids = chat_ids("p" * 100)
    ask(bench, "first", ids)
    overflow = SamplingParams(temperature=0.0, repetition_penalty=1e-38, logit_bias={10: 3e38})
    bench.submit(request("overflow", prompt_ids=ids, sampling=overflow))
    bench.run()
    assert bench.heard["overflow"].outcome.phase is Phase.FAILED
    assert ask(bench, "again", ids).cached_tokens == down(len(ids) - 1)


def test_a_failed_step_publishes_nothing_that_it_wrote() -> None:
    bench = Bench(EchoScript(fail_at_step=2), EngineConfig(prefill_chunk_tokens=64))
    ids = chat_ids("f" * 150)
    assert ask(bench, "failed", ids).phase is Phase.FAILED
    again = ask(bench, "again", ids, max_tokens=200)
    assert again.cached_tokens == 64
    assert bench.heard["again"].text == "f" * 150


def test_a_lost_backend_takes_the_cache_with_it() -> None:
    bench = Bench(EchoScript(lost_at_step=30))
    ids = chat_ids("l" * 20)
    ask(bench, "first", ids)
    assert bench.stepper.scheduler.kv.blocks_cached
    bench.submit(request("second", prompt_ids=ids))
    with pytest.raises(BackendLost):
        bench.run()
    bench.stepper.fail_all(Unavailable("lost"))
    check_blocks(bench)
    assert bench.stepper.scheduler.kv.blocks_cached == 0


def test_after_a_reload_nothing_is_known() -> None:
    script = EchoScript(lost_at_step=30)
    with Running(EchoBackend(script), EngineConfig(reload_delays_s=(0.0,))) as running:
        running.finish([running.submit(request("first", "l" * 20))])
        running.finish([running.submit(request("second", "l" * 20))])
        third = None
        while third is None:
            try:
                third = running.submit(request("third", "l" * 20))
            except Unavailable:
                continue
        running.finish([third])
        assert (third.text, third.outcome.cached_tokens) == ("l" * 20, 0)


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("new"), st.integers(0, 3), st.integers(0, 60)),
        st.tuples(st.just("go on"), st.integers(0, 9), st.integers(0, 30)),
        st.tuples(st.just("again"), st.integers(0, 9), st.integers(0, 3)),
        st.tuples(st.just("cancel"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 12), st.just(0)),
        st.tuples(st.just("run"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(
    moves=MOVES,
    fail_every=st.sampled_from([0, 0, 9]),
    groups=st.integers(1, 2),
    window=st.sampled_from([0, 0, 1, 13, 40]),
    block_tokens=st.sampled_from([1, 4, 16]),
    pool_tokens=st.sampled_from([320, 640, 2000]),
    chunk=st.sampled_from([7, 24, 100]),
)
@settings(max_examples=80, deadline=None)
def test_whatever_is_shared_texts_are_right(
    moves: list[tuple[str, int, int]],
    fail_every: int,
    groups: int,
    window: int,
    block_tokens: int,
    pool_tokens: int,
    chunk: int,
) -> None:
    config = EngineConfig(
        max_batch=5,
        kv_cache_bytes=pool_tokens * 8 * groups,
        block_tokens=block_tokens,
        prefill_chunk_tokens=chunk,
        max_context_tokens=320,
    )
    script = EchoScript(layer_groups=groups, window_tokens=window, fail_every=fail_every)
    bench = Bench(script, config)
    sequences: list[LiveSequence] = []
    expected: dict[str, str] = {}
    talks: list[tuple[list[tuple[str, str]], str]] = []

    def say(turns: list[tuple[str, str]], text: str, max_tokens: int) -> None:
        ids = dialogue_ids(turns, text)
        if len(ids) + max_tokens > 320:
            return
        name = str(len(sequences))
        talks.append((turns, text))
        expected[name] = text[:max_tokens]
        sequences.append(bench.submit(request(name, prompt_ids=ids, max_tokens=max_tokens)))

    for move, number, more in moves:
        if move == "new":
            say([], "abcd"[number] * more, 60)
        elif move == "go on" and talks:
            turns, text = talks[number % len(talks)]
            say([*turns, (text, text)], f"go on {more}", 30)
        elif move == "again" and talks:
            turns, text = talks[number % len(talks)]
            say(turns, text, 10 * more + 1)
        elif move == "cancel" and sequences:
            sequences[-1 - number % len(sequences)].cancelled = True
        elif move == "step":
            for _ in range(number):
                bench.step()
                check_blocks(bench)
        elif move == "run":
            bench.run(2000)
        check_blocks(bench)
    bench.run(2000)
    check_blocks(bench)
    assert bench.blocks_used == 0
    for sequence in sequences:
        heard = bench.heard[sequence.id]
        assert expected[sequence.id].startswith(heard.text)
        outcome = heard.outcome
        assert outcome.cached_tokens % block_tokens == 0
        if outcome.phase is Phase.FINISHED:
            assert heard.text == text_of(ord(letter) for letter in expected[sequence.id])
            assert sequence.prefilled == outcome.prompt_tokens > outcome.cached_tokens
        else:
            assert fail_every if outcome.phase is Phase.FAILED else sequence.cancelled
    # What was computed, and what was not, is the prompts; a failed step's work counts for nobody.
    assert bench.stepper.prompt_tokens == sum(
        sequence.prefilled - sequence.cached_tokens for sequence in sequences
    )
