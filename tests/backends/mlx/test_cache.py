"""What layers see of our caches: offsets, masks and positions, against a plain description of them."""

from __future__ import annotations

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from stretto.backends.base import BackendFailure  # noqa: E402
from stretto.backends.mlx.cache import ROUNDED_TOKENS, GroupView, PagedCache  # noqa: E402
from stretto.backends.mlx.plan import Pass, Row  # noqa: E402
from stretto.backends.mlx.pool import Geometry, GroupPool  # noqa: E402

pytestmark = pytest.mark.mlx

SIZE, BLOCKS = 4, 16
RUN = np.arange(BLOCKS, dtype=np.int32)
SCATTERED = np.array([9, 2, 14, 5, 0, 7, 11, 3], dtype=np.int32)
OTHER = np.array([1, 4, 6, 8, 10, 12, 13, 15], dtype=np.int32)


def pool(window: int | None = None) -> GroupPool:
    made = GroupPool(Geometry(window, 2, 3, 1, 5, mx.float32), layers=1, block_tokens=SIZE, blocks=BLOCKS)
    mx.eval(*made.arrays())
    return made


def row(tokens: int, start: int, chunk: int = 0) -> Row:
    return Row(chunk, 0, tokens, start)


def kv(tokens: int, start: int, sequence: int, length: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """K and V of one row, [1, heads, length, size], that tell their sequence, position and head; padding is NaN."""
    width = length or tokens
    keys, values = np.full((1, 2, width, 3), np.nan), np.full((1, 1, width, 5), np.nan)
    for at in range(tokens):
        for head in range(2):
            keys[0, head, at] = sequence * 1000 + (start + at) + head / 2
        values[0, 0, at] = -(sequence * 1000 + start + at)
    return keys.astype(np.float32), values.astype(np.float32)


def store(made: GroupPool, table: np.ndarray, tokens: int, sequence: int) -> None:
    """Positions 0 to ``tokens - 1``, as an earlier pass left them."""
    cache = PagedCache(0)
    cache.view = GroupView(made, Pass((row(tokens, 0),), False), [table])
    keys, values = kv(tokens, 0, sequence)
    mx.eval(*cache.update_and_fetch(mx.array(keys), mx.array(values)), *made.arrays())


def visible(mask: object, row_number: int, query: int, columns: int) -> list[int]:
    """Columns that a query of a row may see, whatever form the mask has."""
    if mask is None:
        return list(range(columns))
    if isinstance(mask, str):
        raise AssertionError("causal is checked by itself")
    seen = np.array(mask)
    line = seen[query] if seen.ndim == 2 else seen[row_number, 0, query]
    return np.flatnonzero(line).tolist()


@pytest.mark.parametrize("window", [None, 3, 6])
@pytest.mark.parametrize("lengths", [(1, 1, 1), (5, 4, 4), (3, 3, 3)])
def test_each_query_of_a_ragged_pass_sees_its_own_past_and_no_more(
    window: int | None, lengths: tuple[int, ...]
) -> None:
    made = pool(window)
    starts, tables = (13, 0, 6), (SCATTERED, OTHER[:4], OTHER[4:8])
    for sequence, (start, table) in enumerate(zip(starts, tables, strict=True)):
        if start:
            store(made, table, start, sequence)
    rows = tuple(row(count, start, n) for n, (count, start) in enumerate(zip(lengths, starts, strict=True)))
    part = Pass(rows, False)
    cache = PagedCache(0)
    cache.view = GroupView(made, part, list(tables))
    assert np.array(cache.offset).tolist() == list(starts)
    parts = [kv(one.tokens, one.start, n, part.length) for n, one in enumerate(rows)]
    keys = mx.array(np.concatenate([np.nan_to_num(k, nan=7e6) for k, _ in parts]))
    values = mx.array(np.concatenate([np.nan_to_num(v, nan=7e6) for _, v in parts]))
    mask = cache.make_mask(part.length, return_array=False, window_size=None)
    got_keys, got_values = (np.array(one) for one in cache.update_and_fetch(keys, values))
    assert got_keys.shape[:2] == (3, 2)
    for sequence, one in enumerate(rows):
        for query in range(one.tokens):
            position = one.start + query
            least = 0 if window is None else max(0, position - window + 1)
            columns = visible(mask, sequence, query, got_keys.shape[2])
            wanted = [sequence * 1000 + at for at in range(least, position + 1)]
            assert got_keys[sequence, 0, columns, 0].tolist() == wanted
            assert got_keys[sequence, 1, columns, 2].tolist() == [at + 0.5 for at in wanted]
            assert got_values[sequence, 0, columns, 4].tolist() == [-at for at in wanted]
        for query in range(one.tokens, part.length):
            assert visible(mask, sequence, query, got_keys.shape[2])
    # What padding wrote is nowhere that anybody reads.
    everything = np.array(made.run(0, 0, made.spare_slot)[0])
    assert not (everything == 7e6).any()


@pytest.mark.parametrize(("table", "run"), [(RUN, True), (SCATTERED, False)])
def test_a_single_sequence_reads_a_view_where_it_can(table: np.ndarray, run: bool) -> None:
    made = pool()
    store(made, table, 9, 0)
    view = GroupView(made, Pass((row(1, 9),), True), [table])
    assert (view.run == (0, 10)) is run
    cache = PagedCache(0)
    cache.view = view
    assert cache.offset == 9
    assert cache.make_mask(1) is None
    keys, _ = cache.update_and_fetch(*(mx.array(one) for one in kv(1, 9, 0)))
    assert np.array(keys)[0, 0, :, 0].tolist() == list(range(10))


def test_the_masks_of_a_single_sequence_have_the_forms_that_mlx_lm_knows() -> None:
    full = PagedCache(0)
    full.view = GroupView(pool(), Pass((row(4, 5),), False), [RUN])
    assert full.make_mask(4) == "causal"
    everything = np.array(full.make_mask(4, return_array=True))
    assert everything.tolist() == [[at <= 5 + query for at in range(9)] for query in range(4)]
    narrow = np.array(full.make_mask(4, window_size=2))
    assert narrow.tolist() == [[3 + query < at <= 5 + query for at in range(9)] for query in range(4)]
    sliding = PagedCache(0)
    sliding.view = GroupView(pool(6), Pass((row(4, 10),), False), [RUN])
    # Of the past, only what the first of its tokens still sees is fetched: positions 5 to 13.
    assert np.array(sliding.make_mask(4)).tolist() == [
        [query < at + 1 <= 6 + query for at in range(9)] for query in range(4)
    ]
    short = PagedCache(0)
    short.view = GroupView(pool(6), Pass((row(4, 2),), False), [RUN])
    assert short.make_mask(4) == "causal"
    one = PagedCache(0)
    one.view = GroupView(pool(6), Pass((row(1, 20),), True), [RUN])
    assert one.make_mask(1) is None


def test_equal_offsets_are_one_number() -> None:
    view = GroupView(pool(), Pass((row(1, 5), row(1, 5, 1)), True), [RUN[:2], RUN[2:4]])
    assert view.offset == 5


def test_contexts_of_several_are_as_long_as_a_multiple() -> None:
    for starts in ((3, 40), (31, 2)):
        view = GroupView(pool(), Pass(tuple(row(1, s, n) for n, s in enumerate(starts)), True), [RUN, RUN])
        assert view.read_index(2).shape[2] % ROUNDED_TOKENS == 0


def test_a_pool_that_mlx_cannot_index_is_refused() -> None:
    with pytest.raises(BackendFailure, match="more than MLX can index"):
        GroupPool(Geometry(None, 8, 1, 8, 1, mx.float16), layers=1, block_tokens=16, blocks=1 << 25)
