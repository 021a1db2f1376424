"""The protocol's edges: loading, refusals with their reasons, memory that stays where it is, threads, and life without MLX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from stretto.backends.base import (  # noqa: E402
    Backend,
    BackendFailure,
    BackendLost,
    BackendOutOfMemory,
    Chunk,
    KVPlan,
    LayerGroup,
)
from stretto.backends.host import Memory  # noqa: E402
from stretto.backends.mlx import MLXBackend, device, loading, probe  # noqa: E402
from stretto.backends.mlx.pool import GroupPool  # noqa: E402
from stretto.errors import StartupError  # noqa: E402
from stretto.weights import Checkpoint  # noqa: E402
from support.backend_driver import Driver, RunningSequence, silent  # noqa: E402
from support.mlx_models import VOCAB, loaded, tiny_mlx  # noqa: E402

pytestmark = pytest.mark.mlx

TABLE = (np.array([0], dtype=np.int32),)
ONE_TOKEN = Chunk(np.array([5], dtype=np.int32), 0, TABLE, 1)
WEIGHTS = VOCAB * 64 + 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96 + 2 * 64) + 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_mlx(tmp_path_factory.mktemp("model"))


@pytest.fixture
def backend(model: Path) -> Any:
    made = loaded(model)
    yield made
    made.close()


def refused(path: Path, code: str, **options: Any) -> str:
    with pytest.raises(StartupError) as caught:
        loaded(path, **options)
    assert caught.value.code == code
    return str(caught.value)


def test_it_is_a_backend_and_says_what_it_loaded(model: Path) -> None:
    checkpoint = Checkpoint(model)
    backend = MLXBackend(checkpoint, dtype="bfloat16")
    assert isinstance(backend, Backend)
    assert backend.stats() == {"loaded": False}
    phases: list[tuple[str, float]] = []
    spec = backend.load(lambda phase, fraction: phases.append((phase, fraction)))
    checkpoint.close()
    assert (spec.family, spec.dtype, spec.device, spec.context_tokens) == ("llama", "bfloat16", "cpu", 256)
    assert spec.layer_groups == (LayerGroup("full", 3, 2, 16, None, 3 * 2 * 2 * 16 * 2),)
    assert (spec.vocab_size, spec.parameters, spec.weight_bytes) == (VOCAB, WEIGHTS, 2 * WEIGHTS)
    assert phases[0] == ("starting MLX", 0.0)
    fractions = [fraction for phase, fraction in phases if phase == "loading weights"]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)

    backend.allocate(KVPlan(16, (8,)))
    backend.forward([ONE_TOKEN])
    stats = backend.stats()
    assert (stats["steps"], stats["tokens"], stats["passes"], stats["padded_tokens"]) == (1, 1, 1, 0)
    assert stats["packing"] == "none"
    assert stats["dtype_reason"] == "it was asked for"
    assert stats["device_reason"] == "no GPU is there"
    assert "metal" not in stats
    json.dumps(stats)
    memory = backend.memory()
    slots = 8 * 16 + 1  # and one a head for what padding writes
    assert (memory.weights_bytes, memory.kv_bytes) == (2 * WEIGHTS, slots * spec.kv_bytes_per_token)
    assert 0 < memory.free_bytes <= memory.total_bytes
    backend.close()
    backend.close()
    assert backend.stats() == {"loaded": False}
    with pytest.raises(BackendFailure, match="not loaded"):
        backend.forward([ONE_TOKEN])


@pytest.mark.parametrize(
    ("options", "packing"),
    [
        ({"bits": 8}, "8 bits affine, groups of 32"),
        (
            {"bits": 4, "other_bits": {"model.embed_tokens": 8, "model.layers.1.mlp.down_proj": 6}},
            "4 bits affine, groups of 32 (20 matrices); 8 bits affine, groups of 32 (1 matrices); 6 bits affine, groups of 32 (1 matrices)",
        ),
    ],
)
def test_packed_weights_stay_packed(tmp_path: Path, options: dict[str, Any], packing: str) -> None:
    made = loaded(tiny_mlx(tmp_path, **options))
    stats = made.stats()
    assert stats["packing"] == packing
    assert isinstance(stats["weights_bytes"], int)
    assert stats["weights_bytes"] < 1.6 * WEIGHTS
    assert made._runtime is not None
    assert made._runtime.spec.parameters == WEIGHTS
    made.close()


def test_packed_layers_that_the_file_does_not_list_are_known_by_their_shapes(tmp_path: Path) -> None:
    path = tiny_mlx(tmp_path, bits=4, other_bits={"model.layers.1.mlp.down_proj": 8})
    driver = Driver(first := loaded(path), blocks=4)
    wanted = driver.prefill(driver.start([1, 2, 3]), 3)
    first.close()
    config = json.loads((path / "config.json").read_text())
    config["quantization"] = {"group_size": 32, "bits": 4}
    (path / "config.json").write_text(json.dumps(config))
    driver = Driver(second := loaded(path), blocks=4)
    assert np.array_equal(driver.prefill(driver.start([1, 2, 3]), 3), wanted)
    second.close()


def test_a_report_that_raises_stops_the_load_and_keeps_nothing(model: Path) -> None:
    class Stop(Exception):
        pass

    backend = MLXBackend(Checkpoint(model))

    def report(phase: str, fraction: float) -> None:
        if fraction > 0.5:
            raise Stop

    with pytest.raises(Stop):
        backend.load(report)
    assert backend.stats() == {"loaded": False}
    backend.load(silent)
    with pytest.raises(BackendFailure, match="no KV memory"):
        backend.forward([ONE_TOKEN])
    backend.close()


def test_a_bad_step_is_refused_and_the_next_one_runs(backend: MLXBackend) -> None:
    backend.allocate(KVPlan(16, (4,)))
    with pytest.raises(BackendFailure, match="block 9 is not in 0 to 3"):
        backend.forward([Chunk(ONE_TOKEN.token_ids, 0, (np.array([9], dtype=np.int32),), 1)])
    with pytest.raises(BackendFailure, match="2 block tables; this model has one layer group"):
        backend.forward([Chunk(ONE_TOKEN.token_ids, 0, TABLE * 2, 1)])
    assert np.isfinite(backend.forward([ONE_TOKEN])).all()
    assert backend.forward([Chunk(np.array([5, 6], dtype=np.int32), 0, TABLE, 0)]).shape == (0, VOCAB)


def test_blocks_are_copied_read_and_written_back(tmp_path: Path) -> None:
    made = loaded(tiny_mlx(tmp_path, "gemma3_text"))
    driver = Driver(made, blocks=40, groups=2, shuffled=True)
    original = driver.start(range(3, 19), 17)
    driver.prefill(original, 16)
    copy = driver.start(range(3, 19), 17)
    for group in range(2):
        pairs = list(zip(original.tables[group], copy.tables[group], strict=True))
        made.copy_blocks(group, pairs[:2])
        for source, target in pairs[2:]:
            made.write_block(group, target, made.read_block(group, source))
            assert made.read_block(group, target) == made.read_block(group, source)
    twin = RunningSequence([*range(3, 19), 99], copy.tables, 16)
    original.tokens.append(99)
    first, second = driver.step([(original, 1), (twin, 1)])
    assert np.array_equal(first, second)
    with pytest.raises(BackendFailure, match="a block has 1024 bytes, 5 were given"):
        made.write_block(1, 0, b"short")
    for call in (
        lambda: made.read_block(0, 40),
        lambda: made.copy_blocks(0, [(0, -1)]),
        lambda: made.read_block(2, 0),
    ):
        with pytest.raises(BackendFailure, match=r"is not in 0 to 39|layer group 2 does not exist"):
            call()
    made.close()


def test_a_step_writes_into_the_memory_that_is_there(backend: MLXBackend) -> None:
    """If it copied a pool of one layer only once, the most that is held at a time would grow by that."""
    driver = Driver(backend, blocks=4096, block_tokens=16, shuffled=True)
    prompts = [list(range(3, 3 + count)) for count in (40, 45, 33)]
    sequences = [driver.start(prompt, 64) for prompt in prompts]
    layer_bytes = 4096 * 16 * 2 * 16 * 4
    driver.step([(sequence, 20) for sequence in sequences], rows=1)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(3):
        driver.step([(sequence, 2) for sequence in sequences], rows=1)
    driver.step([(sequences[0], 1), (sequences[1], 1), (sequences[2], 4)], rows=1)
    driver.backend.write_block(0, 7, driver.backend.read_block(0, 3))
    driver.backend.copy_blocks(0, [(1, 2), (2, 1)])
    assert mx.get_peak_memory() - before < layer_bytes / 2
    assert mx.get_active_memory() - before < layer_bytes / 16


def test_kv_memory_that_does_not_fit_is_refused_with_the_figures(backend: MLXBackend) -> None:
    with pytest.raises(BackendOutOfMemory, match=r"takes \d+\.\d\d GiB; \d+\.\d\d GiB are free on cpu"):
        backend.allocate(KVPlan(16, (1 << 25,)))
    backend.allocate(KVPlan(16, (4,)))
    for blocks in ((), (0,), (4, 4)):
        with pytest.raises(BackendFailure, match="KV plan"):
            backend.allocate(KVPlan(16, blocks))


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "device_memory", lambda choice: Memory(1 << 18, 1 << 30))
    monkeypatch.setattr(mx, "load", lambda path: pytest.fail("a weight was read"))
    assert "take 0.4 MiB; 0.2 MiB are free on cpu" in refused(model, "out_of_memory")
    # In half the bytes they do.
    monkeypatch.undo()
    monkeypatch.setattr(loading, "device_memory", lambda choice: Memory(300 << 10, 1 << 30))
    assert "take 0.4 MiB" in refused(model, "out_of_memory")
    loaded(model, dtype="float16").close()


def test_a_step_that_fails_midway_leaves_what_was_known(
    backend: MLXBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(backend, blocks=16)
    known, other = driver.start(range(3, 11), 9), driver.start(range(3, 11))
    driver.prefill(known, 8)
    inner = backend._runtime
    assert inner is not None
    model = inner._loaded.model

    def fails(tokens: Any, cache: Any) -> Any:
        model(tokens, cache=cache)  # every layer's writes are begun, and none is computed
        raise ValueError("no more")

    monkeypatch.setattr(inner._stepper, "_model", fails)
    with pytest.raises(BackendFailure, match="a step of 8 tokens in 1 sequences failed: no more"):
        driver.step([(other, 8)])
    monkeypatch.undo()
    known.tokens.append(20)
    again = driver.start([*range(3, 11), 20])
    driver.step([(again, 8)])
    assert np.array_equal(*(driver.step([(one, 1)])[0] for one in (known, again)))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("[metal::malloc] Attempting to allocate 9 bytes which is greater than the maximum allowed buffer size"), 1),
        (RuntimeError("[malloc] Unable to allocate 9 bytes."), 1),
        (MemoryError(), 1),
        (ValueError("[matmul] Last dimension of first input must match"), 0),
    ],
)  # fmt: skip
def test_failures_by_kind(backend: MLXBackend, error: Exception, kind: int) -> None:
    inner = backend._runtime
    assert inner is not None
    with pytest.raises(BackendFailure) as caught, inner._translated("a step"):
        raise error
    assert type(caught.value) is (BackendFailure, BackendOutOfMemory)[kind]
    assert str(caught.value).startswith("a step failed: ")


def test_kv_memory_that_cannot_be_completed_is_lost(
    backend: MLXBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.allocate(KVPlan(16, (4,)))
    inner = backend._runtime
    assert inner is not None

    def broken(self: GroupPool) -> Any:
        raise RuntimeError("no such buffer")

    monkeypatch.setattr(GroupPool, "arrays", broken)
    with pytest.raises(BackendLost, match="KV memory was lost"), inner._translated("a step"):
        raise ValueError("it failed")


def test_no_wired_limit_is_set_and_freed_buffers_are_bounded(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx, "set_wired_limit", lambda limit: pytest.fail("a wired limit was set"))
    before = mx.set_cache_limit(123 << 20)
    made = loaded(model)
    try:
        Driver(made, blocks=4).greedy([[1, 2]], 2)
        memory = made.stats()["memory"]
        assert isinstance(memory, dict)
        assert memory["kept_bytes"] <= memory["kept_bytes_limit"]
        assert 256 << 20 <= memory["kept_bytes_limit"] <= 4 << 30
    finally:
        made.close()
    assert mx.set_cache_limit(before) == 123 << 20


def test_the_figures_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = device.DeviceChoice(mx.Device(mx.gpu, 0), "mps", "it was asked for")
    info = {
        "device_name": "Apple M9", "architecture": "applegpu_g99", "memory_size": 64 << 30, "max_buffer_length": 8 << 30,
        "max_recommended_working_set_size": 48 << 30, "resource_limit": 499_000,
    }  # fmt: skip
    monkeypatch.setattr(mx, "device_info", lambda *of: info)
    monkeypatch.setattr(device, "host_memory", lambda: Memory(50 << 30, 64 << 30))
    monkeypatch.setattr(mx, "get_active_memory", lambda: 8 << 30)
    assert device.device_memory(choice) == Memory(40 << 30, 48 << 30)
    monkeypatch.setattr(device, "host_memory", lambda: Memory(10 << 30, 64 << 30))
    assert device.device_memory(choice) == Memory(10 << 30, 48 << 30)
    assert device.metal_facts(choice) == {
        "device_name": "Apple M9",
        "architecture": "applegpu_g99",
        "max_recommended_working_set_size_bytes": 48 << 30,
        "max_buffer_length_bytes": 8 << 30,
        "memory_size_bytes": 64 << 30,
        "wired_limit": "as the system has it",
    }
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert device.available_devices() == ("mps", "cpu")
    assert device.choose_device("auto").reason == "Apple M9 is there"


def change(path: Path, **values: Any) -> Path:
    config = json.loads((path / "config.json").read_text()) | values
    (path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return path


@pytest.mark.parametrize(
    ("values", "code", "text"),
    [
        ({"model_type": "no_such"}, "model_unsupported", "no model of the type 'no_such'"),
        ({"model_file": "own.py"}, "model_unsupported", "is not run"),
        ({"quantization_config": {"quant_method": "gptq"}}, "model_unsupported", "mlx_lm.convert"),
        ({"max_position_embeddings": None}, "model_invalid", "max_position_embeddings"),
        ({"num_hidden_layers": 4}, "model_invalid", "mlx-lm's llama cannot be built from it"),
        ({"hidden_size": None}, "model_invalid", "hidden_size"),
        ({"num_hidden_layers": 2}, "model_invalid", "layers.2"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    tmp_path: Path, values: dict[str, Any], code: str, text: str
) -> None:
    assert text in refused(change(tiny_mlx(tmp_path), **values), code)


def test_layers_of_another_type_than_the_file_says_are_refused(tmp_path: Path) -> None:
    kinds = ["full_attention", "sliding_attention", "full_attention"]
    path = change(tiny_mlx(tmp_path, "gemma3_text"), layer_types=kinds, sliding_window_pattern=3)
    assert "layer_types says full_attention for layer 0" in refused(path, "model_unsupported")


def test_within_a_window_that_is_not_computed_the_model_is_served(tmp_path: Path) -> None:
    made = loaded(tiny_mlx(tmp_path, "mistral", sliding_window=64))
    assert made._runtime is not None
    assert made._runtime.spec.context_tokens == 64
    assert "no sliding window for mistral" in str(made.stats()["context_reason"])
    made.close()


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    path = tiny_mlx(tmp_path)
    tensors = mx.load(str(path / "model.safetensors"))
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = float("nan")
    mx.save_safetensors(str(path / "model.safetensors"), tensors, metadata={"format": "mlx"})
    assert "tensor model.layers.1.mlp.down_proj.weight has values" in refused(path, "model_invalid")


RECURRENT = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "state_size": 8, "num_hidden_layers": 2,
    "conv_kernel": 4, "use_bias": False, "use_conv_bias": True, "time_step_rank": 4,
}  # fmt: skip


def test_a_state_that_cannot_be_paged_is_refused(tmp_path: Path) -> None:
    text = refused(tiny_mlx(tmp_path, "mamba", **RECURRENT), "model_unsupported")
    assert "'mamba' cannot be served: its layers keep a ArraysCache" in text
    assert "Choose a model whose layers attend" in text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "mps"}, "'mps' is not available to MLX"),
        ({"device": "cuda:3"}, "Available are: cpu (or auto)"),
        ({"dtype": "int3"}, "'int3'"),
    ],
)
def test_a_device_or_dtype_that_is_not_there(model: Path, options: dict[str, str], text: str) -> None:
    assert text in refused(model, "backend_unavailable", **options)


def test_probe() -> None:
    info = probe()
    assert (info.name, info.available) == ("mlx", True)
    assert info.devices[-1] == "cpu"


WITHOUT = """
import sys
sys.modules["mlx"] = None
from stretto.backends.mlx import MLXBackend, probe
from stretto.errors import StartupError
info = probe()
assert not info.available and "pip install 'stretto[mlx]'" in info.reason, info
try:
    MLXBackend(object()).load(lambda phase, fraction: None)
