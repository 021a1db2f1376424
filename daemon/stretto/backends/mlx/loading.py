"""From a model directory to a model of mlx-lm's with its weights, packed as the file packed them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn
import mlx.utils

from stretto.backends.base import ProgressReport
from stretto.backends.host import shown
from stretto.backends.mlx.config import prepare_config
from stretto.backends.mlx.device import DTYPES, DeviceChoice, device_memory
from stretto.backends.mlx.zoo import NotInZoo, find_architecture
from stretto.errors import StartupError
from stretto.weights.checkpoint import Checkpoint
from stretto.weights.faults import invalid, unsupported

nn: Any = mlx.nn  # its types are not exported
PHASE = "loading weights"
_PARTS = 50
_FLOATING = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes a value of the types that are cast when a dtype is asked for."""
_MODES = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}
"""Bits and group size of the formats whose scales are bytes."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device.

    Attributes:
        model: mlx-lm's module; called with tokens and caches it gives logits.
        family: ``model_type`` of config.json.
        config: as the model was built from it.
        dtype: of scales, norms and what is not packed, and so of the activations.
        dtype_reason: why that.
        packing: how the matrices are packed, e.g. ``4 bits affine, groups of 64``; ``none`` when they are not.
        nbytes: bytes of all weights.
        parameters: number of weights.
    """

    model: Any
    family: str
    config: Mapping[str, Any]
    dtype: str
    dtype_reason: str
    packing: str
    nbytes: int
    parameters: int


def load_model(
    checkpoint: Checkpoint, *, device: DeviceChoice, dtype: str, report: ProgressReport
) -> LoadedModel:
    """Build the model and read its weights, part by part.

    Args:
        checkpoint: opened, and open until this returns.
        device: where; the thread's default stream is on it.
        dtype: ``auto`` keeps what the file has; else what is not packed is cast.

    Whatever ``report`` raises passes through.

    Raises:
        StartupError: ``model_unsupported``, ``model_invalid`` or ``out_of_memory``, with the reason.
    """
    where = checkpoint.path / "config.json"
    if dtype not in DTYPES and dtype != "auto":
        raise StartupError(
            f"The dtype {dtype!r} is not known to the MLX backend.",
            code="backend_unavailable",
            remedy=f"Known are: auto, {', '.join(DTYPES)}.",
        )
    quantization = _quantization(checkpoint)
    _check_room(checkpoint, device, dtype)
    try:
        architecture = find_architecture(checkpoint.config_values)
    except NotInZoo as error:
        raise unsupported(where, str(error)) from error
    own_head = any(name.endswith("lm_head.weight") for name in checkpoint.shard_of)
    config = prepare_config(where, checkpoint.config_values, architecture, own_head=own_head)
    report(PHASE, 0.0)
    weights: dict[str, mx.array] = {}
    for shard in checkpoint.shards:
        weights.update(cast("dict[str, mx.array]", mx.load(str(shard.file.path))))
    try:
        model = architecture.build(config)
        if hasattr(model, "sanitize"):
            weights = model.sanitize(weights)
        if quantization is not None:
            _pack(model, quantization, weights)
        model.load_weights(list(weights.items()), strict=True)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, NotImplementedError) as error:
        raise invalid(
            checkpoint.path,
            f"mlx-lm's {architecture.module} cannot be built from it ({type(error).__name__}: {_short(error)})",
        ) from error
    del weights
    model.eval()
    reason = "as the file has it"
    if dtype != "auto":
        _cast(model, DTYPES[dtype])
        reason = "it was asked for"
    nbytes = _evaluate(checkpoint, model, report)
    return LoadedModel(
        model=model,
        family=architecture.model_type,
        config=config,
        dtype=_dtype_of(model),
        dtype_reason=reason,
        packing=_packing(model),
        nbytes=nbytes,
        parameters=_count(model),
    )


def _quantization(checkpoint: Checkpoint) -> Mapping[str, Any] | None:
    """How the file says it is packed, in MLX's own terms. Raises StartupError for other ways of packing."""
    if checkpoint.quantization is not None:
        return checkpoint.quantization
    for values in (checkpoint.config_values, checkpoint.text_values):
        foreign = values.get("quantization_config")
        if foreign is None:
            continue
        method = foreign.get("quant_method") if isinstance(foreign, dict) else foreign
        if method == "mxfp4":
            return {"group_size": 32, "bits": 4, "mode": "mxfp4"}
        raise unsupported(
            checkpoint.path / "config.json",
            f"quantization_config is of the kind {method!r}, which is not MLX's",
            remedy="Convert the model with mlx_lm.convert, and serve what that writes.",
        )
    return None


def _check_room(checkpoint: Checkpoint, device: DeviceChoice, dtype: str) -> None:
    """Before any weight is read, so that the machine is not driven into swapping first."""
    needed = checkpoint.weight_bytes
    if dtype != "auto":
        size = DTYPES[dtype].size
        for shard in checkpoint.shards:
            for tensor in shard.tensors.values():
                if tensor.encoding in _FLOATING:
                    needed += math.prod(tensor.shape) * (size - _FLOATING[tensor.encoding])
    free = device_memory(device).free_bytes
    if needed > free:
        raise StartupError(
            f"The weights of {checkpoint.name} take {shown(needed)}; {shown(free)} are free on {device.name}.",
            code="out_of_memory",
            remedy="Free memory, or choose a smaller model or one with fewer bits.",
        )


