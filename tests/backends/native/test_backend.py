"""The native backend as the engine uses it, against the torch backend in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stretto.backends.base import Backend, BackendFailure, KVPlan
from stretto.backends.native import NativeBackend, native_support
from stretto.backends.native.library import Library
from stretto.errors import StartupError
from stretto.weights import open_model
from support.backend_driver import silent
from support.native_kernels import other_threads
from support.native_runs import chunk, divergence, native, torch_logits
from support.weights_tiny import TinyShape, tiny_gguf, tiny_hf

pytestmark = pytest.mark.torch

TOKENS = [(7 * i * i + 3 * i) % 300 + 3 for i in range(45)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf", quant="Q4_1")


@pytest.mark.parametrize("instruction_set", Library().kernels)
@pytest.mark.parametrize(
    ("arch", "quant"),
    [
        ("llama", "Q4_1"),
        ("llama", "Q4_0"),
        ("qwen2", "Q5_0"),
        ("qwen2", "Q8_0"),
        ("qwen3", "Q5_1"),
        ("llama", "F16"),
    ],
)
def test_logits_are_near_torch(arch: str, quant: str, instruction_set: str, tmp_path: Path) -> None:
    """Random weights have flat distributions: a wrong operation is far off, 8-bit activations are not."""
    path = tiny_gguf(tmp_path, arch=arch, quant=quant, tied=arch != "qwen3")
    backend = native(path, instruction_set=instruction_set, kv_dtype="float32")
    backend.allocate(KVPlan(16, (4,)))
    logits = backend.forward([chunk(TOKENS, 0, [2, 0, 3], len(TOKENS))])
    backend.close()
    reference = torch_logits(path, TOKENS)
    assert divergence(reference, logits).mean() < (1e-8 if quant == "F16" else 5e-4)
    spread = float(reference.std())
    assert np.abs(logits - reference).mean() < spread * (1e-5 if quant == "F16" else 0.03)


@pytest.mark.parametrize("instruction_set", Library().kernels)
@pytest.mark.parametrize("head_size", [16, 48, 64])
def test_eight_bits_of_keys_and_values_are_near_torch(
    head_size: int, instruction_set: str, tmp_path: Path
) -> None:
    path = tiny_gguf(tmp_path, arch="qwen3", quant="F16", shape=TinyShape(head_size=head_size))
    source = open_model(path)
    backend = NativeBackend(source, threads=1, instruction_set=instruction_set, kv_dtype="int8")
    spec = backend.load(silent)
    assert spec.kv_dtype == backend.stats()["kv_dtype"] == "int8"
    backend.allocate(KVPlan(16, (4,)))
    logits = backend.forward([chunk(TOKENS, 0, [2, 0, 3], len(TOKENS))])
    again = backend.forward([chunk(TOKENS[-1:], len(TOKENS) - 1, [2, 0, 3], 1)])
    np.testing.assert_array_equal(again, logits[-1:])
    assert backend.memory().kv_bytes == 4 * 16 * spec.kv_bytes_per_token
    backend.close()
    source.close()
    reference = torch_logits(path, TOKENS)
    assert divergence(reference, logits).mean() < 3e-4
    assert np.abs(logits - reference).mean() < float(reference.std()) * 0.03


@pytest.mark.parametrize("quant", ["Q4_K", "Q5_K", "Q6_K"])
def test_k_encodings_are_near_torch(quant: str, tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, quant=quant)
    backend = native(path)
    backend.allocate(KVPlan(16, (4,)))
    logits = backend.forward([chunk(TOKENS, 0, [2, 0, 3], len(TOKENS))])
    backend.close()
    assert divergence(torch_logits(path, TOKENS), logits).mean() < 5e-4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_weights_of_a_directory(dtype: str, tmp_path: Path) -> None:
    path = tiny_hf(tmp_path, family="qwen3", dtype=dtype, shape=TinyShape(head_size=32))
    backend = native(path, kv_dtype="float32", threads=2)
    backend.allocate(KVPlan(16, (4,)))
    logits = backend.forward([chunk(TOKENS, 0, [2, 0, 3], len(TOKENS))])
    backend.close()
    np.testing.assert_allclose(logits, torch_logits(path, TOKENS), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("threads", "kv_dtype"), [(1, "bfloat16"), (2, "bfloat16"), (5, "bfloat16"), (2, "int8")]
)
def test_a_ragged_step_equals_sequences_alone(tiny: Path, threads: int, kv_dtype: str) -> None:
    """Whatever runs beside a sequence, and however its prompt was cut, its logits are the same bits."""
    backend = native(tiny, threads=threads, kv_dtype=kv_dtype)
    assert isinstance(backend, Backend)
    backend.allocate(KVPlan(4, (60,)))
    table = [40, 3, 22, 9, 58, 1, 30, 11, 17, 5, 44, 2]
    whole = backend.forward([chunk(TOKENS, 0, table, len(TOKENS))])
    other = [50, 51, 52, 53, 54, 55, 56, 57, 0, 59, 4, 6]
    pieces = [backend.forward([chunk(TOKENS[:20], 0, other, 20)])]
    third = [10, 12, 13, 14]
    for at in range(20, 45):
        # A decode, a chunk of another prompt whose logits nobody wants, and a new prompt with its last logits.
        batch = [
            chunk(TOKENS[at : at + 1], at, other, 1),
            chunk(TOKENS[:7], 0, [20, 21], 0),
            chunk(TOKENS[:13], 0, third, 2),
        ]
        logits = backend.forward(batch)
        assert logits.shape == (3, whole.shape[1])
        np.testing.assert_array_equal(logits[1:], whole[11:13])
        pieces.append(logits[:1])
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert backend.forward([chunk(TOKENS[:5], 0, [33, 34], 0)]).shape == (0, whole.shape[1])
    backend.close()


def test_long_attention_is_split_and_stays_the_same(tmp_path: Path) -> None:
    """With several workers one row's attention is cut into parts; with one it is not."""
    path = tiny_gguf(tmp_path, quant="Q8_0", shape=TinyShape(context=2048))
    tokens = [(31 * i) % 300 + 3 for i in range(900)]
    results = []
    for threads in (1, 3):
        backend = native(path, threads=threads, kv_dtype="float32")
        backend.allocate(KVPlan(16, (64,)))
        table = np.random.default_rng(0).permutation(64)
        backend.forward([chunk(tokens, 0, table.tolist(), 0)])
        results.append(backend.forward([chunk([5], 900, table.tolist(), 1)]))
        backend.close()
    np.testing.assert_allclose(results[0], results[1], rtol=1e-3, atol=1e-3)


