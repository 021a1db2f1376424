"""What ``stretto doctor`` looks at: each check is a function that gives one finding."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stretto.cli.machine import read_machine
from stretto.cli.output import size_text
from stretto.settings import Settings

if TYPE_CHECKING:
    from stretto.backends.base import BackendInfo

State = Literal["ok", "note", "fail"]
LOW_MEMORY_BYTES = 1_000_000_000
LOW_DISK_BYTES = 500_000_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result. ``fail`` prevents serving; ``note`` is worth knowing. ``remedy`` says what to do."""

    name: str
    state: State
    detail: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Daemon:
    """What was found at the socket: ``running``, ``absent`` or ``unreachable``, and a sentence."""

    state: Literal["running", "absent", "unreachable"]
    detail: str


def check_python() -> Finding:
    """The interpreter."""
    detail = f"{platform.python_implementation()} {platform.python_version()} on {platform.platform()}"
    return Finding("python", "ok", detail)


def check_cores() -> Finding:
    """How much can be computed at once."""
    cores = read_machine().cores
    detail = f"{cores:g} usable, {platform.machine()}"
    return (
        Finding("cores", "ok", detail)
        if cores >= 2
        else Finding(
            "cores",
            "note",
            detail,
            "The event loop and the compute threads share one core; answers will stutter.",
        )
    )


def check_memory() -> Finding:
    """Memory at hand."""
    machine = read_machine()
    if machine.memory_bytes is None or machine.free_bytes is None:
        return Finding("memory", "note", "unknown on this platform")
    detail = f"{size_text(machine.free_bytes)} free of {size_text(machine.memory_bytes)}"
    if machine.free_bytes < LOW_MEMORY_BYTES:
        return Finding(
            "memory",
            "note",
            detail,
            "Little is left for a model and its KV cache; free some, or limit --max-context.",
        )
    return Finding("memory", "ok", detail)


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest of its parents that is there."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())


def check_folder(name: str, folder: Path) -> Finding:
    """Whether a folder can be written, or made."""
    existing = nearest_existing(folder)
    if not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            name,
            "fail",
            f"{folder}: {existing} cannot be written",
            f"Make it writable, or set {name} elsewhere.",
        )
    return Finding(name, "ok", f"{folder}{'' if folder.exists() else ' (will be made)'}")


def check_disk(settings: Settings) -> Finding:
    """Room for models."""
    free = shutil.disk_usage(nearest_existing(settings.models_dir)).free
    detail = f"{size_text(free)} free for models"
    if free < LOW_DISK_BYTES:
        return Finding("disk", "note", detail, "A pull may not fit; free some, or set models_dir elsewhere.")
    return Finding("disk", "ok", detail)


def probe_torch() -> BackendInfo:
    """Ask the torch backend, if it is there at all."""
    from stretto.backends.base import BackendInfo

    try:
        from stretto.backends.torch import probe
    except ImportError as error:
        return BackendInfo(
            "torch", False, f"cannot be imported ({error.name or type(error).__name__} is missing)"
        )
    return probe()


def probe_native() -> BackendInfo:
    """Ask whether the native kernels were built, and suit this processor."""
    from stretto.backends.base import BackendInfo
    from stretto.backends.native import native_support

    support = native_support()
    return BackendInfo("native", support.available, support.reason, ("cpu",) if support.available else ())


def probe_mlx() -> BackendInfo:
    """Ask the MLX backend."""
    from stretto.backends.mlx import probe

    return probe()


def goes_to_mlx(settings: Settings) -> bool:
    """Whether MLX is to compute the model that is set, if there is that model."""
    from stretto.chosen import open_source
    from stretto.errors import StrettoError
    from stretto.weights import Checkpoint, ForeignCheckpoint
    from stretto.weights.library import ModelLibrary

    if settings.backend != "auto":
        return settings.backend == "mlx"
    try:
        source = open_source(settings, ModelLibrary(settings.models_dir).require(settings.model).path)
    except StrettoError:
        return False
    source.close()
    return isinstance(source, Checkpoint) and not isinstance(source, ForeignCheckpoint)


