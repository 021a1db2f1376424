"""Choices of device, dtype, threads and library, each with its reason."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from stretto.backends.torch import device, linear  # noqa: E402

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
    choice = device.choose_dtype("auto", torch.device("cuda:0"))
    assert choice.name == ("bfloat16" if supported else "float32")


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_dtype_that_was_asked_for(name: str) -> None:
    assert device.choose_dtype(name, CPU) == device.DtypeChoice(getattr(torch, name), "it was asked for")


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"": "max 100000", "a/b": "150000 100000"}, 1.5),
        ({"": "200000 100000", "a": "50000 100000", "a/b": "max 100000"}, 0.5),
        ({"": "max 100000"}, None),
        ({}, None),
    ],
)
def test_cpu_quota_of_control_groups(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    membership, root = tmp_path / "self", tmp_path / "root"
    membership.write_text("0::/a/b\n", encoding="ascii")
    for group, text in files.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "cpu.max").write_text(text, encoding="ascii")
    assert device.cgroup_cpu_quota(membership, root) == quota


def test_no_control_group_no_quota(tmp_path: Path) -> None:
    assert device.cgroup_cpu_quota(tmp_path / "none", tmp_path) is None
    assert device.usable_cores() >= 1


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