def test_blocks_copy_and_come_back(tiny: Path) -> None:
    backend = native(tiny)
    backend.allocate(KVPlan(16, (6,)))
    expected = backend.forward([chunk(TOKENS, 0, [0, 1, 2], 1)])
    backend.copy_blocks(0, [(0, 5), (1, 3)])
    kept = backend.read_block(0, 2)
    backend.write_block(0, 4, kept)
    assert backend.read_block(0, 4) == kept
    np.testing.assert_array_equal(backend.forward([chunk(TOKENS[-1:], 44, [5, 3, 4], 1)]), expected)
    with pytest.raises(BackendFailure, match=f"a block has {len(kept)} bytes, 3 were given"):
        backend.write_block(0, 4, b"abc")
    with pytest.raises(BackendFailure, match="block 6 is not in 0 to 5"):
        backend.read_block(0, 6)
    with pytest.raises(BackendFailure, match="layer group 1 does not exist"):
        backend.copy_blocks(1, [(0, 1)])
    backend.close()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (chunk([3, 100_000], 0, [0], 1), "chunk 1 of the step: token id 100000"),
        (chunk([3, -1], 0, [0], 1), "chunk 1 of the step: token id -1"),
        (chunk([3], 16, [0, 6], 1), "chunk 1 of the step: block 6 is not in 0 to 5"),
        (chunk([3], 16, [0, -2], 1), "chunk 1 of the step: block -2"),
        (chunk([3], 16, [0], 1), "chunk 1 of the step: its positions"),
        (chunk([3], -1, [0], 1), "chunk 1 of the step: its positions"),
        (chunk([3], 0, [0], 2), "chunk 1 of the step: its positions"),
        (chunk([], 0, [0], 0), "chunk 1 of the step: its positions"),
        (chunk([3], 256, [0] * 20, 1), "chunk 1 of the step: its positions"),
    ],
)
def test_what_would_index_outside_is_refused(tiny: Path, bad: object, message: str) -> None:
    backend = native(tiny)
    backend.allocate(KVPlan(16, (6,)))
    good = chunk(TOKENS[:3], 0, [1], 1)
    expected = backend.forward([good])
    with pytest.raises(BackendFailure, match=message):
        backend.forward([good, bad])  # type: ignore[list-item]
    np.testing.assert_array_equal(backend.forward([good]), expected)
    backend.close()


