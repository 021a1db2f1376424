"""The block allocator: no block is handed out twice, none is lost, runs are preferred."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.engine.blocks import BlockPool, OutOfBlocks


@given(
    st.lists(st.tuples(st.sampled_from(["allocate", "share", "release"]), st.integers(0, 12)), max_size=60)
)
@settings(max_examples=60, deadline=None)
def test_counts_agree_with_a_plain_model(operations: list[tuple[str, int]]) -> None:
    pool = BlockPool(32)
    held: list[list[int]] = []
    for operation, number in operations:
        if operation == "allocate":
            if number > pool.free:
                with pytest.raises(
                    OutOfBlocks, match=f"{number} blocks are wanted, {pool.free} of 32 are free"
                ):
                    pool.allocate(number)
            else:
                taken = pool.allocate(number).tolist()
                assert len(set(taken)) == number
                assert not set(taken) & {block for blocks in held for block in blocks}
                held.append(taken)
        elif held:
            index = number % len(held)
            if operation == "share":
                pool.share(held[index])
                held.append(held[index])
            else:
                pool.release(held.pop(index))
        counts = Counter(block for blocks in held for block in blocks)
        assert pool.used == len(counts)
        assert pool.free + pool.used == pool.blocks
        assert [pool.holders(block) for block in range(32)] == [counts[block] for block in range(32)]
    for blocks in held:
        pool.release(blocks)
    assert pool.used == 0


def test_takes_the_smallest_run_that_is_long_enough() -> None:
    pool = BlockPool(20)
    pool.allocate(20)
    pool.release(range(3))
    pool.release(range(5, 9))
    pool.release(range(12, 20))
    assert pool.allocate(4).tolist() == [5, 6, 7, 8]
    assert pool.allocate(4).tolist() == [12, 13, 14, 15]
    assert pool.allocate(3).tolist() == [0, 1, 2]


def test_takes_the_largest_runs_when_none_is_long_enough() -> None:
    pool = BlockPool(20)
    pool.allocate(20)
    pool.release([0])
    pool.release(range(4, 8))
    pool.release(range(10, 15))
    assert pool.allocate(8).tolist() == [4, 5, 6, 7, 10, 11, 12, 13]
    assert pool.allocate(2).tolist() == [0, 14]
    assert pool.free == 0


def test_nothing_is_a_fine_amount() -> None:
    pool = BlockPool(0)
    assert pool.allocate(0).dtype == np.int32
    pool.release([])


@pytest.mark.parametrize("wrong", [[0], [1, 1, 1], [4], [-1], [1, 0]])
def test_wrong_releases_change_nothing(wrong: list[int]) -> None:
    pool = BlockPool(4)
    pool.allocate(3)
    pool.share([1])
    pool.release([0])
    with pytest.raises(ValueError, match=r"block"):
        pool.release(wrong)
    assert [pool.holders(block) for block in range(4)] == [0, 2, 1, 0]
    assert pool.free == 2


def test_a_free_block_cannot_be_shared() -> None:
    pool = BlockPool(4)
    taken = pool.allocate(1)
    with pytest.raises(ValueError, match="nobody holds"):
        pool.share([int(taken[0]), 3])
    assert pool.holders(int(taken[0])) == 1


def test_blocks_right_behind_are_taken_if_they_are_free() -> None:
    pool = BlockPool(20)
    first = pool.allocate(4)
    assert pool.allocate(3, behind=int(first[-1])).tolist() == [4, 5, 6]
    assert pool.allocate(3, behind=3).tolist() == [7, 8, 9]  # taken: anywhere
    assert pool.allocate(2, behind=18).tolist() == [10, 11]  # beyond the end: anywhere
    assert pool.allocate(2, behind=17).tolist() == [18, 19]


def test_room_is_left_around_what_may_grow() -> None:
    pool = BlockPool(64)
    taken = [int(pool.allocate(4, room=8)[0]) for _ in range(7)]
    assert taken == [0, 12, 24, 36, 48, 58, 8]
    assert pool.allocate(6, room=8).tolist() == list(
        range(52, 58)
    )  # nothing is roomy: the smallest that fits
    pool = BlockPool(3)
    assert pool.allocate(3, room=8).tolist() == [0, 1, 2]


def test_free_blocks_behind_one_are_counted() -> None:
    pool = BlockPool(10)
    pool.allocate(10)
    pool.release([3, 4, 6, 8, 9])
    assert [pool.free_behind(block, 3) for block in (2, 3, 5, 6, 7, 8, 9)] == [2, 1, 1, 0, 2, 1, 0]
    assert pool.free_behind(2, 1) == 1
