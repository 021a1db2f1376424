"""Whole models through the native backend and through torch in float32, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stretto.backends.base import Chunk, Float32Array, KVPlan
from stretto.backends.native import NativeBackend
from stretto.weights import open_model
from support.backend_driver import silent
from support.torch_runs import loaded


def native(path: Path, **options: Any) -> NativeBackend:
    """A loaded backend with one compute thread, unless told otherwise."""
    source = open_model(path)
    backend = NativeBackend(source, **{"threads": 1, **options})
    backend.load(silent)
    source.close()
    return backend


def chunk(tokens: Sequence[int], start: int, table: Sequence[int], logit_rows: int) -> Chunk:
    """A chunk from plain lists."""
    return Chunk(np.array(tokens, np.int32), start, (np.array(table, np.int32),), logit_rows)


def torch_logits(path: Path, tokens: Sequence[int]) -> Float32Array:
    """float32 [tokens, vocab] by the torch backend in float32."""
    backend = loaded(path, threads=1)
    blocks = -(-len(tokens) // 16)
    backend.allocate(KVPlan(16, (blocks,)))
    logits = backend.forward([chunk(tokens, 0, range(blocks), len(tokens))])
    backend.close()
    return logits


def divergence(reference: Float32Array, other: Float32Array) -> Float32Array:
    """Kullback-Leibler divergence of the next-token distributions, in nats, a position each."""

    def log_softmax(logits: Float32Array) -> np.ndarray[Any, np.dtype[np.float64]]:
        shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))

    p, q = log_softmax(reference), log_softmax(other)
    result: Float32Array = (np.exp(p) * (p - q)).sum(-1)
    return result