def test_life_and_death(tiny: Path) -> None:
    source = open_model(tiny)
    backend = NativeBackend(source, threads=3)
    before = other_threads()
    assert backend.stats() == {"loaded": False}
    with pytest.raises(BackendFailure, match="not loaded"):
        backend.forward([])
    spec = backend.load(silent)
    assert other_threads() == before + 2
    with pytest.raises(BackendFailure, match="no KV memory"):
        backend.forward([chunk([3], 0, [0], 1)])
    backend.allocate(KVPlan(16, (6,)))
    report = backend.memory()
    assert report.kv_bytes == 6 * 16 * spec.kv_bytes_per_token
    assert report.weights_bytes == spec.weight_bytes > 0
    stats = backend.stats()
    assert stats["instruction_set"] == Library().kernels[0]
    assert stats["threads"] == 3
    backend.load(silent)
    backend.close()
    backend.close()
    assert other_threads() == before
    source.close()


def test_a_load_that_is_stopped_leaves_nothing(tiny: Path) -> None:
    source = open_model(tiny)
    backend = NativeBackend(source, threads=2)
    before = other_threads()

    def stop(phase: str, fraction: float) -> None:
        if fraction > 0.3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        backend.load(stop)
    assert other_threads() == before
    assert backend.stats() == {"loaded": False}
    source.close()


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path, quant="Q8_0")
    source = open_model(path)
    raw = source.raw("model.layers.1.mlp.up_proj.weight")
    found = path.read_bytes().index(raw.data[5].tobytes())
    source.close()
    content = bytearray(path.read_bytes())
    content[found : found + 2] = b"\x00\x7c"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=r"model\.layers\.1\.mlp\.up_proj\.weight has scales"):
        native(path)


def test_why_not(tiny: Path, tmp_path: Path) -> None:
    assert native_support().available
    assert not native_support(instruction_set="mmx").available
    assert "no mmx kernels" in native_support(instruction_set="mmx").reason
    odd = tiny_hf(tmp_path, family="qwen3", shape=TinyShape(head_size=8))
    source = open_model(odd)
    assert native_support(source).reason == "the model's head size is 8, not a multiple of 16"
    with pytest.raises(StartupError, match="head size is 8"):
        NativeBackend(source).load(silent)
    source.close()
    with pytest.raises(OSError, match="other sources"):
        Library(Path("/lib/x86_64-linux-gnu/libm.so.6"))
    with pytest.raises(ValueError, match="threads is 0"):
        NativeBackend(open_model(tiny), threads=0)
    with pytest.raises(ValueError, match="kv_dtype is 'int4'; it is auto, float32, bfloat16, int8"):
        NativeBackend(open_model(tiny), kv_dtype="int4")
