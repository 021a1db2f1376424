"""Steps over a ragged batch: one pass after the other, and the logits in the order in which they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from stretto.backends.base import Chunk, Float32Array
from stretto.backends.mlx.cache import GroupView
from stretto.backends.mlx.layout import Layout
from stretto.backends.mlx.plan import Pass, plan_passes
from stretto.backends.mlx.pool import GroupPool


class Steps:
    """A model that computes over pools of ours. ``together``: several sequences in one pass."""

    def __init__(self, model: Any, layout: Layout, *, together: bool) -> None:
        self._model = model
        self._layout = layout
        self._caches = layout.make_caches()
        self.together = together
        self.passes = 0
        self.padded_tokens = 0
        """Tokens that were computed for nothing, beside shorter rows."""

    def run(self, batch: Sequence[Chunk], pools: Sequence[GroupPool]) -> Float32Array:
        """See Backend.forward; the chunks are checked already."""
        first_rows = np.concatenate(([0], np.cumsum([chunk.logit_rows for chunk in batch])))
        logits: Float32Array = np.empty((int(first_rows[-1]), self._layout.vocab_size), dtype=np.float32)
        for part in plan_passes(batch, together=self.together):
            found = self._pass(batch, part, pools)
            if found is not None:
                for row, values in zip(part.rows, found, strict=True):
                    start = int(first_rows[row.chunk])
                    logits[start : start + row.tokens] = values
        return logits

    def _pass(self, batch: Sequence[Chunk], part: Pass, pools: Sequence[GroupPool]) -> Float32Array | None:
        """float32 [rows, tokens, vocab], if the pass gives any."""
        tokens = np.zeros((len(part.rows), part.length), dtype=np.int32)
        for number, row in enumerate(part.rows):
            tokens[number, : row.tokens] = batch[row.chunk].token_ids[row.first : row.first + row.tokens]
        for group, pool in enumerate(pools):
            view = GroupView(pool, part, [batch[row.chunk].block_tables[group] for row in part.rows])
            for cache in self._caches.by_group[group]:
                cache.view = view
        found: Float32Array | None = None
        try:
            out = self._model(mx.array(tokens), cache=list(self._caches.for_model))
            stored = [array for pool in pools for array in pool.arrays()]
            if part.logits:
                out = out.astype(mx.float32)
                mx.eval(out, *stored)
                found = np.array(out)
            else:
                # Of what nobody asks for nothing is computed: the last layer's attention and the logits.
                mx.eval(*stored)
        finally:
            for caches in self._caches.by_group.values():
                for cache in caches:
                    cache.view = None
        self.passes += 1
        self.padded_tokens += tokens.size - sum(row.tokens for row in part.rows)
        return found
