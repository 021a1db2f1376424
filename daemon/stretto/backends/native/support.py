"""Whether the native kernels can compute a model here, and with what."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.backends.native.library import ENCODING_NUMBERS, HEAD_MOST, QUERY_TILE, Library
from stretto.weights.blocks import ENCODINGS
from stretto.weights.config import ModelConfig
from stretto.weights.source import ModelSource

LANES = 16


@dataclass(frozen=True, slots=True)
class NativeSupport:
    """The answer.

    Attributes:
        available: whether they can be used.
        kernels: the instruction set, e.g. ``avx512-vnni``; empty when they cannot.
        reason: why (not); one sentence, or part of one.
        quantised: whether most of the model's bytes are quantised weights, for which they are fastest.
    """

    available: bool
    kernels: str
    reason: str
    quantised: bool = False


def native_support(source: ModelSource | None = None, instruction_set: str = "") -> NativeSupport:
    """Look for the library and, with a model, at its shapes and encodings. Never raises.

    Args:
        source: an opened model, or None to ask about the machine alone.
        instruction_set: one of ``Library.kernels``; empty takes the best.
    """
    try:
        library = Library()
    except OSError as error:
        return NativeSupport(False, "", str(error))
    if instruction_set and instruction_set not in library.kernels:
        return NativeSupport(
            False,
            "",
            f"this processor has no {instruction_set} kernels (it has {', '.join(library.kernels)})",
        )
    kernels = instruction_set or library.kernels[0]
    if not instruction_set and kernels == "scalar":
        return NativeSupport(
            False, "", "this processor has none of the vector instructions they are written for"
        )
    if source is not None:
        fault = shape_fault(source.config) or encoding_fault(source)
        if fault:
            return NativeSupport(False, "", fault)
    quantised = source is not None and mostly_quantised(source)
    return NativeSupport(True, kernels, f"this processor has {kernels}", quantised)


def mostly_quantised(source: ModelSource) -> bool:
    """Whether more than half of a model's bytes are blocks of quantised values."""
    tensors = [source.raw(name) for name in source.tensor_names()]
    blocks = sum(raw.nbytes for raw in tensors if ENCODINGS[raw.encoding].block_values > 1)
    return 2 * blocks > sum(raw.nbytes for raw in tensors)


def shape_fault(config: ModelConfig) -> str:
    """What of an architecture the kernels cannot compute; empty when they can."""
    if beyond := config.beyond_plain():
        return f"the model has {beyond}, which they do not compute"
    for name, value in (
        ("hidden size", config.hidden_size),
        ("feed-forward size", config.ffn_size),
        ("head size", config.head_size),
    ):
        if value % LANES:
            return f"the model's {name} is {value}, not a multiple of {LANES}"
    if config.head_size > HEAD_MOST:
        return f"the model's head size is {config.head_size}, above {HEAD_MOST}"
    if config.heads // config.kv_heads > QUERY_TILE:
        return f"{config.heads // config.kv_heads} query heads share a KV head, more than {QUERY_TILE}"
    return ""


def encoding_fault(source: ModelSource) -> str:
    """A tensor in an encoding that the kernels do not read; empty when there is none."""
    for name in source.tensor_names():
        encoding = source.raw(name).encoding
        if encoding not in ENCODING_NUMBERS:
            return f"tensor {name} is {encoding}, which they do not read"
    return ""
