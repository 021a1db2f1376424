"""What this machine has: cores and memory, as much of them as a container or a service manager leaves us."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """Cores that we may run on (a CPU quota counts), and memory in bytes; None where it cannot be told."""

    cores: float
    memory_bytes: int | None
    free_bytes: int | None


def read_machine(root: Path = Path("/")) -> Machine:
    """Look. ``root`` stands for the root directory, under which ``proc`` and ``sys`` are."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores, total, free = float(affinity), _physical_bytes(), None
    info = _meminfo(root / "proc/meminfo")
    total, free = info.get("MemTotal", total), info.get("MemAvailable")
    for folder in _cgroups(root):
        quota, limit = _cpu_quota(folder), _number(folder / "memory.max")
        if quota is not None:
            cores = min(cores, quota)
        if limit is not None:
            used = _number(folder / "memory.current") or 0
            total = min(limit, total) if total is not None else limit
            free = min(max(0, limit - used), free) if free is not None else max(0, limit - used)
    return Machine(cores, total, free)


def _physical_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def _meminfo(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in _read(path).splitlines():
        name, _, rest = line.partition(":")
        parts = rest.split()
        if parts and parts[0].isdigit():
            found[name] = int(parts[0]) * (1024 if parts[1:] == ["kB"] else 1)
    return found


def _cgroups(root: Path) -> list[Path]:
    """Our control group (version 2) and those above it: each one's limits hold."""
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            own = base / line.removeprefix("0::").strip().lstrip("/")
            return [folder for folder in (own, *own.parents) if folder == base or base in folder.parents]
    return [base]


def _cpu_quota(folder: Path) -> float | None:
    """``cpu.max`` holds "quota period" in microseconds, or "max period"."""
    parts = _read(folder / "cpu.max").split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts) or int(parts[1]) == 0:
        return None
    return int(parts[0]) / int(parts[1])


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
