"""Layers in the host's memory: on a machine without a GPU, the CPU is both of the devices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stretto.backends.torch.linear import DenseProjection  # noqa: E402
from stretto.backends.torch.offload import Offload, Offloader, layers_that_fit  # noqa: E402
from stretto.backends.torch.runtime import Runtime  # noqa: E402
from stretto.errors import StartupError  # noqa: E402
from stretto.weights import open_any  # noqa: E402
from support.backend_driver import Driver, silent  # noqa: E402
from support.torch_runs import loaded  # noqa: E402
from support.weights_families import SHAPE, tiny_family  # noqa: E402
from support.weights_foreign import tiny_foreign  # noqa: E402

pytestmark = pytest.mark.torch

TOKENS = np.random.default_rng(7).integers(0, SHAPE.vocab, 40).tolist()


def runtime(path: Path, offload: Offload) -> Runtime:
    return Runtime(
        open_any(path),
        device="cpu",
        dtype="float32",
        threads=1,
        context_tokens=None,
        offload=offload,
        report=silent,
    )


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3-moe", "gemma4-experts"])
@pytest.mark.parametrize("stream_from", [1, 8, 1000])
def test_the_same_logits_wherever_layers_lie(tmp_path: Path, family: str, stream_from: int) -> None:
    path = tiny_family(tmp_path, family)
    plain = loaded(path)
    groups = len(plain._loaded().spec.layer_groups)
    run = Driver(plain, blocks=30, groups=groups)
    wanted = run.prefill(run.start(TOKENS), 16)
    for gpu_layers in (0, 2):
        made = runtime(path, Offload(gpu_layers, stream_from))
        run = Driver(made, blocks=30, groups=groups)  # type: ignore[arg-type]
        found = run.prefill(run.start(TOKENS), 16)
        assert float(np.abs(found - wanted).max()) < 1e-5
        stats = made.stats()["offload"]
        assert isinstance(stats, dict)
        assert (stats["gpu_layers"], stats["stream_from_rows"]) == (gpu_layers, stream_from)
        assert stats["bytes"] > 0
        assert made.spec.weight_bytes == plain._loaded().spec.weight_bytes


def test_by_settings(tmp_path: Path) -> None:
    backend = loaded(tiny_family(tmp_path, "llama"), offload=True, gpu_layers=1)
    stats = backend.stats()["offload"]
    assert isinstance(stats, dict)
    assert stats["gpu_layers"] == 1
    assert "the device is the host itself" in stats["stream_reason"]
    # All of it fits.
    assert loaded(tmp_path, offload=True).stats()["offload"]["gpu_layers"] == SHAPE.layers  # type: ignore[index]


def test_what_is_faster_is_measured_once() -> None:
    device = torch.device("meta")

    class Measured(Offloader):
        def _timed(self, product: object, x: torch.Tensor) -> float:
            hosted = getattr(product, "__name__", "") == "hosted"
            return 0.001 * x.shape[0] if hosted else 0.01

    offloader = Measured(
        Offload(), device=device, on_device=DenseProjection, on_host=DenseProjection, host=torch.device("cpu")
    )
    offloader.make(torch.zeros(8, 4), None)
    assert offloader.stats()["stream_from_rows"] == 16
    assert "16 ms on the host, 10 ms sent, for 16 rows" in str(offloader.stats()["stream_reason"])
    offloader.make(torch.zeros(8, 4), torch.zeros(8))
    assert offloader.stats()["bytes"] == (32 + 32 + 8) * 4


def test_as_many_layers_as_fit() -> None:
    assert layers_that_fit([100] * 10, 50, 1000) == 7
    assert layers_that_fit([100] * 10, 50, 2000) == 10
    assert layers_that_fit([100] * 10, 800, 1000) == 0


def test_models_of_transformers_are_not_offloaded(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(StartupError, match="cannot be offloaded"):
        runtime(tiny_foreign(tmp_path, "GPTNeoX"), Offload(1))
