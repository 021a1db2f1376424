"""The machine as every backend sees it, without a library: free memory and usable processors, container limits included."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``free_bytes`` is what can be taken now without swapping; caches that would give way count as free."""

    free_bytes: int
    total_bytes: int


GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""What the drivers of NVIDIA, AMD and Windows' Linux show."""


def gpu_is_there() -> bool:
    """Whether a graphics processor that PyTorch may compute on shows itself; a look at names, no library is loaded."""
    return any(Path(name).exists() for name in GPU_DEVICES)


def host_memory() -> Memory:
    """Memory of the host, within the limits of the control groups that this process is in. Raises OSError."""
    if sys.platform == "darwin":
        return _mac_memory()
    memory = parse_meminfo(Path("/proc/meminfo").read_text(encoding="ascii"))
    limits = cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return Memory(
        min([memory.free_bytes, *(limit.free_bytes for limit in limits)]),
        min([memory.total_bytes, *(limit.total_bytes for limit in limits)]),
    )


def parse_meminfo(text: str) -> Memory:
    """Linux's ``/proc/meminfo``; ``MemAvailable`` is the kernel's own estimate of what is free without swapping."""
    fields = dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, flags=re.MULTILINE))
    return Memory(int(fields["MemAvailable"]) * 1024, int(fields["MemTotal"]) * 1024)


def cgroup_limits(membership: Path, root: Path) -> list[Memory]:
    """The memory limits of this process's control group and of every group above it; empty when there are none.

    Args:
        membership: ``/proc/self/cgroup``.
        root: ``/sys/fs/cgroup``, with version 2 (or a hybrid's ``unified``) or version 1's ``memory`` below it.
    """
    try:
        lines = membership.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        number, controllers, name = line.split(":", 2)
        if number == "0":
            base, limit, used, reclaimable = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            base = root / "memory"
            limit, used, reclaimable = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
        else:
            continue
        parts = [part for part in name.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            found = _cgroup_memory(base.joinpath(*parts[:depth]), limit, used, reclaimable)
            if found is not None:
                limits.append(found)
    return limits


def _cgroup_memory(group: Path, limit: str, used: str, reclaimable: str) -> Memory | None:
    try:
        total = int((group / limit).read_text(encoding="ascii"))
        taken = int((group / used).read_text(encoding="ascii"))
        statistics = (group / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        # No such file, or the word "max": no limit at this level.
        return None
    match = re.search(rf"^{reclaimable} (\d+)$", statistics, flags=re.MULTILINE)
    cached = int(match[1]) if match else 0
    return Memory(max(0, total - taken + min(cached, taken)), total)


def _mac_memory() -> Memory:
    total = int(_output("/usr/sbin/sysctl", "-n", "hw.memsize"))
    return Memory(min(total, parse_vm_stat(_output("/usr/bin/vm_stat"))), total)


def parse_vm_stat(text: str) -> int:
    """Free bytes from macOS's ``vm_stat``: pages that are free, or whose contents can be dropped or read again."""
    size = re.search(r"page size of (\d+) bytes", text)
    pages = {
        name.strip(): int(count)
        for name, count in re.findall(r'^"?([^":\n]+)"?:\s+(\d+)\.$', text, flags=re.MULTILINE)
    }
    kinds = ("Pages free", "Pages inactive", "Pages speculative", "Pages purgeable")
    if size is None or kinds[0] not in pages:
        raise OSError("vm_stat gave no page counts")
    return int(size[1]) * sum(pages.get(kind, 0) for kind in kinds)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout


def shown(count: int) -> str:
    """Bytes for a person, e.g. ``1.50 GiB``."""
    return f"{count / GIB:.2f} GiB" if count >= GIB // 10 else f"{count / (1 << 20):.1f} MiB"


@dataclass(frozen=True, slots=True)
class Processor:
    """What Linux says of the first processor; empty elsewhere.

    Attributes:
        vendor: e.g. ``GenuineIntel``.
        model: as it is sold.
        flags: instruction sets, e.g. ``amx_bf16``.
    """

    vendor: str = ""
    model: str = ""
    flags: frozenset[str] = frozenset()


def processor(path: Path = Path("/proc/cpuinfo")) -> Processor:
    """Look at ``/proc/cpuinfo``."""
    try:
        first, _, _ = path.read_text(encoding="ascii", errors="replace").partition("\n\n")
    except OSError:
        return Processor()
    found = {
        name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    return Processor(
        found.get("vendor_id", ""), found.get("model name", ""), frozenset(found.get("flags", "").split())
    )


def usable_cores() -> int:
    """Processors that this process may use: its affinity, within its control group's CPU quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cpu_quota(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, cores if quota is None else min(cores, int(quota)))


def cgroup_cpu_quota(membership: Path, root: Path) -> float | None:
    """Processors' worth of time that the control groups (version 2) grant, or None without a limit."""
    try:
        lines = membership.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        if not line.startswith("0::"):
            continue
        parts = [part for part in line[3:].split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            try:
                allowed, period = (
                    (root.joinpath(*parts[:depth]) / "cpu.max").read_text(encoding="ascii").split()
                )
                quotas.append(int(allowed) / int(period))
            except (OSError, ValueError):
                continue
    return min(quotas, default=None)
