"""What a model will need on this machine: which backend computes it and why, memory for weights and KV, and how long a context fits.

Headers and settings are read, no weights. The figures are what the backends themselves go by when they load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stretto.backends.base import BackendInfo, LayerGroup, MemoryReport, ModelSpec
from stretto.backends.host import Memory, host_memory
from stretto.engine import EngineConfig, plan_kv
from stretto.errors import StartupError

if TYPE_CHECKING:
    from stretto.settings import Settings
    from stretto.weights import Checkpoint, ModelFiles, ModelSource

_SIZES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class ModelNeeds:
    """The forecast.

    Attributes:
        backend: ``native``, ``torch`` or ``mlx``; backend_reason: why that one.
        device, dtype: of the computation; dtype_reason: why that dtype.
        weights_bytes: memory that the weights take.
        kv_dtype: what keys and values are kept in.
        kv_bytes_per_token: of all layers; None where only loading tells.
        free_bytes: memory that is free there now, before loading.
        model_context_tokens: the longest context the model was made for; None where only loading tells.
        largest_context_tokens: the longest that will be served; None when nothing fits, or it cannot be told.
        kv_bytes: KV memory that will be allocated for it.
        fault: why it does not fit, in one sentence; empty when it does.
    """

    backend: str
    backend_reason: str
    device: str
    dtype: str
    dtype_reason: str
    weights_bytes: int
    kv_dtype: str
    kv_bytes_per_token: int | None
    free_bytes: int
    model_context_tokens: int | None
    largest_context_tokens: int | None
    kv_bytes: int | None
    fault: str

    def as_json(self) -> dict[str, object]:
        """The same as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Computed:
    """How a backend would hold a model."""

    backend: str
    reason: str
    device: str
    dtype: str
    dtype_reason: str
    weights_bytes: int
    layer_groups: tuple[LayerGroup, ...] | None
    context_tokens: int | None
    memory: Memory
    kv_dtype: str
    partly_elsewhere: bool = False


def engine_config(settings: Settings) -> EngineConfig:
    """The engine's part of the settings."""
    return EngineConfig(
        max_batch=settings.max_batch,
        max_context_tokens=settings.max_context,
        kv_cache_bytes=settings.kv_cache_bytes,
        block_tokens=settings.block_tokens,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        prefix_cache=settings.prefix_cache == "on",
        stall_target_s=settings.stall_target_s,
        speculation=settings.speculation == "on",
    )


def model_needs(settings: Settings, source: ModelFiles, torch: BackendInfo) -> ModelNeeds | None:
    """Forecast.

    Args:
        settings: which backend, device, dtype, context and KV budget are asked for.
        source: an opened model, as ``open_source`` gives it.
        torch: what the torch backend says of this machine.

    Returns:
        None when no backend here computes the model.

    Raises:
        StartupError: a device or dtype that is not there.
    """
    found = _computed(settings, source, torch)
    if found is None:
        return None
    left = found.memory.free_bytes - found.weights_bytes
    groups = found.layer_groups
    largest = kv_bytes = None
    fault = ""
    if found.partly_elsewhere:
        pass  # how much is left beside the layers on the device, only loading tells
    elif left < 0:
        fault = "the weights alone do not fit into the memory that is free"
    elif groups is not None and found.context_tokens is not None:
        spec = ModelSpec("", 0, found.context_tokens, groups, found.dtype, found.device)
        report = MemoryReport(found.weights_bytes, 0, left, found.memory.total_bytes)
        try:
            facts = plan_kv(spec, report, engine_config(settings))
            largest, kv_bytes = facts.max_context_tokens, facts.kv_bytes
        except StartupError as error:
            fault = error.message.rstrip(".")
        if kv_bytes is not None and kv_bytes > left:
            fault = (
                f"a KV cache of {kv_bytes} bytes was asked for, and {left} bytes are left beside the weights"
            )
    return ModelNeeds(
        found.backend,
        found.reason,
        found.device,
        found.dtype,
        found.dtype_reason,
        found.weights_bytes,
        found.kv_dtype,
        None if groups is None else sum(group.kv_bytes_per_token for group in groups),
        found.memory.free_bytes,
        found.context_tokens,
        largest if not fault else None,
        kv_bytes if not fault else None,
        fault,
    )


def packed_bytes(source: ModelSource) -> int:
    """Bytes of a model's weights as the file has them, which is how the native backend holds them."""
    return sum(source.raw(name).nbytes for name in source.tensor_names())


