"""What ``stretto doctor`` says of the model that is set: what it will need, and what would make it faster."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.cli.checks import Finding, probe_mlx, probe_native, probe_torch
from stretto.cli.output import size_text
from stretto.settings import Settings

if TYPE_CHECKING:
    from stretto.needs import ModelNeeds

NVIDIA = Path("/proc/driver/nvidia/version")


def forecast(settings: Settings) -> tuple[list[Finding], ModelNeeds | None]:
    """Findings about the model's needs, and the figures; nothing for a model that cannot be opened, which another check says."""
    if settings.backend == "echo":
        return [], None
    from stretto.chosen import open_source
    from stretto.errors import StrettoError
    from stretto.needs import model_needs, packed_bytes
    from stretto.weights import ModelSource
    from stretto.weights.library import ModelLibrary

    try:
        source = open_source(settings, ModelLibrary(settings.models_dir).require(settings.model).path)
    except StrettoError:
        return [], None
    try:
        needs = model_needs(settings, source, probe_torch())
        packed = packed_bytes(source) if isinstance(source, ModelSource) else None
        kernels = _kernels_can(settings, source)
    except StrettoError as error:
        return [Finding("needs", "note", error.message, error.remedy)], None
    finally:
        source.close()
    if needs is None:
        return [Finding("needs", "note", "no backend here computes the model; see above")], None
    found = [
        Finding("computed by", "ok", f"{needs.backend}, since {needs.backend_reason}; on {needs.device} in {needs.dtype}"
                f" ({needs.dtype_reason})"),
        *_memory(needs),
        *_smaller(settings, needs),
    ]  # fmt: skip
    return found + _faster(needs, packed, kernels), needs


def _memory(needs: ModelNeeds) -> list[Finding]:
    kv = needs.kv_bytes_per_token
    kind = f" in {needs.kv_dtype}" if kv is not None and needs.kv_dtype != needs.dtype else ""
    each = "unknown before it is loaded" if kv is None else size_text(1000 * kv)
    detail = f"weights {size_text(needs.weights_bytes)}, KV {each} per 1,000 tokens{kind}; {size_text(needs.free_bytes)} are free"
    if needs.fault:
        remedy = "Free memory, take a smaller model or one with fewer bits, or set a shorter --max-context."
        return [Finding("needs", "fail", f"{detail}: {needs.fault}", remedy)]
    if needs.largest_context_tokens is None or needs.kv_bytes is None:
        return [Finding("needs", "ok", f"{detail}; how long a context fits, loading tells")]
    longest = f"{needs.largest_context_tokens:,} tokens"
    if needs.model_context_tokens == needs.largest_context_tokens:
        longest += ", the model's own"
    elif needs.model_context_tokens is not None:
        longest += f" of the model's {needs.model_context_tokens:,}"
    return [
        Finding("needs", "ok", f"{detail}; it fits, with a KV cache of {size_text(needs.kv_bytes)}"),
        Finding("context", "ok", f"the largest is {longest}"),
    ]


def _smaller(settings: Settings, needs: ModelNeeds) -> list[Finding]:
    """What would hold more tokens, where it is the KV memory that keeps the context short."""
    cut = settings.max_context is None and needs.largest_context_tokens != needs.model_context_tokens
    short = needs.weights_bytes <= needs.free_bytes and (needs.fault or cut)
    if needs.backend != "native" or needs.kv_dtype == "int8" or not short:
        return []
    return [
        Finding(
            "smaller",
            "note",
            f"keys and values are kept in {needs.kv_dtype}, which holds fewer tokens than int8",
            "--kv-dtype int8 holds nearly twice those of bfloat16, a little less exactly.",
        )
    ]


def _kernels_can(settings: Settings, source: object) -> bool:
    from stretto.backends.native import native_support
    from stretto.weights import ModelSource

    asked = settings.device in ("auto", "cpu") and settings.dtype == "auto" and settings.offload != "cpu"
    return asked and isinstance(source, ModelSource) and native_support(source).available


def _faster(needs: ModelNeeds, packed: int | None, kernels: bool) -> list[Finding]:
    """What is missing; on a GPU nothing is."""
    found = []
    if needs.device != "cpu":
        return []
    if needs.backend == "torch" and kernels and packed is not None and packed * 2 < needs.weights_bytes:
        found.append(
            Finding(
                "faster",
                "note",
                f"its weights are packed into {size_text(packed)}, and every token reads {size_text(needs.weights_bytes)}",
                "--backend native computes from the packed weights.",
            )
        )
    if needs.backend != "native" and not probe_native().available:
        found.append(
            Finding(
                "faster",
                "note",
                "the native kernels, for quantised models, are not usable",
                "Install again where there is a C compiler.",
            )
        )
    if needs.backend == "torch" and NVIDIA.exists():
        found.append(
            Finding(
                "faster",
                "note",
                "there is an NVIDIA device, and this PyTorch does not use it",
                "Install a build of PyTorch for CUDA that suits the driver.",
            )
        )
    if sys.platform == "darwin" and platform.machine() == "arm64" and not probe_mlx().available:
        found.append(
            Finding(
                "faster",
                "note",
                "this Mac's GPU is not used without MLX",
                "pip install 'stretto[mlx]', and serve a model that mlx_lm.convert wrote.",
            )
        )
    return found