def _pack(model: Any, quantization: Mapping[str, Any], weights: Mapping[str, mx.array]) -> None:
    """Put packed layers where the file has packed weights; a layer may be packed in its own way.

    Raises:
        ValueError: the file's shapes fit no way of packing.
    """

    def choose(path: str, module: Any) -> bool | dict[str, Any]:
        own = quantization.get(path)
        if isinstance(own, dict):
            return dict(own)
        if own is False or not hasattr(module, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return _packed_as(path, module, weights)

    nn.quantize(
        model,
        group_size=quantization.get("group_size"),
        bits=quantization.get("bits"),
        mode=quantization.get("mode", "affine"),
        class_predicate=choose,
    )


def _packed_as(path: str, module: Any, weights: Mapping[str, mx.array]) -> dict[str, Any]:
    """How a layer's weights are packed, from their shapes: files with several ways do not list them all."""
    scales, columns = weights[f"{path}.scales"], module.weight.shape[-1]
    group_size = columns // scales.shape[-1]
    bits = weights[f"{path}.weight"].shape[-1] * 32 // columns
    if scales.dtype != mx.uint8:
        return {"group_size": group_size, "bits": bits, "mode": "affine"}
    if (bits, group_size) not in _MODES:
        raise ValueError(f"{path} is packed with {bits} bits in groups of {group_size}, which is unknown")
    return {"group_size": group_size, "bits": bits, "mode": _MODES[bits, group_size]}


def _cast(model: Any, dtype: mx.Dtype) -> None:
    """Cast what is not packed, but what the model wants kept as it is."""
    may_be_cast = getattr(model, "cast_predicate", lambda path: True)

    def converted(path: str, value: mx.array) -> mx.array:
        if mx.issubdtype(value.dtype, mx.floating) and may_be_cast(path):
            return value.astype(dtype)
        return value

    model.update(mlx.utils.tree_map_with_path(converted, model.parameters()))


def _evaluate(checkpoint: Checkpoint, model: Any, report: ProgressReport) -> int:
    """Read the weights, some at a time; bytes of all. Raises StartupError for those that are no numbers."""
    parameters = _arrays(model)
    total = sum(value.nbytes for _, value in parameters)
    done, waiting = 0, 0
    batch: list[tuple[str, mx.array]] = []
    for number, (name, value) in enumerate(parameters):
        batch.append((name, value))
        waiting += value.nbytes
        if waiting * _PARTS < total and number + 1 < len(parameters):
            continue
        sound = [mx.isfinite(array).all() for _, array in batch if mx.issubdtype(array.dtype, mx.floating)]
        mx.eval([array for _, array in batch], sound)
        if not all(bool(found.item()) for found in sound):
            raise invalid(checkpoint.path, f"{_unsound(batch)} has values that are not finite numbers")
        done, waiting, batch = done + waiting, 0, []
        report(PHASE, done / total)
    return total


def _unsound(batch: list[tuple[str, mx.array]]) -> str:
    for name, array in batch:
        if mx.issubdtype(array.dtype, mx.floating) and not bool(mx.isfinite(array).all().item()):
            return f"tensor {name}"
    return "a tensor"


def _arrays(module: Any) -> list[tuple[str, mx.array]]:
    return cast("list[tuple[str, mx.array]]", mlx.utils.tree_flatten(module.parameters()))


def _modules(model: Any) -> list[Any]:
    found: Any = mlx.utils.tree_flatten(
        model.leaf_modules(), is_leaf=lambda item: isinstance(item, nn.Module)
    )
    return [module for _, module in found]


def _count(model: Any) -> int:
    """Weights, the packed ones too."""
    total = 0
    for module in _modules(model):
        bits = getattr(module, "bits", None)
        for name, value in _arrays(module):
            if bits is None or name == "bias":
                total += value.size
            elif name == "weight":
                total += value.size * 32 // bits
    return total


def _packing(model: Any) -> str:
    """The ways in which matrices are packed, the commonest first."""
    ways: dict[str, int] = {}
    for module in _modules(model):
        if hasattr(module, "bits"):
            way = f"{module.bits} bits {getattr(module, 'mode', 'affine')}, groups of {module.group_size}"
            ways[way] = ways.get(way, 0) + 1
    ordered = sorted(ways.items(), key=lambda item: -item[1])
    if len(ordered) < 2:
        return ordered[0][0] if ordered else "none"
    return "; ".join(f"{way} ({count} matrices)" for way, count in ordered)


def _dtype_of(model: Any) -> str:
    """The commonest floating dtype, by bytes."""
    found: dict[str, int] = {}
    for _, value in _arrays(model):
        if mx.issubdtype(value.dtype, mx.floating):
            name = str(value.dtype).removeprefix("mlx.core.")
            found[name] = found.get(name, 0) + value.nbytes
    return max(found, key=lambda name: found[name], default="float32")


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
