"""The protocol's edges: loading, refusals with figures, failures by kind, and life without PyTorch."""

from __future__ import annotations

import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

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
from stretto.backends.torch import TorchBackend, probe, runtime  # noqa: E402
from stretto.errors import StartupError  # noqa: E402
from stretto.weights import open_model  # noqa: E402
from support.backend_driver import silent  # noqa: E402
from support.torch_runs import loaded  # noqa: E402
from support.weights_tiny import tiny_gguf, tiny_hf  # noqa: E402

pytestmark = pytest.mark.torch

ONE_TOKEN = Chunk(np.array([5], dtype=np.int32), 0, (np.array([0], dtype=np.int32),), 1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path)


def test_it_is_a_backend_and_says_what_it_loaded(model: Path) -> None:
    source = open_model(model)
    backend = TorchBackend(source, device="cpu", dtype="bfloat16", threads=1)
    assert isinstance(backend, Backend)
    assert backend.stats() == {"loaded": False}
    phases: list[tuple[str, float]] = []
    spec = backend.load(lambda phase, fraction: phases.append((phase, fraction)))
    source.close()
    weights = sum(int(np.prod(shape)) for shape in source.config.tensor_shapes().values())
    assert (spec.family, spec.dtype, spec.device, spec.context_tokens) == ("llama", "bfloat16", "cpu", 256)
    assert spec.layer_groups == (LayerGroup("full", 2, 2, 16, None, 2 * 2 * 2 * 16 * 2),)
    assert (spec.parameters, spec.weight_bytes) == (weights, 2 * weights)
    assert phases[0] == ("starting PyTorch", 0.0)
    fractions = [fraction for phase, fraction in phases if phase == "loading weights"]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)

    backend.allocate(KVPlan(16, (8,)))
    backend.forward([ONE_TOKEN])
    stats = backend.stats()
    assert (stats["steps"], stats["tokens"], stats["threads"]) == (1, 1, 1)
    assert torch.get_num_threads() == 1
    memory = backend.memory()
    assert (memory.weights_bytes, memory.kv_bytes) == (2 * weights, 8 * 16 * spec.kv_bytes_per_token)
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_a_report_that_raises_stops_the_load_and_keeps_nothing(model: Path) -> None:
    class Stop(Exception):
        pass

    backend = TorchBackend(open_model(model), device="cpu", threads=1)
    calls = 0

    def report(phase: str, fraction: float) -> None:
        nonlocal calls
        calls += 1
        if fraction > 0.5:
            raise Stop

    with pytest.raises(Stop):
        backend.load(report)
    stopped_at = calls
    assert backend.stats() == {"loaded": False}
    backend.load(report=silent)
    assert calls == stopped_at
    backend.close()


def test_close_frees_and_may_be_repeated(model: Path) -> None:
    backend = TorchBackend(open_model(model), device="cpu", dtype="float32", threads=1)
    backend.load(silent)
    backend.allocate(KVPlan(16, (4,)))
    inner = weakref.ref(backend._runtime)
    backend.close()
    backend.close()
    assert inner() is None
    with pytest.raises(BackendFailure, match="not loaded"):
        backend.forward([ONE_TOKEN])
    backend.load(silent)
    with pytest.raises(BackendFailure, match="no KV memory"):
        backend.forward([ONE_TOKEN])


def test_a_bad_step_is_refused_and_the_next_one_runs(model: Path) -> None:
    backend = loaded(model)
    backend.allocate(KVPlan(16, (4,)))
    with pytest.raises(BackendFailure, match="block 9 is not in 0 to 3"):
        backend.forward([Chunk(ONE_TOKEN.token_ids, 0, (np.array([9], dtype=np.int32),), 1)])
    assert np.isfinite(backend.forward([ONE_TOKEN])).all()


def test_blocks_out_of_range_are_refused(model: Path) -> None:
    backend = loaded(model)
    backend.allocate(KVPlan(16, (4,)))
    for call in (
        lambda: backend.read_block(0, 4),
        lambda: backend.copy_blocks(0, [(0, -1)]),
        lambda: backend.write_block(0, 4, b""),
        lambda: backend.read_block(1, 0),
    ):
        with pytest.raises(BackendFailure, match=r"is not in 0 to 3|layer group 1 does not exist"):
            call()
    with pytest.raises(BackendFailure, match="a block has 8192 bytes, 5 were given"):
        backend.write_block(0, 0, b"short")


