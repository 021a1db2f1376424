"""The NEON kernels against the scalar ones, on a processor that is emulated: Debian's gcc-aarch64-linux-gnu and qemu-user."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from support.native_selftest import build_self_test

EMULATOR, COMPILER = "qemu-aarch64", "aarch64-linux-gnu-gcc"


@pytest.mark.timeout(1200)
def test_the_self_test_passes_on_neon(tmp_path: Path) -> None:
    missing = [tool for tool in (EMULATOR, COMPILER) if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not found")
    program = build_self_test(tmp_path, [COMPILER], ["-static"])
    run = subprocess.run([EMULATOR, "-cpu", "max", program], capture_output=True, text=True, timeout=900)
    assert (run.returncode, run.stdout) == (0, "passed on neon-dotprod\n"), run.stderr
