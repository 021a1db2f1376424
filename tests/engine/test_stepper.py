"""Steps over the echo backend: it answers from the paged KV memory, so a wrong block table would show as wrong text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.base import BackendLost
from stretto.backends.echo import EchoScript
from stretto.conversation.messages import SamplingParams
from stretto.engine import EngineConfig, Phase
from stretto.engine.live import LiveSequence
from support.engine_echo import chat_ids
from support.engine_harness import GREEDY, Bench, check_blocks, request

TEXTS = ["hello", "", "zwölf Boxkämpfer 🥊", "x" * 300, "a b c " * 20, "\n\n", "last one", "y" * 77]


def test_one_sequence() -> None:
    bench = Bench()
    bench.submit(request("one", "hello"))
    bench.run()
    heard = bench.heard["one"]
    assert heard.text == "hello"
    assert heard.outcome.phase is Phase.FINISHED
    assert heard.outcome.reason == "stop"
    assert heard.outcome.prompt_tokens == len(chat_ids("hello"))
    assert heard.outcome.completion_tokens == len("hello") + 1
    assert heard.outcome.cached_tokens == 0
    assert heard.updates[-1].prefilled_tokens == heard.outcome.prompt_tokens


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_a_batch_answers_as_each_alone(groups: int, chunk: int) -> None:
    bench = Bench(EchoScript(layer_groups=groups), EngineConfig(prefill_chunk_tokens=chunk, block_tokens=5))
    for number, text in enumerate(TEXTS):
        bench.submit(request(str(number), text))
        bench.step()
    bench.run()
    assert [bench.heard[str(number)].text for number in range(len(TEXTS))] == TEXTS
    assert bench.blocks_used == 0


@pytest.mark.parametrize("chunk", [1, 16, 100])
def test_chunked_prefill_draws_what_whole_prefill_draws(chunk: int) -> None:
    def drawn(size: int) -> list[object]:
        bench = Bench(EchoScript(peak=2.0), EngineConfig(prefill_chunk_tokens=size))
        bench.submit(request("s", "x" * 250, max_tokens=40, sampling=SamplingParams(seed=3), logprobs=2))
        bench.run()
        return list(bench.heard["s"].tokens)

    assert drawn(chunk) == drawn(4096)


def test_a_seed_draws_the_same_alone_and_in_a_batch_of_eight() -> None:
    script = EchoScript(peak=3.0, repeat=0)
    sampling = SamplingParams(temperature=1.3, top_p=0.95, seed=42, frequency_penalty=0.2)
    alone = Bench(script)
    alone.submit(request("s", "some text", max_tokens=60, sampling=sampling))
    alone.run()
    crowd = Bench(script)
    for number in range(4):
        crowd.submit(
            request(f"before{number}", "other" * number, max_tokens=90, sampling=SamplingParams(seed=number))
        )
    crowd.step()
    crowd.submit(request("s", "some text", max_tokens=60, sampling=sampling))
    for number in range(3):
        crowd.submit(
            request(f"after{number}", "more" * number, max_tokens=20 + number, sampling=SamplingParams())
        )
    crowd.run()
    assert crowd.heard["s"].ids == alone.heard["s"].ids
    assert len(set(alone.heard["s"].ids)) > 5


def test_the_answer_ends_at_max_tokens() -> None:
    bench = Bench()
    bench.submit(request("cut", "hello", max_tokens=3))
    bench.submit(request("exact", "hi", max_tokens=3))
    bench.submit(request("one", "hello", max_tokens=1))
    bench.run()
    assert bench.heard["cut"].text == "hel"
    assert bench.heard["cut"].outcome.reason == "length"
    assert bench.heard["exact"].outcome.reason == "stop"
    assert bench.heard["one"].outcome.completion_tokens == 1


def test_the_whole_context_can_be_used() -> None:
    bench = Bench(EchoScript(context_tokens=100, repeat=0))
    prompt = len(chat_ids("abc"))
    bench.submit(request("full", "abc", max_tokens=100 - prompt))
    bench.run()
    assert bench.heard["full"].outcome.completion_tokens == 100 - prompt


def test_phases_and_times() -> None:
    script = EchoScript(prefill_token_delay_s=0.5, decode_delay_s=2.0)
    bench = Bench(script, EngineConfig(prefill_chunk_tokens=16, max_batch=1, stall_target_s=100))
    bench.submit(request("a", "abc"))
    bench.submit(request("b", "d"))
    bench.run()
    tokens = len(chat_ids("abc"))
    times = bench.heard["a"].outcome.timing
    assert times.queued_s == 0
    assert times.prefill_s == pytest.approx(tokens * 0.5)
    assert times.decode_s == pytest.approx(3 * 2.0)
    assert bench.heard["b"].outcome.timing.queued_s == pytest.approx(tokens * 0.5 + 6.0)
    phases = [update.phase for update in bench.heard["a"].updates]
    assert phases == [Phase.PREFILLING] * (tokens // 16) + [Phase.GENERATING] * 3 + [Phase.FINISHED]
    assert [update.prefilled_tokens for update in bench.heard["a"].updates][:2] == [16, tokens]


def test_logprobs_are_delivered() -> None:
    bench = Bench()
    bench.submit(request("l", "ab", logprobs=2))
    bench.run()
    tokens = bench.heard["l"].tokens
    assert all(
        token.logprob is not None and token.logprob > -1e-3 and len(token.top) == 2 for token in tokens
    )
    assert [token.top[0][0] for token in tokens] == [token.id for token in tokens]


def test_cancel_takes_one_step_and_harms_nobody() -> None:
    bench = Bench(config=EngineConfig(max_batch=2))
    running = bench.submit(request("running", "r" * 50))
    other = bench.submit(request("other", "o" * 50))
    queued = bench.submit(request("queued", "q" * 50))
    bench.step()
    bench.step()
    assert [s.phase for s in (running, other, queued)] == [Phase.GENERATING, Phase.GENERATING, Phase.QUEUED]
    queued.cancelled = True
    bench.step()
    assert bench.heard["queued"].outcome.phase is Phase.CANCELLED
    assert bench.heard["queued"].outcome.completion_tokens == 0
    running.cancelled = running.cancelled = True
    before = bench.blocks_used
    bench.step()
    assert bench.heard["running"].outcome.phase is Phase.CANCELLED
    assert bench.heard["running"].outcome.completion_tokens == 3
    assert 0 < bench.blocks_used < before
    bench.run()
    assert bench.heard["other"].text == "o" * 50


def test_a_failed_step_ends_only_those_in_it() -> None:
    bench = Bench(EchoScript(fail_at_step=4), EngineConfig(max_batch=2))
    for name in ("a", "b", "c"):
        bench.submit(request(name, name * 20))
    bench.run()
    for name in ("a", "b"):
        outcome = bench.heard[name].outcome
        assert outcome.phase is Phase.FAILED
        assert outcome.error is not None
        assert (outcome.error.code, outcome.error.status) == ("engine_error", 500)
        assert "scripted, step 4" in outcome.error.message
        assert bench.heard[name].text == name * 3
    assert bench.heard["c"].text == "c" * 20
    assert bench.blocks_used == 0
    assert (bench.stepper.failed_steps, bench.stepper.ended[Phase.FAILED]) == (1, 2)


def test_a_prompt_that_has_no_part_in_the_failed_step_lives() -> None:
    bench = Bench(EchoScript(fail_at_step=1), EngineConfig(prefill_chunk_tokens=8))
    for name, size in (("old", 60), ("middle", 50), ("short", 4)):
        bench.submit(request(name, name[0] * size))
    bench.run()
    assert bench.heard["middle"].text == "m" * 50
    assert bench.heard["old"].outcome.phase is Phase.FAILED
    assert bench.heard["short"].outcome.phase is Phase.FAILED


def test_out_of_memory_says_so() -> None:
    bench = Bench(EchoScript(oom_at_step=2))
    bench.submit(request("a"))
    bench.run()
    error = bench.heard["a"].outcome.error
    assert error is not None
    assert error.code == "out_of_memory"
    assert error.remedy


def test_logits_that_are_not_finite_fail_that_sequence_only() -> None:
    bench = Bench(EchoScript(nan_at_step=3))
    bench.submit(request("first", "abcdef"))
    bench.submit(request("second", "ghijkl"))
    bench.run()
    error = bench.heard["first"].outcome.error
    assert error is not None
    assert error.code == "engine_error"
    assert "not finite" in error.message
    assert bench.heard["second"].text == "ghijkl"
    assert bench.blocks_used == 0


def test_a_lost_backend_is_for_the_engine_to_handle() -> None:
    bench = Bench(EchoScript(lost_at_step=2))
    sequence = bench.submit(request("a"))
    bench.step()
    with pytest.raises(BackendLost):
        bench.step()
    assert not sequence.ended


def test_what_does_not_fit_now_waits_for_room() -> None:
    # 64 blocks of 16 tokens: two of these fit, the third waits until one is done, and the small fourth does not overtake it.
    bench = Bench(EchoScript(context_tokens=1024), EngineConfig(kv_cache_bytes=1024 * 8))
    for name in ("a", "b", "c"):
        bench.submit(request(name, name * 10, max_tokens=450))
    bench.submit(request("small", "s", max_tokens=4))
    bench.step()
    assert (bench.stepper.scheduler.running, bench.stepper.scheduler.queued) == (2, 2)
    bench.run()
    assert [bench.heard[name].text for name in ("a", "b", "c", "small")] == [
        "a" * 10,
        "b" * 10,
        "c" * 10,
        "s",
    ]
    assert bench.heard["c"].outcome.timing.queued_s >= 0


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=64))
    long = bench.submit(request("long", "l" * 3000, max_tokens=10))
    bench.step()
    bench.submit(request("short", "s", max_tokens=10))
    steps = 0
    while not bench.heard["short"].tokens:
        bench.step()
        steps += 1
    assert steps == -(-len(chat_ids("s")) // 32)
    assert long.prefilled >= 64 + steps * 32
    bench.run()
    assert bench.heard["short"].text == "s"


def test_long_prompts_all_get_on() -> None:
    bench = Bench(config=EngineConfig(prefill_chunk_tokens=64))
    sequences = [bench.submit(request(str(n), str(n) * 800, max_tokens=1)) for n in range(4)]
    total = sum(sequence.unread_tokens for sequence in sequences)
    ended_at: dict[int, int] = {}
    for step in range(1, total):
        bench.step()
        for number in range(4):
            if bench.heard[str(number)].ended:
                ended_at.setdefault(number, step)
        if len(ended_at) == 4:
            break
    # First come, first read; and together they take no longer than one after the other.
    assert sorted(ended_at, key=lambda number: ended_at[number]) == [0, 1, 2, 3]
    assert max(ended_at.values()) == -(-total // 64)


@pytest.mark.parametrize("warm", [True, False])
def test_running_answers_never_stall_longer_than_the_target(warm: bool) -> None:
    script = EchoScript(prefill_token_delay_s=0.002, decode_delay_s=0.02, context_tokens=8192)
    bench = Bench(script, EngineConfig(prefill_chunk_tokens=2048, stall_target_s=0.25))
    for number in range(4):
        bench.submit(request(f"stream{number}", str(number) * 300))
    while not all(bench.heard[f"stream{number}"].tokens for number in range(4)):
        bench.step()
    for _ in range(5 if warm else 0):
        bench.step()
    bench.submit(request("long", "l" * 5000, max_tokens=5))
    gaps: list[float] = []
    steps_with_prefill = 0
    while not bench.heard["long"].tokens:
        before = bench.clock()
        updates = bench.step()
        gaps.append(bench.clock() - before)
        steps_with_prefill += any(update.id == "long" for update in updates)
        assert all(any(update.id == f"stream{n}" and update.tokens for update in updates) for n in range(4))
    assert max(gaps) <= 0.25 + 1e-6
    # And the target is used: 115 tokens or so a step, not one by one.
    assert steps_with_prefill <= 5200 / 100
    # A prefill that was never measured beside decodes alone counts their time as its own.
    assert bench.stepper.pace.prefill_tokens_per_s == pytest.approx(500 if warm else 440, rel=0.05)


def test_a_machine_that_slows_down_is_followed() -> None:
    bench = Bench(
        EchoScript(prefill_token_delay_s=0.001, context_tokens=8192), EngineConfig(stall_target_s=0.25)
    )
    bench.submit(request("stream", "s" * 500))
    bench.submit(request("long", "l" * 5000, max_tokens=5))
    for _ in range(8):
        bench.step()
    bench.backend._script = EchoScript(prefill_token_delay_s=0.004, context_tokens=8192)
    gaps = []
    for _ in range(6):
        before = bench.clock()
        bench.step()
        gaps.append(bench.clock() - before)
    assert gaps[0] > 0.5
    assert gaps[1] < 0.5
    assert gaps[3] == pytest.approx(0.25, rel=0.1)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 40), st.integers(1, 60)),
        st.tuples(st.just("cancel"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 4), st.just(0)),
    ),
    max_size=60,
)


@given(
    actions=ACTIONS,
    fail_every=st.sampled_from([0, 0, 7]),
    groups=st.integers(1, 2),
    block_tokens=st.sampled_from([1, 4, 16]),
)
@settings(max_examples=60, deadline=None)
def test_no_block_is_lost_or_shared_by_two(
    actions: list[tuple[str, int, int]], fail_every: int, groups: int, block_tokens: int
) -> None:
    script = EchoScript(context_tokens=128, layer_groups=groups, fail_every=fail_every)
    config = EngineConfig(
        max_batch=5,
        kv_cache_bytes=320 * 8 * groups,
        block_tokens=block_tokens,
        prefill_chunk_tokens=24,
        max_context_tokens=128,
    )
    bench = Bench(script, config)
    sequences: list[LiveSequence] = []
    texts: dict[str, str] = {}

    def check() -> None:
        check_blocks(bench)
        for sequence in bench.stepper.scheduler.live():
            if sequence.phase is not Phase.QUEUED:
                assert len(sequence.block_tables[0]) * block_tokens >= sequence.computed_tokens
        assert all(s.block_tables == () for s in sequences if s.ended)

    for action, number, more in actions:
        if action == "submit":
            name = str(len(sequences))
            texts[name] = chr(ord("a") + len(sequences) % 26) * number
            sequences.append(bench.submit(request(name, texts[name], max_tokens=more, sampling=GREEDY)))
        elif action == "cancel" and sequences:
            sequences[number % len(sequences)].cancelled = True
        elif action == "step":
            for _ in range(number):
                bench.step()
        check()
    bench.run()
    check()
    assert bench.blocks_used == 0
    for sequence in sequences:
        heard = bench.heard[sequence.id]
        assert texts[sequence.id].startswith(heard.text)
        if heard.outcome.phase is Phase.FINISHED:
            assert heard.text == texts[sequence.id][: sequence.request.max_tokens]
        elif heard.outcome.phase is Phase.FAILED:
            assert fail_every
        else:
            assert sequence.cancelled
