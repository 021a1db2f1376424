"""What ``stretto.needs`` forecasts, against the backends that load the same models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stretto import needs
from stretto.backends.base import Backend, BackendInfo, LayerGroup, MemoryReport, ModelSpec
from stretto.backends.host import Memory
from stretto.chosen import open_source
from stretto.chosen_prefill import prompt_bytes
from stretto.engine import EngineConfig, plan_kv
from stretto.settings import Settings
from stretto.weights import ModelFiles, ModelSource
from support.backend_driver import silent
from support.weights_tiny import TinyShape, tiny_gguf

THERE = BackendInfo("torch", True, "PyTorch", ("cpu",))
ABSENT = BackendInfo("torch", False, "PyTorch is not installed")


def spec_of(backend: Backend) -> ModelSpec:
    spec = backend.load(silent)
    backend.close()
    return spec


def check(found: needs.ModelNeeds | None, spec: ModelSpec) -> None:
    assert found is not None
    assert found.kv_bytes_per_token == spec.kv_bytes_per_token
    assert found.model_context_tokens == spec.context_tokens
    assert found.dtype == spec.dtype
    assert found.kv_dtype == (spec.kv_dtype or spec.dtype)
    assert found.device == spec.device
    # Beside the matrices a backend may keep a little of its own.
    assert spec.weight_bytes * 0.9 <= found.weights_bytes <= spec.weight_bytes * 1.1
    assert found.largest_context_tokens == spec.context_tokens
    assert found.fault == ""


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    opened = open_source(Settings(), tiny_gguf(tmp_path, quant="Q4_0", shape=TinyShape(hidden=128, ffn=256)))
    assert isinstance(opened, ModelSource)
    return opened


def test_the_native_kernels_stand_in(source: ModelSource) -> None:
    from stretto.backends.native import NativeBackend, native_support

    if not (support := native_support(source)).available:
        pytest.skip(support.reason)
    found = needs.model_needs(Settings(), source, ABSENT)
    assert found is not None
    assert (found.backend, found.backend_reason) == (
        "native",
        "its weights are quantised, and no GPU is to compute them",
    )
    check(found, spec_of(NativeBackend(source)))
    for kv_dtype in ("float32", "int8"):
        other = needs.model_needs(Settings(kv_dtype=kv_dtype), source, ABSENT)
        check(other, spec_of(NativeBackend(source, kv_dtype=kv_dtype)))
    assert needs.packed_bytes(source) == found.weights_bytes
    with_pytorch = needs.model_needs(Settings(prefill="torch"), source, ABSENT)
    assert with_pytorch is not None
    assert with_pytorch.weights_bytes == found.weights_bytes + prompt_bytes(source)
    assert needs.model_needs(Settings(backend="torch"), source, ABSENT) is None
    asked = needs.model_needs(Settings(backend="native"), source, THERE)
    assert asked is not None
    assert (asked.backend, asked.backend_reason) == ("native", "it was asked for")


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_torch(source: ModelSource, dtype: str) -> None:
    from stretto.backends.torch import TorchBackend

    found = needs.model_needs(Settings(dtype=dtype, backend="torch"), source, THERE)
    assert found is not None
    assert (found.backend, found.backend_reason) == ("torch", "it was asked for")
    assert found.dtype_reason
    check(found, spec_of(TorchBackend(source, device="cpu", dtype=dtype)))
    unasked = needs.model_needs(Settings(dtype="bfloat16"), source, THERE)
    assert unasked is not None
    assert (unasked.backend, unasked.dtype) == ("torch", "bfloat16")
    parts = needs.model_needs(Settings(backend="torch", offload="cpu", gpu_layers=1), source, THERE)
    assert parts is not None
    assert (parts.largest_context_tokens, parts.fault) == (None, "")


@pytest.mark.torch
def test_the_backend_is_the_one_that_serves(source: ModelSource) -> None:
    from stretto.chosen import choose_model

    for settings in (
        Settings(),
        Settings(backend="torch"),
        Settings(dtype="float32"),
        Settings(backend="native"),
    ):
        chosen = choose_model(replace(settings, model=str(source.path)))
        chosen.close()
        found = needs.model_needs(settings, source, THERE)
        assert found is not None
        assert found.backend == chosen.backend_name


@pytest.mark.mlx
@pytest.mark.parametrize(("family", "bits"), [("gemma3_text", 4), ("llama", None)])
def test_mlx(tmp_path: Path, family: str, bits: int | None) -> None:
    pytest.importorskip("mlx.core", reason="MLX is not installed")
    from stretto.backends.mlx import MLXBackend
    from stretto.weights import Checkpoint
    from support.mlx_models import tiny_mlx

    settings = Settings(backend="mlx", device="cpu")
    opened: ModelFiles = open_source(settings, tiny_mlx(tmp_path / "model", family, bits=bits))
    assert isinstance(opened, Checkpoint)
    found = needs.model_needs(settings, opened, ABSENT)
    assert found is not None
    assert (found.backend, found.backend_reason) == ("mlx", "it was asked for")
    check(found, spec_of(MLXBackend(opened, device="cpu")))


def forecast(
    monkeypatch: pytest.MonkeyPatch, source: ModelSource, free: int, settings: Settings
) -> needs.ModelNeeds:
    monkeypatch.setattr(needs, "host_memory", lambda: Memory(free, 1 << 40))
    found = needs.model_needs(replace(settings, backend="native"), source, ABSENT)
    assert found is not None
    return found


def test_what_fits(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    from stretto.backends.native import native_support

    if not (support := native_support(source)).available:
        pytest.skip(support.reason)
    plenty = forecast(monkeypatch, source, 1 << 30, Settings())
    kv, weights = plenty.kv_bytes_per_token, plenty.weights_bytes
    assert kv is not None
    # The engine's own plan is the measure.
    left = 200 * kv
    spec = replace(_spec(), layer_groups=(replace(_spec().layer_groups[0], kv_bytes_per_token=kv),))
    facts = plan_kv(spec, _report(left), EngineConfig(max_context_tokens=100))
    tight = forecast(monkeypatch, source, weights + left, Settings(max_context=100))
    assert (
        (tight.largest_context_tokens, tight.kv_bytes)
        == (facts.max_context_tokens, facts.kv_bytes)
        == (100, 112 * kv)
    )
    none = forecast(monkeypatch, source, weights - 1, Settings())
    assert none.fault == "the weights alone do not fit into the memory that is free"
    assert (none.largest_context_tokens, none.kv_bytes) == (None, None)
    short = forecast(monkeypatch, source, weights + 20 * kv, Settings(max_context=100))
    assert short.fault.startswith("A context of 100 tokens needs")
    greedy = forecast(monkeypatch, source, weights + 20 * kv, Settings(kv_cache_gb=1.0))
    assert "was asked for, and" in greedy.fault


def _spec() -> ModelSpec:
    return ModelSpec("x", 0, 256, (LayerGroup("all", 1, 1, 1, None, 1),), "int8", "cpu")


def _report(free: int) -> MemoryReport:
    return MemoryReport(0, 0, free, 1 << 40)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "max_position_embeddings": 99}, (512, 99)),
        ({"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 7}, (512, 7)),
        ({"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "hidden_size": 64}, (96, None)),
        ({"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64, "kv_lora_rank": 8}, (None, None)),
        ({"num_hidden_layers": "three"}, (None, None)),
    ],
)  # fmt: skip
def test_what_config_json_tells(values: dict[str, object], wanted: tuple[int | None, int | None]) -> None:
    groups = needs._described(values, 2)
    assert (None if groups is None else groups[0].kv_bytes_per_token, needs._context(values)) == wanted