def test_kv_memory_that_does_not_fit_is_refused_with_the_figures(model: Path) -> None:
    backend = loaded(model)
    with pytest.raises(BackendOutOfMemory, match=r"takes \d+\.\d\d GiB; \d+\.\d\d GiB are free on cpu"):
        backend.allocate(KVPlan(16, (1 << 32,)))
    backend.allocate(KVPlan(16, (4,)))
    for blocks in ((), (0,), (4, 4)):
        with pytest.raises(BackendFailure, match="KV plan"):
            backend.allocate(KVPlan(16, blocks))


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "device_memory", lambda device: Memory(1 << 18, 1 << 30))
    source = open_model(model)
    monkeypatch.setattr(source, "raw", lambda name: pytest.fail("a weight was read"))
    with pytest.raises(StartupError, match=r"take 0\.\d MiB in float32; 0\.2 MiB are free on cpu") as caught:
        TorchBackend(source, device="cpu", dtype="float32", threads=1).load(silent)
    assert caught.value.code == "out_of_memory"


def test_weights_that_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    path = tiny_hf(tmp_path / "broken")
    import safetensors.torch

    file = path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["model.layers.1.mlp.down_proj.weight"][3, 4] = float("nan")
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(
        StartupError, match=r"model\.layers\.1\.mlp\.down_proj\.weight .*not finite"
    ) as caught:
        loaded(path)
    assert caught.value.code == "model_invalid"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "cuda:99"}, "'cuda:99' is not available"),
        ({"device": "tpu"}, "'tpu'"),
        ({"dtype": "int3"}, "'int3'"),
    ],
)
def test_a_device_or_dtype_that_is_not_there(model: Path, options: dict[str, str], text: str) -> None:
    with pytest.raises(StartupError, match=text) as caught:
        loaded(model, **options)
    assert caught.value.code == "backend_unavailable"


def test_threads_are_a_positive_number(model: Path) -> None:
    with pytest.raises(ValueError, match="threads is 0"):
        TorchBackend(open_model(model), threads=0)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory"
            ),
            1,
        ),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 1),
        (MemoryError(), 1),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), 2),
        (RuntimeError("CUDA error: device-side assert triggered"), 2),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), 0),
        (IndexError("index out of range in self"), 0),
    ],
)
def test_failures_by_kind(error: Exception, kind: int) -> None:
    wanted = (BackendFailure, BackendOutOfMemory, BackendLost)[kind]
    with pytest.raises(BackendFailure) as caught, runtime.translated("a step"):
        raise error
    assert type(caught.value) is wanted
    assert str(caught.value).startswith("a step failed: ")


def test_the_cpu_allocators_own_words_are_understood() -> None:
    with pytest.raises(BackendOutOfMemory), runtime.translated("an allocation"):
        torch.empty(1 << 60, dtype=torch.uint8)


def test_loading_and_running_warn_of_nothing(model: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in ("float32", "bfloat16", "float16"):
            backend = loaded(model, dtype=dtype)
            backend.allocate(KVPlan(16, (4,)))
            backend.write_block(0, 1, backend.read_block(0, 0))
            backend.forward([ONE_TOKEN])


def test_probe() -> None:
    info = probe()
    assert (info.name, info.available) == ("torch", True)
    assert info.devices[-1] == "cpu"


WITHOUT = """
import sys
sys.modules["torch"] = None
from stretto.backends.torch import TorchBackend, probe
from stretto.errors import StartupError
info = probe()
assert not info.available and "pip install 'stretto[torch]'" in info.reason, info
try:
    TorchBackend(object()).load(lambda phase, fraction: None)
except StartupError as error:
    assert error.code == "backend_unavailable" and "pip install" in str(error)
else:
    raise SystemExit("it loaded")
"""


def test_without_pytorch_it_imports_and_says_what_to_install() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT], check=True)


def test_importing_it_does_not_import_pytorch() -> None:
    code = "import sys, stretto.backends.torch; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
