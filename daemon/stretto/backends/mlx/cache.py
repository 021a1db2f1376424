"""The cache that mlx-lm's layers are given: theirs by its methods, ours by where it keeps what they store.

All keys stay at their full length, also those of layers that only look back a window: what such a layer gets back is cut to its
window, so that it computes what it would over a rotating cache, and can be continued from any position.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from stretto.backends.base import Int32Array
from stretto.backends.chunks import first_needed
from stretto.backends.mlx.plan import Pass
from stretto.backends.mlx.pool import GroupPool

Int64Array = npt.NDArray[np.int64]
Mask = mx.array | str | None
"""As mlx-lm has it: an array that is true where a query may look, ``causal``, or None for everything."""

ROUNDED_TOKENS = 32
"""Gathered contexts of several sequences are as long as a multiple of this, so that their memory can be used again."""


class GroupView:
    """One pass as one layer group sees it: what each row writes, what it reads, and how far it may look.

    Rows that are shorter than the pass end with padding: it is written to the spare slot, and looks where the row's last token
    does, so that nothing of it is undefined.
    """

    def __init__(self, pool: GroupPool, part: Pass, tables: Sequence[Int32Array]) -> None:
        """``tables``: the group's block table of each row's sequence."""
        self.pool = pool
        window = pool.geometry.window_tokens
        rows = part.rows
        self._starts = np.array([row.start for row in rows], dtype=np.int64)
        self._ends = np.array([row.end for row in rows], dtype=np.int64)
        self._first = np.array([first_needed(row.start, window) for row in rows], dtype=np.int64)
        self._length = part.length
        lengths = self._ends - self._first
        self._columns = int(lengths.max())
        if len(rows) > 1:
            self._columns = -(-self._columns // ROUNDED_TOKENS) * ROUNDED_TOKENS
        self._tables = [np.asarray(table, dtype=np.int64) for table in tables]
        self._written = self._slots_written()
        read = self._slots_read()
        self.run: tuple[int, int] | None = None
        """First slot and the one behind the last, where a single row reads consecutive ones."""
        if len(rows) == 1 and bool((np.diff(read[0]) == 1).all()):
            self.run = int(read[0, 0]), int(read[0, -1]) + 1
        self._read = read
        self._indexes: dict[tuple[str, int], mx.array] = {}
        self._masks: dict[tuple[int | None, bool], Mask] = {}
        self._offset: int | mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Positions before this pass: a number when all rows have the same, else int32 [rows]."""
        if self._offset is None:
            same = bool((self._starts == self._starts[0]).all())
            self._offset = int(self._starts[0]) if same else mx.array(self._starts.astype(np.int32))
        return self._offset

    def write_index(self, heads: int) -> mx.array:
        """Index of the slots that are written."""
        return self._index("write", heads, self._written)

    def read_index(self, heads: int) -> mx.array:
        """Index of the slots that are read."""
        return self._index("read", heads, self._read)

    def mask(self, window: int | None, *, as_array: bool) -> Mask:
        """Who may look where, over the slots that are read.

        Args:
            window: how far back, besides the group's own window.
            as_array: an array even where ``causal`` or None would say the same.
        """
        key = (window, as_array)
        if key not in self._masks:
            self._masks[key] = self._mask(window, as_array)
        return self._masks[key]

    def _mask(self, window: int | None, as_array: bool) -> Mask:
        own = self.pool.geometry.window_tokens
        reach = min((size for size in (window, own) if size is not None), default=None)
        single = len(self._starts) == 1
        if single and not as_array and (reach is None or self._columns <= reach):
            return None if self._length == 1 else "causal"
        queries = np.minimum(self._starts[:, None] + np.arange(self._length), self._ends[:, None] - 1)
        positions = self._first[:, None] + np.arange(self._columns)
        seen = positions[:, None, :] <= queries[:, :, None]
        if reach is not None:
            seen &= positions[:, None, :] > queries[:, :, None] - reach
        return mx.array(seen[0] if single else seen[:, None])

    def _index(self, what: str, heads: int, slots: Int64Array) -> mx.array:
        if (what, heads) not in self._indexes:
            self._indexes[what, heads] = self.pool.index(heads, slots)
        return self._indexes[what, heads]

    def _slots_written(self) -> Int64Array:
        """[rows, length]."""
        positions = self._starts[:, None] + np.arange(self._length)
        slots = self._slots(np.minimum(positions, self._ends[:, None] - 1))
        return np.where(positions < self._ends[:, None], slots, self.pool.spare_slot)

    def _slots_read(self) -> Int64Array:
        """[rows, columns]; padding repeats the row's last position, which is always there."""
        positions = self._first[:, None] + np.arange(self._columns)
        return self._slots(np.minimum(positions, self._ends[:, None] - 1))

    def _slots(self, positions: Int64Array) -> Int64Array:
        size = self.pool.block_tokens
        blocks = np.stack([table[row // size] for table, row in zip(self._tables, positions, strict=True)])
        return blocks * size + positions % size


class PagedCache:
    """One layer's cache. ``view`` is set before each pass."""

    def __init__(self, layer: int) -> None:
        """``layer``: its number within its layer group."""
        self._layer = layer
        self.view: GroupView | None = None

    @property
    def offset(self) -> int | mx.array:
        """Positions before this pass."""
        return self._seen().offset

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Mask:
        """The mask of a pass of ``N`` tokens; the names of the arguments are mlx-lm's."""
        return self._seen().mask(window_size, as_array=return_array)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store a pass's K and V, and give those that it may look at: each [rows, heads, positions, head size]."""
        view = self._seen()
        pool, heads = view.pool, (keys.shape[1], values.shape[1])
        pool.write(self._layer, keys, values, view.write_index(heads[0]), view.write_index(heads[1]))
        if view.run is not None:
            return pool.run(self._layer, *view.run)
        return pool.gather(self._layer, view.read_index(heads[0]), view.read_index(heads[1]))

    def _seen(self) -> GroupView:
        assert self.view is not None, "a cache is used outside of a pass"
        return self.view
