"""Who computes: the order of the rules, and the reason that is given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stretto.backends.native import choose_native
from stretto.weights import ModelSource, open_model
from support.weights_tiny import tiny_gguf


@pytest.fixture(params=["Q4_1", "F16"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModelSource]:
    opened = open_model(tiny_gguf(tmp_path, quant=request.param))
    yield opened
    opened.close()


@pytest.mark.parametrize("source", ["Q4_1"], indirect=True)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kernels": "torch"}, "PyTorch was asked for"),
        ({"device": "cuda:1", "kernels": "native"}, "the device cuda:1 was asked for"),
        (
            {"dtype": "float32"},
            "the dtype float32 was asked for, and the kernels round activations to 8 bits",
        ),
    ],
)
def test_what_was_asked_for_goes_first(source: ModelSource, options: dict[str, str], reason: str) -> None:
    choice = choose_native(source, **options)  # type: ignore[arg-type]
    assert (choice.available, choice.reason) == (False, reason)


@pytest.mark.parametrize("source", ["Q4_1"], indirect=True)
def test_a_graphics_card_goes_before_the_processor(source: ModelSource, tmp_path: Path) -> None:
    driver = tmp_path / "nvidiactl"
    assert choose_native(source, cuda_device=driver).available
    driver.touch()
    assert choose_native(source, cuda_device=driver).reason == "a CUDA driver is there"
    assert choose_native(source, device="cpu", cuda_device=driver).available


@pytest.mark.parametrize("source", ["F16"], indirect=True)
def test_plain_weights_are_taken_only_when_asked(source: ModelSource, tmp_path: Path) -> None:
    assert choose_native(source, cuda_device=tmp_path / "none").reason == "the weights are not quantised"
    assert choose_native(source, kernels="native", dtype="float32").available


@pytest.mark.parametrize("source", ["F16"], indirect=True)
def test_an_unknown_name_is_refused(source: ModelSource) -> None:
    with pytest.raises(ValueError, match="kernels is 'fast'; it is one of auto, native, torch"):
        choose_native(source, kernels="fast")
