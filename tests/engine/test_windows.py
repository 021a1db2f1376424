"""Layer groups that look back a window only. The echo model checks each position that a window reaches, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.backends.base import LayerGroup, MemoryReport, ModelSpec
from stretto.backends.echo import EchoScript
from stretto.engine import EngineConfig, Outcome
from stretto.engine.budget import plan_kv, window_need
from support.engine_echo import dialogue_ids
from support.engine_harness import Bench, check_blocks, request
from support.engine_store import MemoryStore

WINDOW, BLOCK, CHUNK = 40, 8, 32
SCRIPT = EchoScript(layer_groups=2, window_tokens=WINDOW)
CONFIG = EngineConfig(max_batch=2, block_tokens=BLOCK, prefill_chunk_tokens=CHUNK, max_context_tokens=1000)


def ask(bench: Bench, name: str, ids: list[int], max_tokens: int = 400) -> Outcome:
    """Run one sequence alone, looking at the blocks after each step."""
    bench.submit(request(name, prompt_ids=ids, max_tokens=max_tokens))
    while bench.stepper.scheduler.busy:
        bench.step()
        check_blocks(bench)
    return bench.heard[name].outcome


def test_a_sequence_holds_its_window_and_no_more() -> None:
    bench = Bench(SCRIPT, CONFIG)
    text = "a long text that goes on and on. " * 15
    sequence = bench.submit(request("one", text, max_tokens=480))
    most = 0
    while bench.stepper.scheduler.busy:
        bench.step()
        check_blocks(bench)
        if sequence.block_tables:
            most = max(most, int((sequence.block_tables[1] >= 0).sum()))
    assert bench.heard["one"].text == text[:480]
    assert most <= (WINDOW - 1 + CHUNK) // BLOCK + 2
    assert len(sequence.prompt) + 480 > 20 * WINDOW


def test_known_text_is_followed_as_far_as_its_windows_are_there() -> None:
    bench = Bench(SCRIPT, CONFIG)
    (window,) = bench.stepper.scheduler.kv._windows
    turns: list[tuple[str, str]] = []
    before = 0
    for number in range(4):
        text = f"Question {number}: " + "why? " * (3 * number + 20)
        outcome = ask(bench, str(number), ids := dialogue_ids(turns, text))
        assert bench.heard[str(number)].text == text
        assert outcome.cached_tokens == before // BLOCK * BLOCK
        before = len(ids) + len(text)
        turns.append((text, text))
    # Others need the window's blocks: the longest unused go, and what begins in the middle must be computed.
    long = dialogue_ids(turns, "and so on")
    nodes = [*bench.stepper.scheduler.kv._index._nodes.values()]
    for number in range(6):
        ask(bench, f"other {number}", dialogue_ids([], f"{number} " * 100), 4)
    assert window.given_up > 0
    assert any(node.blocks[1] < 0 <= node.blocks[0] for node in nodes)
    outcome = ask(bench, "again", long)
    assert bench.heard["again"].text == "and so on"
    assert outcome.cached_tokens < before
    # It has been computed again, and its blocks with it: the next one finds all.
    again = ask(bench, "once more", long)
    assert again.cached_tokens == (len(long) - 1) // BLOCK * BLOCK


def test_a_branch_in_the_middle_of_known_text() -> None:
    bench = Bench(SCRIPT, CONFIG)
    first = dialogue_ids([], "x" * 300)
    ask(bench, "first", first, 8)
    branch = first[:200] + dialogue_ids([], "y" * 50)
    outcome = ask(bench, "branch", branch)
    assert bench.heard["branch"].text == "y" * 50
    assert outcome.cached_tokens == 200


def test_windows_are_restored_from_a_store() -> None:
    """As far as they were there when their turn to be saved came, which is what the room for other sequences allows."""
    store, config = MemoryStore(), replace(CONFIG, max_batch=8)
    bench = Bench(SCRIPT, config, store)
    text = "said before, and long enough for many blocks. " * 12
    ids = dialogue_ids([], text)
    ask(bench, "first", ids)
    assert bench.stepper.storing is not None
    while bench.stepper.storing.save_some():
        pass
    again = Bench(SCRIPT, config, store)
    outcome = ask(again, "again", ids)
    assert again.heard["again"].text == bench.heard["first"].text
    assert outcome.cached_tokens == (len(ids) - 1) // BLOCK * BLOCK
    assert again.stepper.prompt_tokens == len(ids) - outcome.cached_tokens


def test_nobody_starts_who_could_run_out_of_a_window() -> None:
    bench = Bench(
        SCRIPT,
        EngineConfig(max_batch=8, block_tokens=BLOCK, prefill_chunk_tokens=CHUNK, kv_cache_bytes=20_000),
    )
    for number in range(8):
        bench.submit(request(str(number), f"{number}" * 200, max_tokens=300))
    while bench.stepper.scheduler.busy:
        bench.step()
        check_blocks(bench)
    assert all(bench.heard[str(number)].text == f"{number}" * 200 for number in range(8))


def test_windows_make_room_for_a_longer_context() -> None:
    def spec(*windows: int | None) -> ModelSpec:
        groups = tuple(LayerGroup(f"g{n}", 1, 1, 1, window, 100) for n, window in enumerate(windows))
        return ModelSpec("test", 10, 100_000, groups, "float32", "cpu")

    def planned(*windows: int | None) -> tuple[tuple[int, ...], int, int]:
        facts = plan_kv(
            spec(*windows),
            MemoryReport(0, 0, 10**9, 10**9),
            EngineConfig(max_batch=1, kv_cache_bytes=2_000_000),
        )
        return facts.kv.blocks, facts.max_context_tokens, facts.kv_bytes

    blocks, context, used = planned(None, None)
    assert (blocks, context) == ((625, 625), 10_000)
    assert used == 2_000_000
    need = window_need(128, 16, 512)
    blocks, context, used = planned(128, None)
    assert blocks == (need.blocks + need.reach_blocks, blocks[1])
    assert context == blocks[1] * 16 > 18_000
    assert 0 <= 2_000_000 - used < 16 * 100
    # With windows alone, a context of any length costs the same.
    blocks, context, used = planned(128)
    assert (blocks, context) == ((need.blocks + need.reach_blocks,), 100_000)


@pytest.mark.parametrize(("window", "chunk"), [(1, 1), (1, 32), (16, 16), (17, 5), (500, 64)])
def test_a_window_needs_the_blocks_that_any_step_can_touch(window: int, chunk: int) -> None:
    need = window_need(window, 16, chunk)
    for start in range(700):
        touched = (start + chunk - 1) // 16 - max(0, start + 1 - window) // 16 + 1
        assert touched <= need.blocks - need.reach_blocks
        assert start // 16 - max(0, start + 1 - window) // 16 + 1 <= need.reach_blocks
