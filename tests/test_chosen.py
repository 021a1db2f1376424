"""From settings to a backend: what was asked for, or what this machine has, and never something else in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

import stretto.backends.host
import stretto.backends.mlx
import stretto.backends.native
import stretto.backends.torch
import stretto.chosen
import stretto.chosen_prefill
from stretto.backends.base import BackendInfo, KVPlan
from stretto.backends.host import Memory, Processor
from stretto.backends.native import NativeSupport
from stretto.backends.native.prefill import PrefillPlan
from stretto.backends.prefill_record import Rates
from stretto.chosen import choose_model
from stretto.chosen_prefill import choose_prefill
from stretto.errors import SettingsError, StartupError
from stretto.settings import load_settings
from stretto.weights import open_model
from support.weights_packed import QUANTIZATION, packed_directory
from support.weights_tiny import tiny_gguf

NO_TORCH = BackendInfo("torch", False, "PyTorch is not installed.")
MLX = BackendInfo("mlx", True, "MLX", ("mps", "cpu"))
NO_MLX = BackendInfo("mlx", False, "MLX is not installed.")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path, quant="Q4_1")


def chosen(model: Path, **flags: str) -> str:
    found = choose_model(load_settings({"model": str(model), **flags}, environ={}).settings)
    found.close()
    return found.backend_name


@pytest.mark.torch
@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({}, "native"),
        ({"device": "cpu"}, "native"),
        ({"backend": "native"}, "native"),
        ({"backend": "torch"}, "torch"),
        ({"dtype": "float32"}, "torch"),
    ],
)
def test_with_both_at_hand(model: Path, flags: dict[str, str], name: str) -> None:
    assert chosen(model, **flags) == name


@pytest.mark.torch
def test_pytorch_computes_what_is_not_quantised_and_where_there_is_a_gpu(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain").mkdir()
    plain = tiny_gguf(tmp_path / "plain", quant="F32")
    assert chosen(plain) == "torch"
    assert chosen(plain, backend="native") == "native"
    monkeypatch.setattr(stretto.backends.host, "GPU_DEVICES", (str(tmp_path),))
    assert chosen(model) == "torch"
    assert chosen(model, device="cpu") == "native"


@pytest.mark.torch
def test_activation_bits_are_for_the_native_kernels(model: Path) -> None:
    assert chosen(model, activation_bits="8") == "native"
    with pytest.raises(
        SettingsError, match=r"activation_bits: 8 has no effect on .*, which PyTorch computes"
    ):
        chosen(model, activation_bits="8", dtype="float32")
    with pytest.raises(SettingsError, match="no effect with backend torch"):
        chosen(model, activation_bits="8", backend="torch")


@pytest.mark.torch
def test_the_kv_dtype_is_for_the_native_kernels(model: Path) -> None:
    found = choose_model(load_settings({"model": str(model), "kv_dtype": "int8"}, environ={}).settings)
    assert found.backend.load(lambda phase, fraction: None).kv_dtype == "int8"
    found.backend.close()
    found.close()
    with pytest.raises(
        SettingsError, match=r"kv_dtype: int8 has no effect on .*, which PyTorch computes.*Leave it out"
    ) as caught:
        chosen(model, kv_dtype="int8", dtype="float32")
    assert caught.value.param == "kv_dtype"
    with pytest.raises(SettingsError, match=r"kv_dtype.*: int8 has no effect with backend torch"):
        chosen(model, kv_dtype="int8", backend="torch")
    with pytest.raises(SettingsError, match=r"kv_dtype.*auto, float32, bfloat16 or int8"):
        chosen(model, kv_dtype="int4")


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({}, "native"),
        ({"device": "cpu"}, "native"),
        ({"backend": "native"}, "native"),
        ({"backend": "torch"}, None),
        ({"dtype": "float32"}, None),
        ({"device": "cuda"}, None),
    ],
)
def test_without_torch(
    model: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, str], name: str | None
) -> None:
    monkeypatch.setattr(stretto.backends.torch, "probe", lambda: NO_TORCH)
    if name is not None:
        assert chosen(model, **flags) == name
        return
    with pytest.raises(StartupError) as caught:
        chosen(model, **flags)
    assert caught.value.code == "backend_unavailable"
    assert "PyTorch is not installed" in str(caught.value)


def test_without_kernels(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        stretto.backends.native, "native_support", lambda source: NativeSupport(False, "", "not built")
    )
    with pytest.raises(
        StartupError, match=r"native backend cannot be used here: not built\. Leave --backend out"
    ):
        chosen(model, backend="native")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return packed_directory(tmp_path / "packed", quantization=QUANTIZATION)


@pytest.fixture
def _mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretto.backends.mlx, "probe", lambda: MLX)


@pytest.mark.usefixtures("_mlx")
def test_what_is_packed_for_mlx_goes_there_unasked(packed: Path) -> None:
    assert chosen(packed) == chosen(packed, backend="mlx") == "mlx"
    with pytest.raises(StartupError, match="--backend mlx computes it"):
        chosen(packed, backend="torch")
    with pytest.raises(
        SettingsError, match="threads: 2 has no effect on packed, which MLX computes"
    ) as caught:
        chosen(packed, threads="2")
    assert caught.value.param == "threads"
    with pytest.raises(SettingsError, match="kv_dtype: int8 has no effect on packed, which MLX computes"):
        chosen(packed, kv_dtype="int8")


@pytest.mark.torch
@pytest.mark.usefixtures("_mlx")
def test_what_mlx_wrote_without_packing_goes_there_on_apples_chips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = packed_directory(tmp_path / "plain", made_by="mlx")
    foreign = packed_directory(tmp_path / "foreign")
    for path in (plain, foreign):
        assert chosen(path) == "torch"  # by transformers: their architecture has no module here
        assert chosen(path, backend="mlx") == "mlx"
    monkeypatch.setattr(stretto.chosen, "_on_apple_chips", lambda: True)
    assert chosen(plain) == "mlx"
    assert chosen(foreign) == "torch"


def test_without_mlx(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretto.backends.mlx, "probe", lambda: NO_MLX)
    for flags in ({}, {"backend": "mlx"}):
        with pytest.raises(StartupError, match=r"MLX is not installed\. packed is packed for MLX") as caught:
            chosen(packed, **flags)
        assert caught.value.code == "backend_unavailable"


@pytest.mark.usefixtures("_mlx")
def test_a_gguf_file_is_not_for_mlx(model: Path) -> None:
    with pytest.raises(StartupError, match=r"is a GGUF file.*Leave --backend out") as caught:
        chosen(model, backend="mlx")
    assert caught.value.code == "model_unsupported"


AMX = Processor("GenuineIntel", "A processor", frozenset({"amx_bf16", "amx_tile"}))


def prefill(model: Path, state_dir: Path, machine: Processor = AMX, **flags: str) -> PrefillPlan:
    settings = load_settings({"model": str(model), "state_dir": str(state_dir), **flags}, environ={}).settings
    source = open_model(model)
    try:
        return choose_prefill(settings, source, machine)
    finally:
        source.close()


@pytest.mark.torch
@pytest.mark.parametrize(
    ("machine", "flags", "reason"),
    [
        (Processor(), {}, "this processor has no AMX, without which the kernels are faster"),
        (AMX, {"prefill": "native"}, "it was asked for"),
        (AMX, {"kv_dtype": "int8"}, "keys and values are kept in int8, which the kernels alone write"),
        (AMX, {"block_tokens": "24"}, "blocks of 24 tokens are no multiple of 16"),
    ],
)
def test_prompts_are_the_kernels(
    model: Path, tmp_path: Path, machine: Processor, flags: dict[str, str], reason: str
) -> None:
    plan = prefill(model, tmp_path, machine, **flags)
    assert (plan.make, plan.reason) == (None, reason)


@pytest.mark.torch
def test_prompts_may_be_pytorchs_where_there_are_tiles(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = prefill(model, tmp_path)
    assert plan.make is not None
    assert not plan.asked
    assert plan.record is not None
    plan.record.write(Rates(1.0, 2.0))
    assert (tmp_path / "prefill.json").exists()
    again, otherwise = prefill(model, tmp_path).record, prefill(model, tmp_path, threads="1").record
    assert again is not None
    assert again.read() == Rates(1.0, 2.0)
    assert otherwise is not None
    assert otherwise.read() is None
    monkeypatch.setattr(stretto.chosen_prefill, "host_memory", lambda: Memory(1000, 1000))
    assert "a second copy of the weights would take" in prefill(model, tmp_path).reason
    monkeypatch.setattr(stretto.chosen_prefill.importlib.util, "find_spec", lambda name: None)
    assert prefill(model, tmp_path).reason == "PyTorch is not installed"
    with pytest.raises(StartupError, match="needs PyTorch, which is not installed"):
        prefill(model, tmp_path, prefill="torch")


@pytest.mark.torch
def test_prompts_by_pytorch_are_for_the_native_kernels(model: Path, tmp_path: Path) -> None:
    plan = prefill(model, tmp_path, Processor(), prefill="torch")
    assert plan.asked
    for flags, what in (({"kv_dtype": "int8"}, "int8"), ({"block_tokens": "8"}, "no multiple of 16")):
        with pytest.raises(SettingsError, match=f"prefill: torch cannot be used: .*{what}"):
            prefill(model, tmp_path, prefill="torch", **flags)
    with pytest.raises(SettingsError, match=r"prefill: torch has no effect on .*, which PyTorch computes"):
        chosen(model, prefill="torch", dtype="float32")
    with pytest.raises(SettingsError, match=r"prefill.*: torch has no effect with backend torch"):
        chosen(model, prefill="torch", backend="torch")
    found = choose_model(load_settings({"model": str(model), "prefill": "torch"}, environ={}).settings)
    found.backend.load(lambda phase, fraction: None)
    found.backend.allocate(KVPlan(16, (4,)))
    assert found.backend.stats()["prefill"] == {
        "by": "torch", "reason": "it was asked for", "torch_bytes": found.backend.memory().weights_bytes - without_pytorch(model),
        "torch_tokens": 0,
    }  # fmt: skip
    found.backend.close()
    found.close()


def without_pytorch(model: Path) -> int:
    """Bytes of the weights without PyTorch's."""
    found = choose_model(load_settings({"model": str(model)}, environ={}).settings)
    found.backend.load(lambda phase, fraction: None)
    taken = found.backend.memory().weights_bytes
    found.backend.close()
    found.close()
    return taken
