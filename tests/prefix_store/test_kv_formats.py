"""What was saved in one KV format is a miss in another, and comes back in its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto.backends.base import KVPlan, LayerGroup, ModelSpec
from stretto.backends.native import NativeBackend, native_support
from stretto.engine import EngineFacts, PrefixStore
from stretto.prefix_store import open_prefix_store, store_fingerprint
from stretto.weights import open_model
from support.engine_harness import Heard, Running
from support.shared_backends import CONFIG, asked
from support.weights_tiny import tiny_gguf

PROMPT = tuple((7 * i * i + 3 * i) % 300 + 3 for i in range(90))


def test_formats_of_equal_size_are_told_apart() -> None:
    spec = ModelSpec(
        "llama", 9, 99, (LayerGroup("full", 2, 2, 16, None, 144),), "int16", "cpu", kv_dtype="int8"
    )
    plan = KVPlan(16, (4,))
    found = {
        store_fingerprint("model", "native", replace(spec, kv_dtype=kv_dtype), plan)
        for kv_dtype in ("int8", "bfloat16", "float32", "")
    }
    assert len(found) == 4


def test_a_restart_restores_its_own_format_alone(tmp_path: Path) -> None:
    if not (support := native_support()).available:
        pytest.skip(support.reason)
    (tmp_path / "model").mkdir()
    source = open_model(tiny_gguf(tmp_path / "model", quant="Q8_0"))

    def opened(facts: EngineFacts) -> PrefixStore | None:
        fingerprint = store_fingerprint(source.fingerprint, "native", facts.spec, facts.kv)
        return open_prefix_store(tmp_path / "prefix", fingerprint, 1 << 24)

    def answer(kv_dtype: str) -> Heard:
        backend = NativeBackend(source, threads=1, kv_dtype=kv_dtype)
        with Running(backend, CONFIG, prefix_store=opened) as running:
            running.finish([heard := running.submit(asked("0", PROMPT, 12))])
        return heard

    first, other, again, back = (answer(kv_dtype) for kv_dtype in ("int8", "bfloat16", "int8", "bfloat16"))
    source.close()
    whole = (len(PROMPT) - 1) // CONFIG.block_tokens * CONFIG.block_tokens
    assert [heard.outcome.cached_tokens for heard in (first, other, again, back)] == [0, 0, whole, whole]
    assert (again.ids, back.ids) == (first.ids, other.ids)
