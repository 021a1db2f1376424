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
    kv_bytes_per_token: int | None
    context_tokens: int | None
    memory: Memory


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
    largest = kv_bytes = None
    fault = ""
    if left < 0:
        fault = "the weights alone do not fit into the memory that is free"
    elif found.kv_bytes_per_token is not None and found.context_tokens is not None:
        group = LayerGroup("all", 1, 1, 1, None, found.kv_bytes_per_token)
        spec = ModelSpec("", 0, found.context_tokens, (group,), found.dtype, found.device)
        report = MemoryReport(found.weights_bytes, 0, left, found.memory.total_bytes)
        config = EngineConfig(
            max_batch=settings.max_batch,
            max_context_tokens=settings.max_context,
            kv_cache_bytes=settings.kv_cache_bytes,
            block_tokens=settings.block_tokens,
        )
        try:
            facts = plan_kv(spec, report, config)
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
        found.kv_bytes_per_token,
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
    from stretto.weights import Checkpoint, ForeignCheckpoint, ModelSource

    asked = "it was asked for"
    if isinstance(source, Checkpoint) and not isinstance(source, ForeignCheckpoint):
        reason = "only MLX reads its packing" if source.quantization is not None else "MLX wrote it"
        return _with_mlx(settings, source, asked if settings.backend == "mlx" else reason)
    if settings.backend != "native" and torch.available:
        if isinstance(source, ForeignCheckpoint):
            reason = "transformers computes it, for want of a module of ours"
        else:
            reason = "PyTorch is there, and computes as exactly as its dtype"
        reason = asked if settings.backend == "torch" and isinstance(source, ModelSource) else reason
        return _with_torch(settings, source, reason)
    if not isinstance(source, ModelSource) or settings.backend == "torch":
        return None
    support = native_support(source)
    if not support.available:
        return None
    config = source.config
    return _Computed(
        "native",
        asked if settings.backend == "native" else "PyTorch is not there, and the kernels can compute it",
        "cpu",
        "int8",
        "the kernels compute the file's own blocks",
        packed_bytes(source),
        2 * config.layers * config.kv_heads * config.head_size * _SIZES["bfloat16"],
        config.context_tokens,
        host_memory(),
    )


def _with_torch(settings: Settings, source: ModelFiles, reason: str) -> _Computed | None:
    from stretto.weights import ForeignCheckpoint, ModelSource

    try:
        from stretto.backends.torch.device import choose_device, choose_dtype
        from stretto.backends.torch.loading import weight_count
        from stretto.backends.torch.memory import device_memory
    except ImportError:
        return None
    device = choose_device(settings.device)
    memory = device_memory(device.device)
    values: int | None
    context: int | None
    if isinstance(source, ModelSource):
        config = source.config
        count, context = weight_count(source), config.context_tokens
        layers = [config.attention(number) for number in range(config.layers)]
        values = sum(2 * kind.kv_heads * kind.head_size for kind in layers if kind.kv_layer is None)
    else:
        assert isinstance(source, ForeignCheckpoint)
        count = source.parameters
        values, context = _described(source.text_values)
    dtype = choose_dtype(settings.dtype, device.device, weights=count, free_bytes=memory.free_bytes)
    size = _SIZES[dtype.name]
    return _Computed(
        "torch",
        reason,
        str(device.device),
        dtype.name,
        dtype.reason,
        count * size,
        None if values is None else values * size,
        context,
        memory,
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
    values, context = _described(source.text_values)
    return _Computed(
        "mlx",
        reason,
        device.name,
        dtype,
        why,
        weights,
        None if values is None else values * _SIZES[dtype],
        context,
        device_memory(device),
    )


def _described(values: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """(values of K and V a token, longest context) as config.json describes the usual shape; None for what it does not say."""

    def number(*keys: str) -> int | None:
        return next((values[key] for key in keys if type(values.get(key)) is int and values[key] > 0), None)

    context = number("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
    layers, heads = number("num_hidden_layers", "n_layer"), number("num_attention_heads", "n_head")
    hidden = number("hidden_size", "n_embd")
    if layers is None or heads is None or hidden is None or "kv_lora_rank" in values:
        return None, context
    kv_heads, head_size = number("num_key_value_heads") or heads, number("head_dim") or hidden // heads
    return 2 * layers * kv_heads * head_size, context
