"""Whether the native kernels or PyTorch shall compute a model: what was asked for, then what the machine has."""

from __future__ import annotations

from pathlib import Path

from stretto.backends.native.support import NativeSupport, native_support
from stretto.weights.blocks import ENCODINGS
from stretto.weights.source import ModelSource

KERNELS = ("auto", "native", "torch")
_CUDA_DEVICE = Path("/dev/nvidiactl")


def choose_native(
    source: ModelSource,
    *,
    kernels: str = "auto",
    device: str = "auto",
    dtype: str = "auto",
    cuda_device: Path = _CUDA_DEVICE,
) -> NativeSupport:
    """Decide without loading a tensor library.

    ``auto`` takes the native kernels on the CPU for quantised weights, unless a dtype of the computation was asked for
    (the kernels round activations to 8 bits). ``native`` takes them for whatever they can compute.

    Args:
        source: an opened model.
        kernels: one of ``KERNELS``.
        device: as the torch backend takes it.
        dtype: as the torch backend takes it.
        cuda_device: the file that an NVIDIA driver makes; with ``auto`` a graphics card goes first.

    Raises:
        ValueError: ``kernels`` is none of the three.
    """
    if kernels not in KERNELS:
        raise ValueError(f"kernels is {kernels!r}; it is one of {', '.join(KERNELS)}")

    def no(reason: str) -> NativeSupport:
        return NativeSupport(False, "", reason)

    if kernels == "torch":
        return no("PyTorch was asked for")
    if device not in ("auto", "cpu"):
        return no(f"the device {device} was asked for")
    if kernels == "auto":
        if device == "auto" and cuda_device.exists():
            return no("a CUDA driver is there")
        if dtype != "auto":
            return no(f"the dtype {dtype} was asked for, and the kernels round activations to 8 bits")
        encodings = {source.raw(name).encoding for name in source.tensor_names() if "norm" not in name}
        if not any(ENCODINGS[encoding].block_values > 1 for encoding in encodings):
            return no("the weights are not quantised")
    return native_support(source)
