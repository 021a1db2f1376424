"""Where MLX computes, in what, and how much memory there is."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from importlib.metadata import version

import mlx.core as mx

from stretto.backends.host import Memory, host_memory
from stretto.errors import StartupError

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_LEAST_CACHE_BYTES, _MOST_CACHE_BYTES = 256 << 20, 4 << 30


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """A device and why; ``name`` as the setting calls it."""

    device: mx.Device
    name: str
    reason: str


def mlx_version() -> str:
    """E.g. ``0.32.4``."""
    return version("mlx")


def available_devices() -> tuple[str, ...]:
    """Devices that this machine and this build of MLX offer, best first, as the setting calls them."""
    if mx.metal.is_available():
        return ("mps", "cpu")
    if mx.cuda.is_available():
        return (*(f"cuda:{number}" for number in range(mx.device_count(mx.gpu))), "cpu")
    return ("cpu",)


def choose_device(requested: str) -> DeviceChoice:
    """Pick the device.

    Args:
        requested: ``auto`` (a GPU if there is one, else the CPU), ``cpu``, ``mps`` (the GPU of Apple's chips), ``cuda`` or ``cuda:N``.

    Raises:
        StartupError: ``backend_unavailable``, when it is not there.
    """
    devices = available_devices()
    wanted = {"auto": devices[0], "cuda": "cuda:0"}.get(requested, requested)
    if wanted not in devices:
        raise StartupError(
            f"The device {requested!r} is not available to MLX {mlx_version()}.",
            code="backend_unavailable",
            remedy=f"Available are: {', '.join(devices)} (or auto).",
        )
    reason = "it was asked for"
    if requested == "auto":
        reason = "no GPU is there" if wanted == "cpu" else f"{device_name(wanted)} is there"
    return DeviceChoice(_device(wanted), wanted, reason)


def device_name(name: str) -> str:
    """What the device calls itself, e.g. ``Apple M3 Max``."""
    return str(mx.device_info(_device(name)).get("device_name", name))


def device_memory(choice: DeviceChoice) -> Memory:
    """Memory of the device that holds weights and KV.

    On Apple's chips that is the host's, of which the GPU should not hold more than the system recommends: beyond that, macOS takes
    it away again under load.
    """
    memory = host_memory()
    if choice.device == mx.cpu:
        return memory
    info = mx.device_info(choice.device)
    most = int(info.get("max_recommended_working_set_size", 0) or info.get("total_memory", 0))
    if not most:
        return memory
    # What MLX keeps of freed buffers is as good as free.
    left = max(0, most - mx.get_active_memory())
    return Memory(left if choice.name.startswith("cuda") else min(left, memory.free_bytes), most)


def metal_facts(choice: DeviceChoice) -> dict[str, object] | None:
    """The GPU's own figures, where there is Metal."""
    if choice.name != "mps":
        return None
    info = mx.device_info(choice.device)
    known = (
        "device_name",
        "architecture",
        "max_recommended_working_set_size",
        "max_buffer_length",
        "memory_size",
    )
    named = {name + "_bytes" if name.startswith("m") else name: info[name] for name in known if name in info}
    return {**named, "wired_limit": "as the system has it"}


def memory_facts() -> dict[str, object]:
    """What MLX holds: arrays, their most since the load, and freed buffers that it keeps for the next step."""
    return {
        "active_bytes": mx.get_active_memory(),
        "peak_bytes": mx.get_peak_memory(),
        "kept_bytes": mx.get_cache_memory(),
    }


class OwnStreams:
    """Streams of the engine thread, on which everything is computed while it has them.

    A stream belongs to the thread that made it. One that outlives its thread ends the process with an abort, so they are ended
    with it; the main thread's may stay, and others may use them.
    """

    def __init__(self, choice: DeviceChoice) -> None:
        # Weights are read on a stream of the CPU whatever computes.
        mx.set_default_stream(mx.new_stream(mx.cpu))
        if choice.device != mx.cpu:
            mx.set_default_stream(mx.new_stream(choice.device))
        self.stream = mx.default_stream(choice.device)
        total = host_memory().total_bytes
        self.kept_bytes_limit = max(_LEAST_CACHE_BYTES, min(_MOST_CACHE_BYTES, total // 16))
        self._limit_before = mx.set_cache_limit(self.kept_bytes_limit)
        mx.reset_peak_memory()

    def close(self) -> None:
        """Wait for what is computed, and give back freed buffers and the streams."""
        mx.synchronize(self.stream)
        mx.clear_cache()
        mx.set_cache_limit(self._limit_before)
        if threading.current_thread() is not threading.main_thread():
            mx.clear_streams()


def _device(name: str) -> mx.Device:
    kind, _, number = name.partition(":")
    return mx.Device(mx.cpu if kind == "cpu" else mx.gpu, int(number or 0))
