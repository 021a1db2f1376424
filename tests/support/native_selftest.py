"""Builds the self-test of the C sources, for whichever compiler and processor."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import stretto.backends.native

SOURCES = Path(stretto.backends.native.__file__).parent / "src"
_SELF_TEST = Path(__file__).parents[1] / "backends" / "native" / "selftest.c"
# What kernels consist of is called here and not compiled into them: the same code, in a twentieth of the compiler's time.
_OPTIONS = [
    "-std=c11",
    "-O1",
    "-fno-inline",
    "-DINLINED=inline",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-pthread",
]


def build_self_test(directory: Path, compiler: Sequence[str], link: Sequence[str] = ()) -> Path:
    """Compile everything but Python's way in, with warnings as errors, and link the program.

    Args:
        compiler: its command with further options.
        link: further options of the last step.
    """
    build = [*compiler, *_OPTIONS, f"-I{SOURCES}"]

    def compiled(source: Path) -> str:
        made = directory / f"{source.stem}.o"
        subprocess.run([*build, "-c", str(source), "-o", str(made)], check=True)
        return str(made)

    sources = sorted(SOURCES.glob("*.c"), key=lambda path: "kernels" not in path.name)  # the longest first
    with ThreadPoolExecutor(2) as pool:
        parts = list(pool.map(compiled, [*(path for path in sources if path.name != "api.c"), _SELF_TEST]))
    program = directory / "selftest"
    subprocess.run([*build, *link, *parts, "-o", str(program), "-lm"], check=True)
    return program
