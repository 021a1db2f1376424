"""The layout of a step, and the refusal of every index that is out of its table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.base import BackendFailure, Chunk, Int32Array
from stretto.backends.chunks import StepLimits
from stretto.backends.torch.plan import StepPlan, plan_step


def ids(*values: int) -> Int32Array:
    return np.array(values, dtype=np.int32)


def plan(*batch: Chunk) -> StepPlan:
    return plan_step(batch, StepLimits(4, (32,), (None,), 100, 64))


PREFILL = Chunk(ids(7, 8, 9), 3, (ids(5, 6),), 2)
DECODE = Chunk(ids(42), 6, (ids(9, 2),), 1)


def test_single_tokens_come_first_and_logit_rows_keep_the_callers_order() -> None:
    made = plan(PREFILL, DECODE)
    assert made.token_ids.tolist() == [42, 7, 8, 9]
    assert made.positions.tolist() == [6, 3, 4, 5]
    assert made.groups[0].slots.tolist() == [2 * 4 + 2, 5 * 4 + 3, 6 * 4, 6 * 4 + 1]
    assert made.logit_rows.tolist() == [2, 3, 0]
    assert made.groups[0].decodes == 1
    decode, prefill = made.groups[0].spans
    assert (decode.row, decode.rows, decode.context_tokens, decode.start) == (0, 1, 7, 6)
    assert (prefill.row, prefill.rows, prefill.context_tokens, prefill.start) == (1, 3, 6, 3)


def test_a_run_of_blocks_is_seen_and_a_scattered_table_too() -> None:
    scattered, run = plan(PREFILL, DECODE).groups[0].spans
    assert scattered.run_start is None
    assert scattered.blocks.tolist() == [9, 2]
    assert run.run_start == 20
    # Only the blocks in use count: what follows them in the table may lie anywhere.
    assert plan(replace(PREFILL, block_tables=(ids(5, 6, 0, 31),))).groups[0].spans[0].run_start == 20
    assert plan(replace(PREFILL, block_tables=(ids(6, 5),))).groups[0].spans[0].run_start is None


def test_consecutive_slots_are_one_run() -> None:
    assert plan(PREFILL).groups[0].slot_run == 23
    assert plan(PREFILL, DECODE).groups[0].slot_run is None
    assert plan(DECODE).groups[0].slot_run == 10


@pytest.mark.parametrize(
    ("chunk", "text"),
    [
        (replace(PREFILL, token_ids=ids()), "token_ids is empty"),
        (replace(PREFILL, logit_rows=4), "logit_rows is 4, with 3 tokens"),
        (replace(PREFILL, logit_rows=-1), "logit_rows is -1"),
        (replace(PREFILL, start=-1), "positions -1 to 1"),
        (replace(PREFILL, start=62), "positions 62 to 64 are not within the context of 64"),
        (replace(PREFILL, block_tables=()), "0 block tables"),
        (replace(PREFILL, token_ids=ids(1, 100, 2)), "token id 100 is not in 0 to 99"),
        (replace(PREFILL, token_ids=ids(1, -5, 2)), "token id -5"),
        (replace(PREFILL, block_tables=(ids(5),)), "holds 1 blocks of 4 tokens, 6 positions need more"),
        (replace(PREFILL, block_tables=(ids(5, 32),)), "block 32 is not in 0 to 31"),
        (replace(PREFILL, block_tables=(ids(-1, 3),)), "block -1"),
    ],
)
def test_bad_chunks_are_refused_by_number(chunk: Chunk, text: str) -> None:
    with pytest.raises(BackendFailure, match=f"chunk 1 of the step: .*{text}"):
        plan(DECODE, chunk)


def test_an_empty_step_is_refused() -> None:
    with pytest.raises(BackendFailure, match="empty"):
        plan()
