"""Whether a model computes the same over our caches as over mlx-lm's own: asked once, at load, of models that no test covers.

The zoo has over a hundred models, and what each asks of a cache is written nowhere. A few tokens through both show it: in pieces over
scattered blocks, and beside a second sequence of another length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from stretto.backends.base import Chunk, Float32Array, Int32Array
from stretto.backends.mlx.layout import Layout
from stretto.backends.mlx.pool import GroupPool
from stretto.backends.mlx.steps import Steps
from stretto.backends.mlx.zoo import NotInZoo, own_caches

COVERED = frozenset(
    {
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "phi3",
        "deepseek_v3",
    }
)
"""Model types whose steps the project's tests compare with mlx-lm's own."""

TOLERANCE = 0.1
"""Largest distance of two rows of logits, as a part of their spread: far above rounding, far below another position or mask."""

_BLOCK_TOKENS = 4
_FIRST, _SECOND = 11, 6


def check_model(model: Any, layout: Layout) -> str:
    """Compare.

    Returns:
        Why sequences must be computed one by one; empty when they can share a pass.

    Raises:
        NotInZoo: not even a single sequence gives what it should.
    """
    first = _tokens(_FIRST, 0, layout.vocab_size)
    second = _tokens(_SECOND, 1, layout.vocab_size)
    wanted = [_own(model, tokens) for tokens in (first, second)]
    alone = Steps(model, layout, together=False)
    try:
        found = _paged(alone, layout, [first, second])
    except Exception as error:
        raise NotInZoo(
            f"its code fails over a cache of keys and values by position ({type(error).__name__}: {error})"
        ) from error
    far = max(_distance(one, other) for one, other in zip(found, wanted, strict=True))
    if not far <= TOLERANCE:
        raise NotInZoo(
            f"over blocks it computes something else than over mlx-lm's own cache (by {far:.2f} of the logits' spread)"
        )
    try:
        found = _paged(Steps(model, layout, together=True), layout, [first, second])
    except Exception as error:
        return f"mlx-lm's model takes one sequence a pass ({type(error).__name__})"
    far = max(_distance(one, other) for one, other in zip(found, wanted, strict=True))
    return "" if far <= TOLERANCE else "mlx-lm's model mixes up sequences of a pass"


def _tokens(count: int, seed: int, vocab_size: int) -> Int32Array:
    return np.random.default_rng(seed).integers(0, vocab_size, count, dtype=np.int32)


def _own(model: Any, tokens: Int32Array) -> Float32Array:
    """Logits after the tokens, over mlx-lm's own caches."""
    caches = own_caches(model)
    model(mx.array(tokens[None, :-1]), cache=caches)
    logits = model(mx.array(tokens[None, -1:]), cache=caches)[0, -1].astype(mx.float32)
    mx.eval(logits)
    return np.array(logits)


def _paged(steps: Steps, layout: Layout, sequences: Sequence[Int32Array]) -> list[Float32Array]:
    """Logits after each sequence, read in three pieces beside each other, over blocks in no order."""
    pools = [
        GroupPool(geometry, layers=layout.layers(number), block_tokens=_BLOCK_TOKENS, blocks=8)
        for number, geometry in enumerate(layout.groups)
    ]
    tables = [np.array(table, dtype=np.int32) for table in ([5, 2, 6], [7, 1])]
    cuts = [(0, 4), (4, 5), (5, None)]
    logits: Float32Array = np.zeros((0, 0), dtype=np.float32)
    for first, last in cuts:
        batch = []
        for tokens, table in zip(sequences, tables, strict=True):
            part = tokens[first:last]
            batch.append(Chunk(part, first, (table,) * len(pools), 0 if last else 1))
        logits = steps.run(batch, pools)
    return list(logits)


def _distance(one: Float32Array, other: Float32Array) -> float:
    spread = float(np.linalg.norm(other - other.mean()))
    return float(np.linalg.norm(one - other)) / spread if spread else float(np.abs(one - other).max() > 0)
