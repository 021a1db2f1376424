"""The backend's inside once PyTorch is there: a loaded model, its KV pool, and steps over them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch

from stretto.backends.base import (
    BackendFailure,
    BackendLost,
    BackendOutOfMemory,
    Chunk,
    Float32Array,
    KVPlan,
    MemoryReport,
    ModelSpec,
    ProgressReport,
)
from stretto.backends.chunks import StepLimits
from stretto.backends.host import host_memory, shown
from stretto.backends.torch.building import load_decoder
from stretto.backends.torch.decoder import StepTensors
from stretto.backends.torch.device import choose_device, choose_dtype, choose_threads
from stretto.backends.torch.kv import KVPool
from stretto.backends.torch.layout import KVLayout
from stretto.backends.torch.linear import choose_projection
from stretto.backends.torch.loading import layer_counts, weight_count
from stretto.backends.torch.memory import device_memory
from stretto.backends.torch.offload import Offload, Offloader, layers_that_fit
from stretto.backends.torch.placing import place_step
from stretto.backends.torch.plan import Span, StepPlan, plan_step
from stretto.errors import StartupError
from stretto.weights.foreign import ForeignCheckpoint
from stretto.weights.source import ModelSource

_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")
_LOST = ("cuda error", "cublas_status", "cudnn_status", "device-side assert", "nvml")


Source = ModelSource | ForeignCheckpoint


class LoadedModel(Protocol):
    """What computes, whoever wrote it.

    Attributes:
        family, vocab_size, context_tokens, parameters: see ModelSpec.
        layout: where its keys and values lie.
        nbytes: of its weights.
    """

    family: str
    vocab_size: int
    context_tokens: int
    parameters: int
    layout: KVLayout
    nbytes: int

    def forward(self, step: StepTensors) -> torch.Tensor:
        """Run a step: write keys and values of its tokens, and give float32 [logit rows, vocab]."""
        ...


class Runtime:
    """A loaded model. Made and used on one thread; PyTorch's thread count is that thread's own."""

    def __init__(
        self,
        source: Source,
        *,
        device: str,
        dtype: str,
        threads: int | None,
        context_tokens: int | None,
        offload: Offload | None,
        report: ProgressReport,
    ) -> None:
        """Choose device, dtype and threads, then load. Raises StartupError, and what ``report`` raises."""
        self._device_choice = choose_device(device)
        self._device = self._device_choice.device
        self._dtype_choice = choose_dtype(
            dtype,
            self._device,
            weights=_weights(source),
            free_bytes=device_memory(self._device).free_bytes,
            # Gemma's embeddings are scaled up, and its residual stream grows far beyond what norms let out of it.
            float16_overflows=isinstance(source, ModelSource) and source.config.residual_norms,
        )
        self._dtype = self._dtype_choice.dtype
        self._threads = choose_threads(threads)
        torch.set_num_threads(self._threads.threads)
        self._projection = choose_projection(self._device, self._dtype)
        self._offloader: Offloader | None = None
        self._offloaded_bytes = 0
        self._gpu_layers: int | None = None
        if offload is not None:
            self._plan_offload(source, offload)
        self._foreign = source if isinstance(source, ForeignCheckpoint) else None
        self._pools: tuple[KVPool, ...] = ()
        self._steps = self._tokens = self._gathered = 0
        self._check_room(source)
        try:
            with torch.inference_mode():
                self._model = self._load(source, context_tokens, report)
        except RuntimeError as error:
            if isinstance(failure := translate(error), BackendOutOfMemory):
                raise self._no_room(source) from failure
            raise

    def _load(self, source: Source, context_tokens: int | None, report: ProgressReport) -> LoadedModel:
        if isinstance(source, ForeignCheckpoint):
            from stretto.backends.torch.foreign import load_foreign

            return load_foreign(source, device=self._device, dtype=self._dtype, report=report)
        return load_decoder(
            source,
            context_tokens=context_tokens or source.config.context_tokens,
            device=self._device,
            dtype=self._dtype,
            projection=self._projection,
            report=report,
            gpu_layers=self._gpu_layers,
            offloader=self._offloader,
        )

    def _plan_offload(self, source: Source, asked: Offload) -> None:
        """Choose the layers whose matrices stay in the host's memory."""
        if isinstance(source, ForeignCheckpoint):
            raise StartupError(
                f"{source.reason} Models that transformers computes cannot be offloaded.",
                code="model_unsupported",
                remedy="Leave --offload out.",
            )
        host = torch.device("cpu")
        sizes = [count * self._dtype.itemsize for count in layer_counts(source)]
        self._gpu_layers = asked.gpu_layers
        if self._gpu_layers is None:
            rest = weight_count(source) * self._dtype.itemsize - sum(sizes)
            free = device_memory(self._device).free_bytes
            self._gpu_layers = layers_that_fit(sizes, rest, free)
        self._gpu_layers = min(self._gpu_layers, len(sizes))
        self._offloaded_bytes = sum(sizes[self._gpu_layers :])
        self._offloader = Offloader(
            asked,
            device=self._device,
            on_device=self._projection.make,
            on_host=choose_projection(host, self._dtype).make,
            host=host,
        )

    @property
    def spec(self) -> ModelSpec:
        """See ModelSpec."""
        model = self._model
        return ModelSpec(
            family=model.family,
            vocab_size=model.vocab_size,
            context_tokens=model.context_tokens,
            layer_groups=model.layout.layer_groups(self._dtype.itemsize),
            dtype=self._dtype_choice.name,
            device=str(self._device),
            parameters=model.parameters,
            weight_bytes=model.nbytes,
        )

    def allocate(self, plan: KVPlan) -> None:
        """See Backend."""
        groups = self._model.layout.groups
        if len(plan.blocks) != len(groups) or plan.block_tokens < 1 or min(plan.blocks) < 1:
            has = "one layer group" if len(groups) == 1 else f"{len(groups)} layer groups"
            raise BackendFailure(
                f"a KV plan for this model has {has} and at least one block each, not {plan}"
            )
        self._pools = ()
        wanted = plan.block_tokens * sum(
            blocks * group.token_bytes(self._dtype.itemsize)
            for blocks, group in zip(plan.blocks, groups, strict=True)
        )
        free = device_memory(self._device).free_bytes
        if wanted > free:
            raise BackendOutOfMemory(
                f"the KV cache of {' + '.join(map(str, plan.blocks))} blocks of {plan.block_tokens} tokens takes"
                f" {shown(wanted)}; {shown(free)} are free on {self._device}"
            )
        with translated(f"allocating {shown(wanted)} of KV cache with {shown(free)} free on {self._device}"):
            self._pools = tuple(
                KVPool(
                    layers=group.layers,
                    kv_heads=group.kv_heads,
                    head_size=group.head_size,
                    block_tokens=plan.block_tokens,
                    blocks=blocks,
                    dtype=self._dtype,
                    device=self._device,
                )
                for blocks, group in zip(plan.blocks, groups, strict=True)
            )

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        """See Backend."""
        block_tokens = self._group(0).block_tokens
        plan = plan_step(
            batch,
            StepLimits(
                block_tokens,
                tuple(pool.blocks for pool in self._pools),
                tuple(group.window_tokens for group in self._model.layout.groups),
                self._model.vocab_size,
                self._model.context_tokens,
            ),
        )
        with translated(f"a step of {len(plan.token_ids)} tokens in {len(batch)} sequences"):
            logits = self._model.forward(place_step(plan, self._pools, self._device, self._dtype))
            result: Float32Array = logits.cpu().numpy()
        self._steps += 1
        self._tokens += len(plan.token_ids)
        scattered = (
            any(span.run_start is None for span in spans) for spans in zip(*_spans(plan), strict=True)
        )
        self._gathered += sum(scattered)
        return result

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """See Backend."""
        with translated("copying blocks"):
            self._group(group).copy(pairs)

    def read_block(self, group: int, block: int) -> bytes:
        """See Backend."""
        with translated("reading a block"):
            return self._group(group).read(block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """See Backend."""
        with translated("writing a block"):
            self._group(group).write_block(block, data)

    def _group(self, group: int) -> KVPool:
        """The KV pool of a layer group. Raises BackendFailure before ``allocate``, and for a group there is not."""
        if not self._pools:
            raise BackendFailure("no KV memory has been allocated")
        if not 0 <= group < len(self._pools):
            raise BackendFailure(
                f"layer group {group} does not exist; this model has {len(self._pools)}, from 0"
            )
        return self._pools[group]

    @property
    def _kv_bytes(self) -> int:
        return sum(pool.nbytes for pool in self._pools)

    def memory(self) -> MemoryReport:
        """See Backend."""
        memory = device_memory(self._device)
        return MemoryReport(self._model.nbytes, self._kv_bytes, memory.free_bytes, memory.total_bytes)

    def stats(self) -> dict[str, object]:
        """Facts with their reasons, and counters since load."""
        return {
            "device": str(self._device),
            "device_reason": self._device_choice.reason,
            "dtype": self._dtype_choice.name,
            "dtype_reason": self._dtype_choice.reason,
            "threads": self._threads.threads,
            "threads_reason": self._threads.reason,
            "matmul": self._projection.name,
            "matmul_reason": self._projection.reason,
            "torch": str(torch.__version__),
            **self._model_code(),
            **({} if self._offloader is None else {"offload": self._offload_stats(self._offloader)}),
            "weights_bytes": self._model.nbytes,
            "kv_bytes": self._kv_bytes,
            "steps": self._steps,
            "tokens": self._tokens,
            "gathered_sequences": self._gathered,
        }

    def _offload_stats(self, offloader: Offloader) -> dict[str, object]:
        return {"gpu_layers": self._gpu_layers, **offloader.stats()}

    def _model_code(self) -> dict[str, object]:
        """Whose code computes, where it is not ours."""
        if self._foreign is None:
            return {}
        return {
            "model_code": "transformers",
            "model_code_reason": self._foreign.reason,
            "prefix_reuse": "whole, since all that its layers keep are keys and values by position",
        }

    def _check_room(self, source: Source) -> None:
        """Before any weight is read, so that the machine is not driven into swapping first."""
        needed = _weights(source) * self._dtype.itemsize - self._offloaded_bytes
        if needed > device_memory(self._device).free_bytes or (
            self._device.type != "cpu" and self._offloaded_bytes > host_memory().free_bytes
        ):
            raise self._no_room(source)

    def _no_room(self, source: Source) -> StartupError:
        free = device_memory(self._device).free_bytes
        return StartupError(
            f"The weights of {source.name} take {shown(_weights(source) * self._dtype.itemsize)} in"
            f" {self._dtype_choice.name}; {shown(free)} are free on {self._device}.",
            code="out_of_memory",
            remedy="Free memory, or choose a smaller model or a 16-bit dtype.",
        )


def _weights(source: Source) -> int:
    return source.parameters if isinstance(source, ForeignCheckpoint) else weight_count(source)


def _spans(plan: StepPlan) -> Iterator[Sequence[Span]]:
    return (group.spans for group in plan.groups)


def release() -> None:
    """Give freed memory back to the device, after the last reference to a Runtime has gone."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Run under inference mode, and turn what PyTorch raises into the backend's failures."""
    try:
        with torch.inference_mode():
            yield
    except (RuntimeError, IndexError, ValueError, MemoryError) as error:
        raise translate(error, doing) from error


def translate(error: Exception, doing: str = "a computation") -> BackendFailure:
    """Which failure an exception of PyTorch is.

    PyTorch has types for CUDA's out-of-memory only; the CPU allocator and CUDA's runtime speak through RuntimeError's
    text. An asynchronous CUDA error leaves the context unusable, so each of them means that the device is lost.
    """
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    low = text.lower()
    kind: Callable[[str], BackendFailure] = BackendFailure
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(
        mark in low for mark in _OUT_OF_MEMORY
    ):
        kind = BackendOutOfMemory
    elif any(mark in low for mark in _LOST):
        kind = BackendLost
    return kind(f"{doing} failed: {text}")