except StartupError as error:
    assert error.code == "backend_unavailable" and "pip install" in str(error)
else:
    raise SystemExit("it loaded")
"""

THREAD = """
import gc, sys, threading
from pathlib import Path
import numpy as np
from stretto.backends.base import Chunk, KVPlan
from stretto.backends.mlx import MLXBackend
from stretto.weights import Checkpoint

def live():
    backend = MLXBackend(Checkpoint(Path(sys.argv[1])))
    for _ in range(2):  # as the engine does it when a device is lost
        backend.load(lambda phase, fraction: None)
        backend.allocate(KVPlan(16, (64,)))
        for step in range(3):
            table = (np.arange(4, dtype=np.int32),)
            backend.forward([Chunk(np.arange(3, 20, dtype=np.int32), 0, table, 1)])
        backend.close()
    print("lived")

thread = threading.Thread(target=live)
thread.start()
thread.join()
"""


def test_without_mlx_it_imports_and_says_what_to_install() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_a_thread_that_loaded_and_ran_it_ends_and_so_does_the_process(model: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", THREAD, str(model)], check=True, capture_output=True, text=True
    )
    assert ran.stdout == "lived\n"


def test_the_reloaded_model_is_the_same(model: Path) -> None:
    checkpoint = Checkpoint(model)
    backend = MLXBackend(checkpoint)
    first = backend.load(silent)
    assert backend.load(silent) == first
    backend.close()
    checkpoint.close()
