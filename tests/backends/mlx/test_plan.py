"""How steps are cut into passes: nothing is lost, nothing runs ahead, and padding is bounded."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stretto.backends.base import Chunk
from stretto.backends.mlx.plan import SLACK_TOKENS, Pass, Row, plan_passes

TABLE = (np.zeros(1, dtype=np.int32),)


def chunk(tokens: int, start: int, logit_rows: int) -> Chunk:
    return Chunk(np.zeros(tokens, dtype=np.int32), start, TABLE, logit_rows)


chunks = st.lists(
    st.tuples(st.integers(1, 600), st.integers(0, 30_000), st.integers(0, 3)).map(
        lambda of: chunk(of[0], of[1], min(of[0], of[2]))
    ),
    min_size=1,
    max_size=12,
)


@given(chunks, st.booleans())
def test_each_token_is_computed_once_in_order_and_its_logits_where_they_are_wanted(
    batch: list[Chunk], together: bool
) -> None:
    passes = plan_passes(batch, together=together)
    reached = [0] * len(batch)
    told = [0] * len(batch)
    for part in passes:
        assert len({row.chunk for row in part.rows}) == len(part.rows)
        for row in part.rows:
            assert row.first == reached[row.chunk]
            assert row.start == batch[row.chunk].start + row.first
            reached[row.chunk] += row.tokens
            told[row.chunk] += row.tokens * part.logits
        if part.logits:
            assert {row.tokens for row in part.rows} == {part.length}
        if not together:
            assert len(part.rows) == 1
    assert reached == [len(one.token_ids) for one in batch]
    assert told == [one.logit_rows for one in batch]


@given(chunks)
def test_padding_is_bounded(batch: list[Chunk]) -> None:
    for part in plan_passes(batch, together=True):
        ends = [row.end for row in part.rows]
        assert len(ends) * max(ends) <= 2 * sum(ends) + SLACK_TOKENS
        assert all(row.tokens * 4 >= part.length * 3 for row in part.rows)


def test_a_prompt_beside_answers() -> None:
    batch = [chunk(1, 10, 1), chunk(7, 0, 1), chunk(1, 30, 1), chunk(5, 4, 0)]
    assert plan_passes(batch, together=True) == [
        Pass((Row(1, 0, 6, 0), Row(3, 0, 5, 4)), False),
        Pass((Row(2, 0, 1, 30), Row(0, 0, 1, 10), Row(1, 6, 1, 6)), True),
    ]


def test_a_long_context_does_not_stretch_short_ones() -> None:
    batch = [chunk(1, start, 1) for start in (29_999, 199, 199, 199)]
    rows = [[row.chunk for row in part.rows] for part in plan_passes(batch, together=True)]
    assert rows == [[0, 1], [2, 3]]
