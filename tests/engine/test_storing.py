"""Known text that outlives the KV memory: saved after a turn, restored for the next one, never wrong."""

from __future__ import annotations

from stretto.backends.echo import EchoScript
from stretto.engine import EngineConfig
from stretto.engine.storing import LEAST_SAVED_BLOCKS
from support.engine_harness import Bench, check_blocks, request
from support.engine_store import MemoryStore

TEXT = "the quick brown fox jumps over the lazy dog and then goes on for quite some time, as foxes do. " * 4
SCRIPT = EchoScript(context_tokens=4096)
CONFIG = EngineConfig(stall_target_s=0.25)


def talk(
    store: MemoryStore, text: str = TEXT, *, script: EchoScript = SCRIPT, config: EngineConfig = CONFIG
) -> Bench:
    """One turn in a new engine, then everything saved."""
    bench = Bench(script, config, store)
    bench.submit(request("a", text))
    bench.run()
    storing = bench.stepper.storing
    assert storing is not None
    while storing.save_some():
        pass
    return bench


def test_a_turn_is_saved_whole_and_restored_in_another_engine() -> None:
    store = MemoryStore()
    first = talk(store)
    outcome = first.heard["a"].outcome
    computed = outcome.prompt_tokens + outcome.completion_tokens - 1
    assert sorted(depth for depth, _, _ in store.blocks.values()) == list(range(1, computed // 16 + 1))
    second = talk(store)
    assert second.heard["a"].text == TEXT
    again = second.heard["a"].outcome
    assert again.cached_tokens == (again.prompt_tokens - 1) // 16 * 16
    assert again.cache_miss is None
    assert second.stepper.prompt_tokens == again.prompt_tokens - again.cached_tokens
    assert second.stepper.storing is not None
    assert second.stepper.storing.stats()["restored_tokens_total"] == again.cached_tokens
    assert again.cached_tokens // 16 in [len(uses) for uses in store.uses]
    check_blocks(second)


def test_a_prompt_that_goes_on_differently_is_restored_up_to_there() -> None:
    store = MemoryStore()
    talk(store)
    bench = talk(store, TEXT[:200] + "Now for something else entirely, which nobody has said before." * 3)
    assert bench.heard["a"].text.startswith(TEXT[:200] + "Now")
    assert 0 < bench.heard["a"].outcome.cached_tokens <= 216


def test_short_text_is_not_saved() -> None:
    store = MemoryStore()
    bench = talk(store, "hi")
    assert bench.heard["a"].outcome.prompt_tokens < 16 * LEAST_SAVED_BLOCKS
    assert store.blocks == {}


def test_a_long_restore_is_spread_over_steps_and_others_go_on() -> None:
    store = MemoryStore()
    talk(store)
    bench = Bench(SCRIPT, CONFIG, store)
    store.on_read = lambda: bench.clock.wait(0.1)
    bench.submit(request("b", "meanwhile, " * 10))
    bench.step()
    bench.submit(request("a", TEXT))
    told_before = len(bench.heard["b"].tokens)
    reads = []
    while not bench.heard["a"].tokens:
        before = store.reads
        bench.step()
        reads.append(store.reads - before)
    assert max(reads) == 3  # 0.3 s: the first beyond the target ends it
    assert len([count for count in reads if count]) > 5
    assert len(bench.heard["b"].tokens) - told_before >= len(reads) - 1  # a token a step
    bench.run()
    assert bench.heard["a"].text == TEXT
    assert bench.stepper.prompt_tokens < 200 + bench.heard["b"].outcome.prompt_tokens


def test_a_block_that_is_broken_after_all_is_computed() -> None:
    store = MemoryStore()
    talk(store)
    third = sorted(store.blocks.items(), key=lambda item: item[1][0])[2][0]
    depth, _, blocks = store.blocks[third]

    real_read = store.read

    def read(digest: bytes, tokens: bytes) -> tuple[bytes, ...] | None:
        if digest == third:
            store.blocks.pop(third, None)
            return None
        return real_read(digest, tokens)

    store.read = read  # type: ignore[method-assign]
    bench = talk(store)
    assert bench.heard["a"].text == TEXT
    assert bench.heard["a"].outcome.cached_tokens == 32
    assert store.blocks[third] == (depth, store.blocks[third][1], blocks)  # and it was saved again


def test_a_block_that_the_backend_does_not_take_is_computed() -> None:
    store = MemoryStore()
    talk(store)
    for digest, (depth, tokens, _) in store.blocks.items():
        store.blocks[digest] = depth, tokens, (b"short",)
    bench = talk(store)
    assert bench.heard["a"].text == TEXT
    assert bench.heard["a"].outcome.cached_tokens == 0


def test_two_at_once_restore_what_they_share_once() -> None:
    store = MemoryStore()
    talk(store)
    bench = Bench(SCRIPT, CONFIG, store)
    bench.submit(request("a", TEXT))
    bench.submit(request("b", TEXT))
    store.reads = 0
    bench.run()
    assert bench.heard["a"].text == bench.heard["b"].text == TEXT
    assert store.reads == bench.heard["a"].outcome.cached_tokens // 16
    assert bench.heard["b"].outcome.cached_tokens == bench.heard["a"].outcome.cached_tokens
    check_blocks(bench)


def test_what_waits_while_the_store_is_full_is_saved_later() -> None:
    store = MemoryStore()
    store.full = True
    bench = talk(store)
    storing = bench.stepper.storing
    assert storing is not None
    assert storing.pending > 0
    store.full = False
    while storing.save_some():
        pass
    assert storing.pending == 0
    assert len(store.blocks) > 10


def test_nothing_is_believed_after_logits_that_are_no_numbers() -> None:
    store = MemoryStore()
    bench = talk(store)
    assert store.blocks
    sequence = bench.submit(request("b", TEXT + "more"))
    bench.step()
    with bench.stepper._lock:
        bench.stepper.scheduler.kv.distrust(sequence)
    assert bench.stepper.storing is not None
    bench.stepper.storing.distrust()
    assert store.blocks == {}
    assert bench.stepper.storing.pending == 0
    bench.run()
    assert bench.heard["b"].text == TEXT + "more"
    assert bench.stepper.storing.pending == 0
