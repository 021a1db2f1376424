"""How much memory is free, without a library: the kernel's own figures, and the container's limit where there is one."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``free_bytes`` is what can be taken now without swapping; caches that would give way count as free."""

    free_bytes: int
    total_bytes: int


def device_memory(device: torch.device) -> Memory:
    """Memory of the device that holds weights and KV; that of the host where the two are one (CPU, MPS)."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        # What this process has freed but PyTorch keeps is as good as free.
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return Memory(free + kept, total)
    return host_memory()


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