def check_backends(settings: Settings) -> list[Finding]:
    """Which backends work, and whether the one that is set does."""
    from stretto.chosen import native_may

    info, native, mlx = probe_torch(), probe_native(), probe_mlx()
    with_mlx = goes_to_mlx(settings)
    available, reason, devices = info.available, info.reason, info.devices
    wanted = settings.backend in ("auto", "torch") and not with_mlx
    # auto goes without PyTorch where the native kernels can do what was asked for.
    goes_without = settings.backend == "auto" and native_may(settings, available=native.available)
    where = f" ({', '.join(devices)})" if devices else ""
    found = [
        Finding(
            "backend torch",
            "ok" if available else "fail" if wanted and not goes_without else "note",
            f"{reason}{where}",
            None
            if available
            else "Install it: pip install 'stretto[torch]'; or try --backend echo, which needs no model.",
        ),
        Finding(
            "backend native",
            "ok" if native.available else "fail" if settings.backend == "native" else "note",
            native.reason,
            None
            if native.available
            else "Install again where there is a C compiler, or use another --backend.",
        ),
        Finding(
            "backend mlx",
            "ok" if mlx.available else "fail" if with_mlx else "note",
            mlx.reason + (f" ({', '.join(mlx.devices)})" if mlx.devices else ""),
            None if mlx.available else "Models packed for MLX need it: pip install 'stretto[mlx]'.",
        ),
        Finding("backend echo", "ok", "always there; repeats what it is told"),
    ]
    device = settings.device
    if with_mlx:
        available, devices = mlx.available, mlx.devices
    have = {name.partition(":")[0] for name in devices} | set(devices)
    if (wanted or with_mlx) and available and device != "auto" and device not in have:
        found.append(
            Finding(
                "device",
                "fail",
                f"{device} is set, and this machine has {', '.join(devices)}",
                "Set device to auto.",
            )
        )
    return found


def check_model(settings: Settings) -> Finding:
    """Whether the model that is set is installed, and a model that can be computed here; no weights are read."""
    if settings.backend == "echo":
        return Finding("model", "ok", "backend echo needs none")
    from stretto.chosen import open_source
    from stretto.errors import StrettoError
    from stretto.weights.library import ModelLibrary

    try:
        installed = ModelLibrary(settings.models_dir).require(settings.model)
        open_source(settings, installed.path).close()
    except StrettoError as error:
        return Finding("model", "fail", error.message, error.remedy)
    return Finding("model", "ok", f"{installed.name} ({size_text(installed.size_bytes)}) at {installed.path}")


def check_installed(settings: Settings) -> Finding:
    """What else is installed."""
    from stretto.errors import StrettoError
    from stretto.weights.library import ModelLibrary

    try:
        names = sorted(model.name for model in ModelLibrary(settings.models_dir).list())
    except StrettoError as error:
        return Finding("installed", "note", error.message, error.remedy)
    return Finding("installed", "ok", ", ".join(names) or "no models")


def check_daemon(daemon: Daemon) -> Finding:
    """Whether one runs already."""
    if daemon.state == "unreachable":
        return Finding("daemon", "note", daemon.detail)
    return Finding("daemon", "ok", daemon.detail)


def check_port(settings: Settings, daemon: Daemon) -> Finding:
    """Whether the port can be had; a running daemon of ours may hold it."""
    where = f"{settings.host}:{settings.port}"
    if settings.port == 0:
        return Finding("port", "ok", "any free one")
    if daemon.state == "running":
        return Finding("port", "ok", f"{where} (not tried: a daemon is running)")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        remedy = "Choose another with --port; 0 takes any." if error.errno == errno.EADDRINUSE else None
        return Finding("port", "fail", f"{where}: {error.strerror or error}", remedy)
    return Finding("port", "ok", f"{where} is free")


def run_checks(settings: Settings, daemon: Daemon) -> list[Finding]:
    """All of them, in the order in which they are shown."""
    simple: tuple[Callable[[], Finding], ...] = (check_python, check_cores, check_memory)
    return [
        *(check() for check in simple),
        check_disk(settings),
        *check_backends(settings),
        check_model(settings),
        check_installed(settings),
        check_folder("state_dir", settings.state_dir),
        check_folder("socket", settings.socket.parent),
        check_daemon(daemon),
        check_port(settings, daemon),
    ]


def platform_finding() -> Finding | None:
    """A system that the daemon does not run on."""
    if sys.platform in ("linux", "darwin") or "bsd" in sys.platform:
        return None
    return Finding(
        "platform",
        "fail",
        f"{sys.platform} has no Unix sockets as the daemon needs them",
        "Use Linux or macOS.",
    )