def _computed(settings: Settings, source: ModelFiles, torch: BackendInfo) -> _Computed | None:
    """The rules of ``stretto.chosen``, which makes the backend."""
    from stretto.backends.native import native_support
    from stretto.backends.native.kv_format import kv_layer_groups, resolved_kv_dtype
    from stretto.chosen import native_is_best, native_may
    from stretto.chosen_prefill import prompt_bytes
    from stretto.weights import Checkpoint, ForeignCheckpoint, ModelSource

    asked = "it was asked for"
    if isinstance(source, Checkpoint) and not isinstance(source, ForeignCheckpoint):
        reason = "only MLX reads its packing" if source.quantization is not None else "MLX wrote it"
        return _with_mlx(settings, source, asked if settings.backend == "mlx" else reason)
    if isinstance(source, ForeignCheckpoint):
        reason = "transformers computes it, for want of a module of ours"
        return _with_torch(settings, source, reason) if torch.available else None
    assert isinstance(source, ModelSource)
    native = native_support(source)
    best = native_is_best(settings, native)
    if native_may(settings, available=native.available) and (
        settings.backend == "native" or best or not torch.available
    ):
        reason = (
            "its weights are quantised, and no GPU is to compute them" if best else "PyTorch is not there"
        )
        return _Computed(
            "native",
            asked if settings.backend == "native" else reason,
            "cpu",
            f"int{settings.activation_bits}",
            "the kernels compute the file's own blocks",
            packed_bytes(source) + (prompt_bytes(source) if settings.prefill == "torch" else 0),
            kv_layer_groups(source.config, kv_dtype := resolved_kv_dtype(settings.kv_dtype)),
            source.config.context_tokens,
            host_memory(),
            kv_dtype,
        )
    if settings.backend == "native" or not torch.available:
        return None
    reason = asked
    if settings.backend != "torch":
        reason = (
            "it computes as exactly as its dtype"
            if not native.quantised
            else "the kernels cannot do what is asked for"
        )
    return _with_torch(settings, source, reason)


def _with_torch(settings: Settings, source: ModelFiles, reason: str) -> _Computed | None:
    from stretto.weights import ForeignCheckpoint, ModelSource

    try:
        from stretto.backends.torch.device import choose_device, choose_dtype
        from stretto.backends.torch.layout import lay_out
        from stretto.backends.torch.loading import weight_count
        from stretto.backends.torch.memory import device_memory
    except ImportError:
        return None
    device = choose_device(settings.device)
    memory = device_memory(device.device)
    context: int | None
    if isinstance(source, ModelSource):
        count, context = weight_count(source), source.config.context_tokens
    else:
        assert isinstance(source, ForeignCheckpoint)
        count = source.parameters
        context = _context(source.text_values)
    dtype = choose_dtype(settings.dtype, device.device, weights=count, free_bytes=memory.free_bytes)
    size = _SIZES[dtype.name]
    if isinstance(source, ModelSource):
        groups: tuple[LayerGroup, ...] | None = lay_out(source.config).layer_groups(size)
    else:
        groups = _described(source.text_values, size)
    return _Computed(
        "torch",
        reason,
        str(device.device),
        dtype.name,
        dtype.reason,
        count * size,
        groups,
        context,
        memory,
        dtype.name,
        partly_elsewhere=settings.offload == "cpu",
    )


def _with_mlx(settings: Settings, source: Checkpoint, reason: str) -> _Computed | None:
    from stretto.backends.mlx import probe

    if not probe().available:
        return None
    from stretto.backends.mlx.device import choose_device, device_memory

    device = choose_device(settings.device)
    dtype, why, weights = settings.dtype, "it was asked for", source.weight_bytes
    if dtype == "auto":
        encodings = [tensor.encoding for shard in source.shards for tensor in shard.tensors.values()]
        kinds = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
        floating = [kinds[encoding] for encoding in encodings if encoding in kinds]
        dtype, why = max(set(floating), key=floating.count, default="float32"), "as the file has it"
    elif source.quantization is None:
        numbers = sum(math.prod(tensor.shape) for shard in source.shards for tensor in shard.tensors.values())
        weights = numbers * _SIZES[dtype]
    return _Computed(
        "mlx",
        reason,
        device.name,
        dtype,
        why,
        weights,
        _described(source.text_values, _SIZES[dtype]),
        _context(source.text_values),
        device_memory(device),
        dtype,
    )


def _context(values: Mapping[str, Any]) -> int | None:
    """The longest context, where config.json says it."""
    return _number(values, "max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")


def _described(values: Mapping[str, Any], itemsize: int) -> tuple[LayerGroup, ...] | None:
    """Keys and values as config.json describes the usual shape, windows left out; None for what it does not say."""
    layers, heads = (
        _number(values, "num_hidden_layers", "n_layer"),
        _number(values, "num_attention_heads", "n_head"),
    )
    hidden = _number(values, "hidden_size", "n_embd")
    if layers is None or heads is None or hidden is None or "kv_lora_rank" in values:
        return None
    kv_heads = _number(values, "num_key_value_heads") or heads
    head_size = _number(values, "head_dim") or hidden // heads
    size = 2 * layers * kv_heads * head_size * itemsize
    return (LayerGroup("full", layers, kv_heads, head_size, None, size),)


def _number(values: Mapping[str, Any], *keys: str) -> int | None:
    return next((values[key] for key in keys if type(values.get(key)) is int and values[key] > 0), None)
