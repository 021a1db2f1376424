"""The echo backend: it answers from the paged KV memory and nothing else, and breaks when told to."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from stretto.backends.base import Backend, BackendFailure, BackendLost, BackendOutOfMemory, Chunk, KVPlan
from stretto.backends.echo import EchoBackend, EchoScript, probe
from stretto.errors import StartupError
from support.engine_echo import TOKENIZER, chat_ids, text_of

BLOCK = 4
PLAN = KVPlan(BLOCK, (64,))


def ready(
    script: EchoScript | None = None, *, plan: KVPlan = PLAN, waits: list[float] | None = None
) -> EchoBackend:
    backend = EchoBackend(script, wait=None if waits is None else waits.append)
    backend.load(lambda phase, fraction: None)
    backend.allocate(plan)
    return backend


def chunk(ids: list[int], start: int, *tables: list[int], rows: int = 1) -> Chunk:
    return Chunk(np.array(ids, np.int32), start, tuple(np.array(table, np.int32) for table in tables), rows)


def greedy(backend: EchoBackend, prompt: list[int], *tables: list[int], limit: int = 200) -> list[int]:
    said: list[int] = []
    logits = backend.forward([chunk(prompt, 0, *tables)])
    while len(said) < limit:
        said.append(int(logits[-1].argmax()))
        if said[-1] in TOKENIZER.end_ids:
            break
        logits = backend.forward([chunk([said[-1]], len(prompt) + len(said) - 1, *tables)])
    return said


def test_is_a_backend() -> None:
    assert isinstance(EchoBackend(), Backend)
    assert probe().available


@pytest.mark.parametrize("text", ["hello", "", "zwölf Boxkämpfer 🥊\n\nnew line", "x" * 60])
def test_answers_with_the_last_user_message(text: str) -> None:
    table = list(np.random.default_rng(0).permutation(64))
    said = greedy(ready(), chat_ids(text, system="be brief"), table)
    assert text_of(said) == text
    assert said[-1] == TOKENIZER.eos_id


def test_last_of_several_turns() -> None:
    prompt = TOKENIZER.encode(
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n",
        allow_special=True,
    )
    assert text_of(greedy(ready(), prompt, list(range(64)))) == "two"


def test_text_without_turns_ends_at_once() -> None:
    assert greedy(ready(), TOKENIZER.encode("plain", allow_special=True), list(range(64))) == [
        TOKENIZER.eos_id
    ]


def test_reply_and_repeat() -> None:
    assert text_of(greedy(ready(EchoScript(reply="ok")), chat_ids("hi"), list(range(64)))) == "ok"
    assert text_of(greedy(ready(EchoScript(repeat=3)), chat_ids("hi"), list(range(64)))) == "hihihi"
    assert (
        text_of(greedy(ready(EchoScript(reply="ab", repeat=0)), chat_ids("hi"), list(range(64)), limit=7))
        == "abababa"
    )


def test_chunks_batches_and_rows_agree() -> None:
    one, two = chat_ids("first text"), chat_ids("second")
    first, second = list(range(32)), list(range(63, 31, -1))
    whole = ready().forward([chunk(one, 0, first, rows=len(one)), chunk(two, 0, second, rows=3)])
    assert whole.shape == (len(one) + 3, TOKENIZER.vocab_size)
    assert whole.dtype == np.float32
    backend = ready()
    none = backend.forward([chunk(one[:5], 0, first, rows=0)])
    assert none.shape == (0, TOKENIZER.vocab_size)
    parts = backend.forward([chunk(two[:-3], 0, second, rows=0), chunk(one[5:], 5, first, rows=len(one) - 5)])
    np.testing.assert_array_equal(parts, whole[5 : len(one)])
    np.testing.assert_array_equal(
        backend.forward([chunk(two[-3:], len(two) - 3, second, rows=3)]), whole[len(one) :]
    )


def test_the_right_token_stands_out() -> None:
    logits = ready().forward([chunk(chat_ids("hi"), 0, list(range(64)))])[0]
    best, second = np.sort(logits)[::-1][:2]
    assert best == 20.0
    assert second < 1.0
    assert np.unique(logits).size > 200


def test_a_shared_block_shows_as_wrong_text() -> None:
    backend = ready()
    one, two = chat_ids("aaaa aaaa aaaa"), chat_ids("bbbb bbbb bbbb")
    table = list(range(20))
    backend.forward([chunk(one, 0, table)])
    backend.forward([chunk(two, 0, table[:4] + list(range(20, 40)))])
    said = int(backend.forward([chunk([ord("a")], len(one), table)])[0].argmax())
    assert said == ord("b")


def test_lost_writes_are_named() -> None:
    backend = ready()
    ids = chat_ids("hello")
    with pytest.raises(BackendFailure, match="position 0 holds position -1"):
        backend.forward([chunk(ids[4:], 4, list(range(20)))])
    backend.forward([chunk(ids, 0, list(range(20)))])
    with pytest.raises(BackendFailure, match="position 0 holds position 4"):
        backend.forward([chunk([1], len(ids), [1, 0, *range(2, 20)])])


def test_layer_groups_each_have_a_table() -> None:
    script = EchoScript(layer_groups=2)
    backend = ready(script, plan=KVPlan(BLOCK, (64, 40)))
    assert text_of(greedy(backend, chat_ids("both"), list(range(64)), list(range(39, -1, -1)))) == "both"
    data = backend.read_block(1, 38)
    backend.write_block(1, 38, bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(BackendFailure, match="layer group 1 differs"):
        backend.forward([chunk([1], len(chat_ids("both")), list(range(64)), list(range(39, -1, -1)))])


def test_blocks_can_be_copied_and_stored() -> None:
    backend = ready()
    ids = chat_ids("copied")
    last = -(-len(ids) // BLOCK)
    backend.forward([chunk(ids, 0, list(range(20)))])
    backend.copy_blocks(0, [(0, 40), (1, 41)])
    backend.write_block(0, 42, backend.read_block(0, 2))
    table = [40, 41, 42, *range(3, last), 50, 51, 52]
    logits = backend.forward([chunk(ids[-1:], len(ids) - 1, table)])
    assert chr(int(logits[0].argmax())) == "c"
    with pytest.raises(BackendFailure, match="a block has 32 bytes, 3 were given"):
        backend.write_block(0, 0, b"abc")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (chunk([260], 0, [0]), "outside the vocabulary"),
        (chunk([1] * 5, 0, [0]), "covers 4 tokens"),
        (chunk([1], 0, [64]), "outside 0..63"),
        (chunk([1], 0, [-1]), "outside 0..63"),
        (chunk([1], 0, [0], [0]), "2 block tables for 1 layer groups"),
        (chunk([1], 0, [0], rows=2), "at most a row a token"),
        (chunk([1], 4096, list(range(64)) * 20), "beyond the context"),
    ],
)
def test_wrong_chunks_are_refused(wrong: Chunk, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ready().forward([wrong])


def test_scripted_faults() -> None:
    def step(backend: EchoBackend) -> np.ndarray:
        return backend.forward([chunk([1], 0, [0])])

    backend = ready(EchoScript(fail_at_step=1, oom_at_step=2, nan_at_step=3, crash_at_step=4, lost_at_step=6))
    with pytest.raises(BackendFailure, match="step 1"):
        step(backend)
    with pytest.raises(BackendOutOfMemory, match="step 2"):
        step(backend)
    assert np.isnan(step(backend)).all()
    with pytest.raises(RuntimeError, match="step 4"):
        step(backend)
    assert np.isfinite(step(backend)).all()
    for _ in range(2):
        with pytest.raises(BackendLost):
            step(backend)
    backend.close()
    backend.load(lambda phase, fraction: None)
    backend.allocate(PLAN)
    assert np.isfinite(step(backend)).all()
    assert backend.stats()["loads"] == 2

    backend = ready(EchoScript(fail_every=2))
    step(backend)
    with pytest.raises(BackendFailure):
        step(backend)
    step(backend)


def test_load_and_allocate_can_fail() -> None:
    with pytest.raises(StartupError, match="load 1"):
        EchoBackend(EchoScript(fail_at_load=1)).load(lambda phase, fraction: None)
    with pytest.raises(BackendOutOfMemory):
        ready(EchoScript(oom_on_allocate=True))
    with pytest.raises(BackendOutOfMemory, match="2048 bytes of KV do not fit in 2047"):
        ready(EchoScript(memory_bytes=2047))


def test_memory_report() -> None:
    backend = ready(EchoScript(kv_bytes_per_token=100, memory_bytes=100_000))
    report = backend.memory()
    assert report.kv_bytes == 64 * BLOCK * 100
    assert report.free_bytes == 100_000 - report.kv_bytes
    backend.close()
    backend.close()
    assert backend.memory().kv_bytes == 0


def test_delays_go_through_wait() -> None:
    waits: list[float] = []
    backend = ready(
        EchoScript(prefill_delay_s=1.0, prefill_token_delay_s=0.25, decode_delay_s=10.0, load_delay_s=5.0),
        waits=waits,
    )
    assert sum(waits) == pytest.approx(5.0)
    waits.clear()
    backend.forward([chunk([1, 2, 3, 4], 0, [0])])
    backend.forward([chunk([1], 0, [0])])
    backend.forward([chunk([1], 0, [0]), chunk([1, 2], 0, [1]), chunk([1], 0, [2])])
    assert waits == [2.0, 10.0, 11.5]


def test_load_stops_when_the_report_raises() -> None:
    seen: list[float] = []

    def report(phase: str, fraction: float) -> None:
        seen.append(fraction)
        if fraction > 0.3:
            raise KeyError("stop")

    with pytest.raises(KeyError):
        EchoBackend().load(report)
    assert max(seen) < 0.5


def test_a_stalled_step_waits_for_release_or_close() -> None:
    for ending in ("release", "close"):
        backend = ready(EchoScript(stall_at_step=1))
        results: list[object] = []
        thread = threading.Thread(target=_step_into, args=(backend, results))
        thread.start()
        assert backend.stalled.wait(90)
        assert not results
        getattr(backend, ending)()
        thread.join(10)
        assert results == [{"release": "computed", "close": "the backend was closed during the step"}[ending]]


def _step_into(backend: EchoBackend, results: list[object]) -> None:
    try:
        backend.forward([chunk([1], 0, [0])])
        results.append("computed")
    except BackendFailure as failure:
        results.append(str(failure))
