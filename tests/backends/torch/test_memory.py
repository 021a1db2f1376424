"""Free memory as the platforms report it, within the limits of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.backends.host import (
    Memory,
    cgroup_cpu_quota,
    cgroup_limits,
    host_memory,
    parse_meminfo,
    parse_vm_stat,
    shown,
    usable_cores,
)

MEMINFO = """MemTotal:       24683116 kB
MemFree:          512000 kB
MemAvailable:   20000000 kB
Active(anon):      12345 kB
HugePages_Total:       0
"""
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            300000.
Pages inactive:                           20000.
Pages speculative:                          500.
Pages throttled:                              0.
Pages wired down:                         90000.
Pages purgeable:                           1000.
"Translation faults":                 123456789.
"""


def test_meminfo() -> None:
    assert parse_meminfo(MEMINFO) == Memory(20_000_000 * 1024, 24_683_116 * 1024)


def test_vm_stat() -> None:
    assert parse_vm_stat(VM_STAT) == 16384 * (10000 + 20000 + 500 + 1000)
    with pytest.raises(OSError, match="vm_stat"):
        parse_vm_stat("nothing of the kind")


def write_group(path: Path, **files: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text, encoding="ascii")


def test_cgroup_version_2_counts_every_level(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    membership = tmp_path / "self"
    membership.write_text("0::/user.slice/app.scope\n", encoding="ascii")
    stat = "anon 1\ninactive_file 300\n"
    write_group(root / "user.slice" / "app.scope", memory__max="max", memory__current="5", memory__stat=stat)
    write_group(root / "user.slice", memory__max="1000", memory__current="600", memory__stat=stat)
    write_group(root, memory__stat=stat)
    assert cgroup_limits(membership, root) == [Memory(700, 1000)]


def test_cgroup_version_1(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    membership = tmp_path / "self"
    membership.write_text("12:cpu,cpuacct:/docker/x\n7:memory:/docker/x\n", encoding="ascii")
    write_group(
        root / "memory",
        memory__limit_in_bytes="2000",
        memory__usage_in_bytes="2500",
        memory__stat="total_inactive_file 100\n",
    )
    assert cgroup_limits(membership, root) == [Memory(0, 2000)]


def test_no_cgroup_no_limit(tmp_path: Path) -> None:
    assert cgroup_limits(tmp_path / "nothing", tmp_path) == []


def test_this_host() -> None:
    memory = host_memory()
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_figures_for_people() -> None:
    assert shown(3 << 29) == "1.50 GiB"
    assert shown(5 << 20) == "5.0 MiB"


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"": "max 100000", "a/b": "150000 100000"}, 1.5),
        ({"": "200000 100000", "a": "50000 100000", "a/b": "max 100000"}, 0.5),
        ({"": "max 100000"}, None),
        ({}, None),
    ],
)
def test_cpu_quota_of_control_groups(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    membership, root = tmp_path / "self", tmp_path / "root"
    membership.write_text("0::/a/b\n", encoding="ascii")
    for group, text in files.items():
        (root / group).mkdir(parents=True, exist_ok=True)
        (root / group / "cpu.max").write_text(text, encoding="ascii")
    assert cgroup_cpu_quota(membership, root) == quota


def test_no_control_group_no_quota(tmp_path: Path) -> None:
    assert cgroup_cpu_quota(tmp_path / "none", tmp_path) is None
    assert usable_cores() >= 1
