"""From settings to a backend: what was asked for, or what this machine has, and never something else in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

import stretto.backends.native
import stretto.backends.torch
from stretto.backends.base import BackendInfo
from stretto.backends.native import NativeSupport
from stretto.chosen import choose_model
from stretto.errors import StartupError
from stretto.settings import load_settings
from support.weights_tiny import tiny_gguf

NO_TORCH = BackendInfo("torch", False, "PyTorch is not installed.")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_gguf(tmp_path, quant="Q4_1")


def chosen(model: Path, **flags: str) -> str:
    found = choose_model(load_settings({"model": str(model), **flags}, environ={}).settings)
    found.close()
    return found.backend_name


@pytest.mark.torch
@pytest.mark.parametrize(
    ("flags", "name"), [({}, "torch"), ({"backend": "torch"}, "torch"), ({"backend": "native"}, "native")]
)
def test_with_both_at_hand(model: Path, flags: dict[str, str], name: str) -> None:
    assert chosen(model, **flags) == name


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
