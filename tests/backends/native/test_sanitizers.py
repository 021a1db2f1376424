"""The C sources under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.native_selftest import build_self_test

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.timeout(1200)
def test_the_self_test_is_clean_under_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    if subprocess.run(
        [compiler, *SANITIZE, str(probe), "-o", str(tmp_path / "probe")], capture_output=True
    ).returncode:
        pytest.skip(f"{compiler} has no sanitizer libraries")
    program = build_self_test(tmp_path, [compiler, *SANITIZE])
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    run = subprocess.run([str(program)], capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("passed on ")
