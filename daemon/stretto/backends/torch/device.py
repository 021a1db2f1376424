"""Where and how to compute: device, dtype and threads, each chosen with a reason that can be read on the status page."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stretto.backends.host import cgroup_cpu_quota as cgroup_cpu_quota
from stretto.backends.host import usable_cores
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


def choose_dtype(requested: str, device: torch.device) -> DtypeChoice:
    """Pick the dtype.

    Args:
        requested: ``auto``, ``float32``, ``bfloat16`` or ``float16``.
        device: where.

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
    if device.type == "mps":
        return DtypeChoice(torch.float32, "the dtype that is exact on every MPS device")
    return _cpu_dtype()


def _cpu_dtype() -> DtypeChoice:
    return DtypeChoice(torch.float32, "to be measured")


def choose_threads(requested: int | None, cores: int | None = None) -> ThreadsChoice:
    """How many threads compute on the CPU.

    Args:
        requested: a number, or None.
        cores: processors that this process may use; None finds out.
    """
    cores = usable_cores() if cores is None else cores
    if requested is not None:
        return ThreadsChoice(requested, "it was asked for")
    return ThreadsChoice(cores, "to be measured")
