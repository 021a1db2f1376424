"""Where and how to compute: device, dtype and threads, each chosen with a reason that can be read on the status page."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stretto.backends.host import shown, usable_cores
from stretto.errors import StartupError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device and why."""

    device: torch.device
    reason: str


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """A dtype of weights, activations and KV, and why."""

    dtype: torch.dtype
    reason: str

    @property
    def name(self) -> str:
        """E.g. ``float32``."""
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class ThreadsChoice:
    """How many threads compute, and why."""

    threads: int
    reason: str


def available_devices() -> tuple[str, ...]:
    """Devices that this machine and this build of PyTorch offer, best first."""
    cuda = (
        tuple(f"cuda:{index}" for index in range(torch.cuda.device_count()))
        if torch.cuda.is_available()
        else ()
    )
    mps = ("mps",) if torch.backends.mps.is_available() else ()
    return (*cuda, *mps, "cpu")


def choose_device(requested: str) -> DeviceChoice:
    """Pick the device.

    Args:
        requested: ``auto`` (CUDA where there is one, else the CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.

    Raises:
        StartupError: ``backend_unavailable``, when it is not there.
    """
    devices = available_devices()
    if requested == "auto":
        if devices[0].startswith("cuda"):
            return DeviceChoice(torch.device(devices[0]), f"{torch.cuda.get_device_name(0)} is there")
        return DeviceChoice(torch.device("cpu"), "no CUDA device is there")
    wanted = "cuda:0" if requested == "cuda" else requested
    if wanted not in devices:
        raise StartupError(
            f"The device {requested!r} is not available to PyTorch {torch.__version__}.",
            code="backend_unavailable",
            remedy=f"Available are: {', '.join(devices)} (or auto).",
        )
    return DeviceChoice(torch.device(wanted), "it was asked for")


def choose_dtype(
    requested: str, device: torch.device, *, weights: int, free_bytes: int, float16_overflows: bool = False
) -> DtypeChoice:
    """Pick the dtype.

    On the CPU ``auto`` is float32, for what is right more than for what is fast: products in bfloat16 give bfloat16
    logits, which at a size of 20 are 0.125 apart, so that the best token is a matter of rounding. It costs one stream
    little and several more: SmolLM2-135M on one thread of an AMD EPYC with AVX-512 BF16, quiet and interleaved, median
    tokens a second in float32 and bfloat16: one stream 9.3 / 10.3 (at 1,024 tokens of context 7.5 / 8.6), 8 streams
    29 / 36, 16 streams 43 / 57, a prompt of 512 tokens 82 / 138. A model that would not leave room for anything else
    in float32 gets bfloat16.

    Args:
        requested: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: where.
        weights: how many the model has.
        free_bytes: memory that is free there.
        float16_overflows: the family's activations pass 65,504, the largest number of float16.

    Raises:
        StartupError: ``backend_unavailable``, for a name that is none of these; ``model_unsupported``, for float16 where it
            overflows.
    """
    if requested == "float16" and float16_overflows:
        raise StartupError(
            "Activations of this family of models overflow float16.",
            code="model_unsupported",
            remedy="Choose bfloat16, which takes as much memory and has float32's range, or float32.",
        )
    if requested in DTYPES:
        return DtypeChoice(DTYPES[requested], "it was asked for")
    if requested != "auto":
        raise StartupError(
            f"The dtype {requested!r} is not known to the torch backend.",
            code="backend_unavailable",
            remedy=f"Known are: auto, {', '.join(DTYPES)}.",
        )
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return DtypeChoice(torch.bfloat16, "the CUDA device computes bfloat16")
        return DtypeChoice(
            torch.float32, "the CUDA device does not compute bfloat16, and float16 can overflow"
        )
    needed = weights * torch.float32.itemsize
    if needed > free_bytes // 2:
        figures = f"{shown(needed)} of the {shown(free_bytes)} that are free"
        return DtypeChoice(torch.bfloat16, f"in float32 the weights would take {figures}")
    return DtypeChoice(torch.float32, "its logits are exact to rounding, where those of bfloat16 tie")


def choose_threads(requested: int | None, cores: int | None = None) -> ThreadsChoice:
    """How many threads compute on the CPU.

    One core less than there are: the threads meet at a barrier after every product, so that one of them waiting for a
    core, while the event loop or a caller's program has it, holds up all of them. SmolLM2-135M in float32 on 2 cores,
    median tokens a second with 1 thread and with 2: on a quiet machine one stream 9.3 / 9.0, 16 streams 43 / 51, a
    prompt of 512 tokens 82 / 160; on a busy one 6.9 / 1.0, 40 / 3.4 and 48 / 28. Where nothing else runs, the last
    core is worth asking for.

    Args:
        requested: a number, or None.
        cores: processors that this process may use; None finds out.
    """
    if requested is not None:
        return ThreadsChoice(requested, "it was asked for")
    cores = usable_cores() if cores is None else cores
    if cores == 1:
        return ThreadsChoice(1, "there is one core")
    return ThreadsChoice(cores - 1, f"one of {cores} cores is left to the event loop and the callers")
