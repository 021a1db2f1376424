"""The C library under ctypes: its structures, its functions, and where it lies.

ctypes gives the interpreter's lock back during every call. The layouts mirror ``src/step.h`` and ``src/kernels.h``;
``Library`` compares the sizes before anything else is called.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np
import numpy.typing as npt

ENCODING_NUMBERS = {
    name: number
    for number, name in enumerate(
        ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
    )
}
"""``enum Encoding`` of ``src/matrix.h``."""

QUERY_TILE = 32
HEAD_MOST = 512


class Matrix(ctypes.Structure):
    """``Matrix`` of ``src/matrix.h``."""

    _fields_ = (
        ("encoding", c_int32),
        ("rows", c_int32),
        ("columns", c_int32),
        ("panels", c_int32),
        ("values", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
        ("fine", c_void_p),
    )


class Op(ctypes.Structure):
    """``Op`` of ``src/step.h``."""

    _fields_ = (
        ("kind", c_int32),
        ("input", c_int32),
        ("output", c_int32),
        ("column", c_int32),
        ("flags", c_int32),
        ("layer", c_int32),
        ("matrix", POINTER(Matrix)),
        ("vector", c_void_p),
        ("second", c_void_p),
    )


class Plan(ctypes.Structure):
    """``Plan`` of ``src/step.h``."""

    _fields_ = (
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_size", c_int32),
        ("rope_dims", c_int32),
        ("vocab", c_int32),
        ("context", c_int32),
        ("table_encoding", c_int32),
        ("eps", c_float),
        ("rope_scale", c_float),
        ("frequencies", c_void_p),
        ("table", c_void_p),
        ("table_row_bytes", c_size_t),
        ("op_count", c_int32),
        ("buffer_count", c_int32),
        ("widest", c_int32),
        ("ops", POINTER(Op)),
        ("widths", POINTER(c_int32)),
    )


class Cache(ctypes.Structure):
    """``Cache`` of ``src/step.h``."""

    _fields_ = (
        ("memory", c_void_p),
        ("blocks", c_int32),
        ("block_tokens", c_int32),
        ("kv_format", c_int32),
        ("layers", c_int32),
    )


class Batch(ctypes.Structure):
    """``Batch`` of ``src/step.h``."""

    _fields_ = (
        ("parts", c_int32),
        ("rows", c_int32),
        ("part", c_void_p),
        ("tokens", c_void_p),
        ("tables", c_void_p),
        ("logits", c_void_p),
    )


class KVHeadLayout(ctypes.Structure):
    """``KvLayout`` of ``src/kernels.h``."""

    _fields_ = (
        ("format", c_int32),
        ("head_size", c_int32),
        ("block_tokens", c_int32),
        ("padded", c_int32),
        ("values_at", c_size_t),
        ("key_scales_at", c_size_t),
        ("value_scales_at", c_size_t),
        ("head_bytes", c_size_t),
    )


class Attention(ctypes.Structure):
    """``Attention`` of ``src/kernels.h``."""

    _fields_ = (
        ("layer", c_void_p),
        ("block_bytes", c_size_t),
        ("kv", KVHeadLayout),
        ("table", c_void_p),
        ("kv_head", c_int32),
        ("first_token", c_int32),
        ("end_token", c_int32),
        ("queries", c_int32),
        ("per_position", c_int32),
        ("start", c_int32),
        ("query", c_void_p * QUERY_TILE),
        ("out", c_void_p * QUERY_TILE),
        ("highest", c_void_p),
        ("total", c_void_p),
        ("scratch", c_void_p),
    )


class Outcome(ctypes.Structure):
    """``Outcome`` of ``src/step.h``."""

    _fields_ = (("fault", c_int32), ("part", c_int32), ("value", c_int32))


_SIGNATURES: tuple[tuple[str, object, tuple[object, ...]], ...] = (
    ("stretto_sizes", None, (c_void_p,)),
    ("stretto_kernels", c_char_p, (c_int,)),
    ("stretto_pool_new", c_void_p, (c_int,)),
    ("stretto_pool_free", None, (c_void_p,)),
    ("stretto_packed_bytes", c_size_t, (c_int, c_int64, c_int64)),
    ("stretto_pack", None, (c_void_p, c_int, c_int, c_int, c_void_p, c_void_p, POINTER(Matrix))),
    ("stretto_drop_pages", None, (c_void_p, c_size_t)),
    ("stretto_model_new", c_void_p, (POINTER(Plan), c_char_p, c_void_p)),
    ("stretto_model_free", None, (c_void_p,)),
    ("stretto_model_cache", None, (c_void_p, POINTER(Cache))),
    ("stretto_block_bytes", c_size_t, (POINTER(Plan), c_int, c_int)),
    ("stretto_scratch_bytes", c_size_t, (c_void_p,)),
    ("stretto_step", None, (c_void_p, POINTER(Batch), POINTER(Outcome))),
    ("stretto_dequantise", None, (c_int, c_void_p, c_int, c_void_p)),
    ("stretto_norm", c_int, (c_char_p, c_void_p, c_void_p, c_int, c_float, c_void_p)),
    ("stretto_gate", c_int, (c_char_p, c_void_p, c_void_p, c_int, c_void_p)),
    ("stretto_attend", c_int, (c_char_p, POINTER(Attention))),
    ("stretto_pack_head", c_int, (c_char_p, c_void_p, c_int, c_int, c_void_p, c_void_p)),
    ("stretto_quantise", c_int, (c_char_p, c_void_p, c_int, *(c_void_p,) * 5)),
    ("stretto_multiply", c_int, (c_char_p, POINTER(Matrix), c_void_p, c_int, c_void_p, c_int, c_void_p)),
)
_STRUCTURES = (Matrix, Op, Plan, Cache, Batch, Attention)


class Library:
    """The loaded library; ``call`` holds its functions, typed.

    Attributes:
        path: the file.
        kernels: names of the instruction sets that this processor can run, best first; the last is ``scalar``.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Load it. Raises OSError, whose text says why it cannot be used."""
        found = path or library_path()
        if found is None:
            raise OSError("the native kernels were not built (no C compiler when the package was installed)")
        self.path = found
        self.call = ctypes.CDLL(str(found))
        for name, result, arguments in _SIGNATURES:
            try:
                function = getattr(self.call, name)
            except AttributeError:
                raise OSError(f"{found} has no {name}: it was built from other sources") from None
            function.restype, function.argtypes = result, arguments
        sizes = (c_int32 * len(_STRUCTURES))()
        self.call.stretto_sizes(sizes)
        if list(sizes) != [ctypes.sizeof(structure) for structure in _STRUCTURES]:
            raise OSError(f"{found} was built from other sources")
        names = (self.call.stretto_kernels(number) for number in range(8))
        self.kernels = tuple(name.decode("ascii") for name in names if name is not None)


def library_path() -> Path | None:
    """Where the built library lies, or None."""
    folder = Path(__file__).parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        candidate = folder / f"_kernels{suffix}"
        if candidate.is_file():
            return candidate
    return None


def address(array: npt.NDArray[np.generic]) -> int:
    """Where a contiguous array's first element lies; the array must outlive what keeps the address."""
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    return array.ctypes.data
