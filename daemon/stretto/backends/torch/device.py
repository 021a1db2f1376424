"""Where and how to compute: device, dtype and threads, each chosen with a reason that can be read on the status page."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stretto.backends.host import shown, usable_cores
from stretto.errors import StartupError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DEVICE_TYPES = ("cuda", "mps", "cpu")


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


def choose_dtype(requested: str, device: torch.device, *, weights: int, free_bytes: int) -> DtypeChoice:
    """Pick the dtype.

    On the CPU ``auto`` is float32: it gives the model's own answers, and one stream decodes fastest in it. Measured on
    SmolLM2-135M with one thread of an AMD EPYC with AVX-512 BF16, tokens a second of processor time, float32 against
    bfloat16: one stream 11.1 / 7.9 (at 1,024 tokens of context 9.7 / 6.3), 8 streams 32 / 32, 16 streams 42 / 53, a
    prompt of 512 tokens 94 / 131. A model that would not leave room for anything else in float32 gets bfloat16.

    Args:
        requested: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: where.
        weights: how many the model has.
        free_bytes: memory that is free there.

    Raises:
        StartupError: ``backend_unavailable``, for a name that is none of these.
    """
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
    return DtypeChoice(torch.float32, f"it is exact, and decodes one stream fastest on {device.type}")


def choose_threads(requested: int | None, cores: int | None = None) -> ThreadsChoice:
    """How many threads compute on the CPU.

    One core less than there are: the threads meet at a barrier after every product, so that one of them waiting for a
    core, while the event loop or a caller's program has it, holds up all of them. Measured on 2 busy cores, SmolLM2 in
    float32, tokens a second with 1 thread and with 2: one stream 6.9 / 1.0, 16 streams 40 / 3.4. On a machine that
    does nothing else the last core can pay; then ask for it.

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
