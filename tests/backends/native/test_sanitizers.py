"""The C sources under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stretto.backends.native

SOURCES = Path(stretto.backends.native.__file__).parent / "src"
SELF_TEST = Path(__file__).with_name("selftest.c")
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
# What kernels consist of is called here and not compiled into them: the same code, in a twentieth of the compiler's time.
OPTIONS = [
    "-std=c11",
    "-O1",
    "-fno-inline",
    "-DINLINED=inline",
    "-g",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-pthread",
]


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
    program = tmp_path / "selftest"
    build = [compiler, *SANITIZE, *OPTIONS, f"-I{SOURCES}"]

    def compiled(source: Path) -> str:
        made = tmp_path / f"{source.stem}.o"
        subprocess.run([*build, "-c", str(source), "-o", str(made)], check=True)
        return str(made)

    sources = sorted(SOURCES.glob("*.c"), key=lambda path: "kernels" not in path.name)  # the longest first
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(compiled, [*(path for path in sources if path.name != "api.c"), SELF_TEST]))
    subprocess.run([*build, *parts, "-o", str(program), "-lm"], check=True)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    run = subprocess.run([str(program)], capture_output=True, text=True, env=environment, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.startswith("passed on ")
