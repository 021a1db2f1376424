"""Builds the native kernels; everything else is in pyproject.toml.

The library is plain C that ctypes loads: it links to neither Python nor PyTorch. Without a compiler the installation
goes on without it, and PyTorch computes.
"""

from __future__ import annotations

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCES = "daemon/stretto/backends/native/src"
NAMES = (
    "api", "blocks", "cache", "dispatch", "kernels_avx2", "kernels_avx512", "kernels_avx512_bf16", "kernels_neon", "kernels_scalar",
    "operations", "pack", "pool", "scratch", "step",
)  # fmt: skip
HEADERS = (
    "attention", "attention_pairs", "cache", "kernels", "kernels_body", "lanes_avx2", "lanes_avx512", "lanes_neon", "lanes_scalar",
    "matmul", "matrix", "pool", "rows", "state", "step", "strips",
)  # fmt: skip


class BuildPlainLibrary(build_ext):
    """A shared library without a module's entry point."""

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None: what is exported is marked in the source."""
        return []


setup(
    cmdclass={"build_ext": BuildPlainLibrary},
    ext_modules=[
        Extension(
            "stretto.backends.native._kernels",
            sources=[f"{SOURCES}/{name}.c" for name in NAMES],
            depends=[f"{SOURCES}/{name}.h" for name in HEADERS],
            # Instruction sets are chosen a function at a time and at run time: nothing here may depend on the machine
            # that builds.
            extra_compile_args=[
                "-std=c11",
                "-O2",
                "-fvisibility=hidden",
                "-fno-math-errno",
                "-Wno-psabi",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            optional=True,
        )
    ],
)
