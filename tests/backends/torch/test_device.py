"""Choices of device, dtype, threads and library, each with its reason."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stretto.backends.host import usable_cores  # noqa: E402
from stretto.backends.torch import device, linear  # noqa: E402
from stretto.errors import StartupError  # noqa: E402

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def test_auto_takes_cuda_before_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available_devices", lambda: ("mps", "cpu"))
    assert device.choose_device("auto").device == CPU
    assert device.choose_device("mps").device.type == "mps"
    monkeypatch.setattr(device, "available_devices", lambda: ("cuda:0", "cuda:1", "cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some GPU")
    assert device.choose_device("auto") == device.DeviceChoice(torch.device("cuda:0"), "Some GPU is there")
    assert device.choose_device("cuda").device == torch.device("cuda:0")
    assert device.choose_device("cuda:1").device == torch.device("cuda:1")


@pytest.mark.parametrize("supported", [True, False])
def test_dtype_on_cuda(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    choice = device.choose_dtype("auto", torch.device("cuda:0"), weights=1, free_bytes=1)
    assert choice.name == ("bfloat16" if supported else "float32")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_dtype_that_was_asked_for(name: str) -> None:
    assert device.choose_dtype(name, CPU, weights=9, free_bytes=1) == device.DtypeChoice(
        getattr(torch, name), "it was asked for"
    )


def test_float16_is_refused_where_it_overflows() -> None:
    for name in ("bfloat16", "float32"):
        assert device.choose_dtype(name, CPU, weights=1, free_bytes=1, float16_overflows=True).name == name
    with pytest.raises(StartupError, match="overflow float16") as caught:
        device.choose_dtype("float16", CPU, weights=1, free_bytes=1, float16_overflows=True)
    assert caught.value.code == "model_unsupported"


def test_float32_on_the_cpu_as_long_as_it_leaves_room() -> None:
    assert device.choose_dtype("auto", CPU, weights=1 << 28, free_bytes=2 << 30).name == "float32"
    choice = device.choose_dtype("auto", CPU, weights=(1 << 28) + 1, free_bytes=2 << 30)
    assert choice.name == "bfloat16"
    assert "1.00 GiB of the 2.00 GiB" in choice.reason


@pytest.mark.parametrize(
    ("requested", "cores", "threads"), [(None, 1, 1), (None, 2, 1), (None, 8, 7), (3, 2, 3)]
)
def test_threads_leave_a_core_unless_told_otherwise(requested: int | None, cores: int, threads: int) -> None:
    choice = device.choose_threads(requested, cores)
    assert choice.threads == threads
    assert choice.reason


def test_threads_of_this_machine() -> None:
    assert device.choose_threads(None).threads == max(1, usable_cores() - 1)


def test_products_are_equal_whichever_library_makes_them() -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((5, 48), (32, 48), (32,)))
    wanted = (x.double() @ weight.double().T + bias.double()).float()
    for make in (linear.DenseProjection, linear.OneDNNProjection):
        assert torch.allclose(make(weight, bias)(x), wanted, atol=1e-5)
        assert torch.allclose(make(weight)(x), wanted - bias, atol=1e-5)


def test_long_sums_are_made_in_parts() -> None:
    generator = torch.Generator().manual_seed(2)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((3, 2500), (8, 2500), (8,)))
    wanted = (x.double() @ weight.double().T + bias.double()).float()
    assert torch.allclose(linear.OneDNNProjection(weight, bias)(x), wanted, atol=1e-3, rtol=1e-5)


def test_the_library_follows_the_processor() -> None:
    assert linear.choose_projection(CPU, torch.float32, "GenuineIntel").name == "torch"
    assert linear.choose_projection(CPU, torch.bfloat16, "AuthenticAMD").name == "torch"
    assert linear.choose_projection(torch.device("cuda:0"), torch.float32, "AuthenticAMD").name == "torch"
