"""Prompts by PyTorch beside the kernels: which tokens, whether it is worth it, and that answers stay what they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stretto.backends.base import BackendFailure, Chunk, KVPlan, ProgressReport
from stretto.backends.native import NativeBackend
from stretto.backends.native.prefill import LEAST_ROWS, Prefill, PrefillPlan, Prompts, split, worth
from stretto.backends.prefill_record import PrefillRecord, Rates
from stretto.errors import StartupError
from stretto.weights import open_model
from support.backend_driver import silent
from support.native_runs import chunk, divergence, native
from support.weights_tiny import tiny_gguf

LONG = 3 * LEAST_ROWS
TOKENS = [(7 * i * i + 3 * i) % 300 + 3 for i in range(2 * LONG)]
MEMORY = np.zeros((2, 16, 64), np.uint8)


def rows(chunks: Sequence[Chunk]) -> list[tuple[int, int, int]]:
    """Start, tokens and logit rows of each."""
    return [(part.start, len(part.token_ids), part.logit_rows) for part in chunks]


@pytest.mark.parametrize(
    ("asked", "prompts", "kernels"),
    [
        ((0, LONG, 0), [(0, LONG, 0)], []),
        ((5, LONG, 1), [(5, LONG - 1, 0)], [(5 + LONG - 1, 1, 1)]),
        ((0, LONG, LONG), [], [(0, LONG, LONG)]),
        ((0, LONG, LONG - LEAST_ROWS + 1), [], [(0, LONG, LONG - LEAST_ROWS + 1)]),
        ((0, LEAST_ROWS, 0), [(0, LEAST_ROWS, 0)], []),
        ((0, LEAST_ROWS, 1), [], [(0, LEAST_ROWS, 1)]),
        ((9, 1, 1), [], [(9, 1, 1)]),
    ],
)
def test_only_long_rows_without_logits_are_taken(
    asked: tuple[int, int, int], prompts: list[tuple[int, int, int]], kernels: list[tuple[int, int, int]]
) -> None:
    start, tokens, logit_rows = asked
    mine, rest = split([chunk(TOKENS[:tokens], start, range(20), logit_rows)])
    assert (rows(mine), rows(rest)) == (prompts, kernels)
    assert np.concatenate([part.token_ids for part in (*mine, *rest)]).tolist() == TOKENS[:tokens]


def test_a_chunk_that_asks_for_more_logits_than_it_has_rows_is_refused() -> None:
    with pytest.raises(BackendFailure, match="logit_rows is 2, with 1 tokens"):
        split([chunk(TOKENS[:1], 0, [0], 2)])


class FakePrompts:
    """Computes nothing, in a time of its own."""

    nbytes = 1000

    def __init__(self, clock: FakeClock, took_s: float) -> None:
        self.clock, self.took_s, self.tokens = clock, took_s, 0

    def attach(self, memory: npt.NDArray[np.uint8], *, kv_dtype: str, block_tokens: int) -> None:
        assert memory is MEMORY

    def forward(self, batch: Sequence[Chunk]) -> None:
        self.tokens += sum(len(part.token_ids) for part in batch)
        self.clock.now_s += self.took_s


class FakeClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def trial(
    record: PrefillRecord | None, torch_s: float, native_s: float = 1.0, **plan: Any
) -> tuple[Prefill, int]:
    """Load and attach; how often the weights were loaded."""
    clock = FakeClock()
    loads = 0

    def make(report: ProgressReport) -> Prompts:
        nonlocal loads
        loads += 1
        return FakePrompts(clock, torch_s)

    def kernels(batch: Sequence[Chunk]) -> None:
        assert all(part.logit_rows == 0 for part in batch)
        clock.now_s += native_s

    prefill = Prefill(PrefillPlan(make, record=record, **plan), clock)
    prefill.load(silent)
    prefill.attach(MEMORY, kernels, kv_dtype="bfloat16", block_tokens=16, vocab=100)
    return prefill, loads


@pytest.mark.parametrize(
    ("torch_s", "by"), [(0.5, "torch"), (0.8, "torch"), (0.9, "native"), (2.0, "native")]
)
def test_the_faster_by_a_fifth_computes_and_it_is_remembered(tmp_path: Path, torch_s: float, by: str) -> None:
    record = PrefillRecord(tmp_path / "prefill.json", "this model, this machine")
    prefill, loads = trial(record, torch_s)
    assert (prefill.stats()["by"], loads) == (by, 1)
    assert (
        prefill.stats()["reason"]
        == f"measured here: 128 tokens/s by the kernels, {128 / torch_s:.0f} by PyTorch in bfloat16"
    )
    assert prefill.nbytes == (1000 if by == "torch" else 0)
    # The next start measures nothing: had it, it would have come out the other way round.
    again, loads = trial(record, 10.0 if by == "torch" else 0.01)
    assert (again.stats()["by"], loads) == (by, int(by == "torch"))
    assert again.stats()["reason"] == prefill.stats()["reason"]
    other, loads = trial(PrefillRecord(tmp_path / "prefill.json", "another model"), 10.0)
    assert (other.stats()["by"], loads) == ("native", 1)
    assert record.read() == Rates(128.0, round(128 / torch_s, 3))


def test_what_was_asked_for_is_not_measured() -> None:
    prefill, _ = trial(None, 10.0, asked=True)
    long = chunk(TOKENS[:LONG], 0, range(6), 1)
    assert prefill.stats()["torch_tokens"] == 0
    assert rows(prefill.take([long])) == [(LONG - 1, 1, 1)]
    assert prefill.stats() == {
        "by": "torch", "reason": "it was asked for", "torch_bytes": 1000, "torch_tokens": LONG - 1,
    }  # fmt: skip
    prefill.close()
    assert rows(prefill.take([long])) == [(0, LONG, 1)]


def test_weights_that_cannot_be_loaded_are_fatal_only_where_they_were_asked_for() -> None:
    def make(report: ProgressReport) -> Prompts:
        raise StartupError("no room", code="out_of_memory")

    prefill = Prefill(PrefillPlan(make))
    prefill.load(silent)
    assert prefill.stats()["by"] == "native"
    assert "no room" in str(prefill.stats()["reason"])
    with pytest.raises(StartupError, match="no room"):
        Prefill(PrefillPlan(make, asked=True)).load(silent)


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"key": 3}', '{"key": {"native": "x", "torch": 1}}', '{"key": {"native": -1, "torch": 1}}', "\x00\xff"],
)  # fmt: skip
def test_a_spoilt_record_is_an_empty_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prefill.json"
    path.write_bytes(text.encode("latin-1"))
    record = PrefillRecord(path, "key")
    assert record.read() is None
    record.write(Rates(1.0, 2.0))
    assert record.read() == Rates(1.0, 2.0)
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_cannot_be_written_costs_a_measurement(tmp_path: Path) -> None:
    record = PrefillRecord(tmp_path / "missing" / "prefill.json", "key")
    for _ in range(2):
        prefill, loads = trial(record, 0.5)
        assert (prefill.stats()["by"], loads) == ("torch", 1)


def test_the_record_stays_small(tmp_path: Path) -> None:
    path = tmp_path / "prefill.json"
    for number in range(70):
        PrefillRecord(path, f"key {number}").write(Rates(1.0, 2.0))
    entries = json.loads(path.read_text())
    assert len(entries) == 64
    assert list(entries)[-1] == "key 69"


def test_worth_is_a_fifth() -> None:
    assert worth(Rates(100.0, 120.0))
    assert not worth(Rates(100.0, 119.0))


@pytest.mark.torch
@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("arch", "quant"), [("llama", "Q4_1"), ("qwen2", "Q8_0"), ("qwen3", "Q5_1")])
def test_answers_to_prompts_by_torch_are_near_those_of_the_kernels(
    arch: str, quant: str, kv_dtype: str, tmp_path: Path
) -> None:
    """Two sequences over scattered blocks: their prompts in one step, then more of one beside an answer to the other."""
    from stretto.backends.torch.prompts import TorchPrompts

    path = tiny_gguf(tmp_path, arch=arch, quant=quant, tied=arch != "qwen3")
    source = open_model(path)
    plan = PrefillPlan(lambda report: TorchPrompts(source, 1, report), asked=True)
    both = NativeBackend(source, threads=1, kv_dtype=kv_dtype, prefill=plan)
    alone = native(path, kv_dtype=kv_dtype)
    assert both.load(silent).weight_bytes > alone.memory().weights_bytes
    first, second = [9, 2, 0, 11, 5, 7, 1], [3, 10, 4, 6]
    short = LEAST_ROWS + 3
    steps = [
        [chunk(TOKENS[:LONG], 0, first, 0), chunk(TOKENS[7 : 7 + short], 0, second, 1)],
        [chunk([5], short, second, 1), chunk(TOKENS[LONG : LONG + 9], LONG, first, 2)],
        [chunk([6, 8], short + 1, second, 2), chunk([4], LONG + 9, first, 1)],
    ]
    assert both.stats()["prefill"] != alone.stats().get("prefill")
    results = []
    for backend in (both, alone):
        backend.allocate(KVPlan(16, (12,)))
        results.append([backend.forward(step) for step in steps])
        backend.copy_blocks(0, [(9, 8)])
        assert backend.read_block(0, 8) == backend.read_block(0, 9)
    taken = both.stats()["prefill"]
    assert isinstance(taken, dict)
    assert taken["torch_tokens"] == LONG + short - 1
    for ours, theirs in zip(*results, strict=True):
        assert ours.shape == theirs.shape
        assert divergence(theirs, ours).mean() < 2e-4
        assert not np.array_equal(ours, theirs)  # it was computed otherwise
    silent_step = both.forward([chunk(TOKENS[:LONG], 0, first, 0)])
    assert silent_step.shape == (0, results[0][0].shape[1])
    with pytest.raises(BackendFailure, match="chunk 0 of the step"):
        both.forward([chunk([10**6] * LONG, 0, first, 0)])
    both.close()
    alone.close()
    source.close()
