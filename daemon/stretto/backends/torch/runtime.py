"""The backend's inside once PyTorch is there: a loaded model, its KV pool, and steps over them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from stretto.backends.base import (
    BackendFailure,
    BackendLost,
    BackendOutOfMemory,
    Chunk,
    Float32Array,
    KVPlan,
    LayerGroup,
    MemoryReport,
    ModelSpec,
    ProgressReport,
)
from stretto.backends.host import shown
from stretto.backends.torch.attention import plan_attention
from stretto.backends.torch.device import choose_device, choose_dtype, choose_threads
from stretto.backends.torch.kv import KVPool
from stretto.backends.torch.linear import choose_projection
from stretto.backends.torch.llama import Llama, StepTensors
from stretto.backends.torch.loading import load_weights, weight_count
from stretto.backends.torch.memory import device_memory
from stretto.backends.torch.plan import StepPlan, plan_step
from stretto.backends.torch.rope import Rope
from stretto.errors import StartupError
from stretto.weights.source import ModelSource

_OUT_OF_MEMORY = ("not enough memory", "out of memory", "can't allocate memory")
_LOST = ("cuda error", "cublas_status", "cudnn_status", "device-side assert", "nvml")


class Runtime:
    """A loaded model. Made and used on one thread; PyTorch's thread count is that thread's own."""

    def __init__(
        self, source: ModelSource, *, device: str, dtype: str, threads: int | None, report: ProgressReport
    ) -> None:
        """Choose device, dtype and threads, then load. Raises StartupError, and what ``report`` raises."""
        self._device_choice = choose_device(device)
        self._device = self._device_choice.device
        self._dtype_choice = choose_dtype(
            dtype,
            self._device,
            weights=weight_count(source),
            free_bytes=device_memory(self._device).free_bytes,
        )
        self._dtype = self._dtype_choice.dtype
        self._threads = choose_threads(threads)
        torch.set_num_threads(self._threads.threads)
        self._projection = choose_projection(self._device, self._dtype)
        self._config = source.config
        self._pool: KVPool | None = None
        self._steps = self._tokens = self._gathered = 0
        self._check_room(source)
        try:
            with torch.inference_mode():
                self._weights = load_weights(
                    source, device=self._device, dtype=self._dtype, projection=self._projection, report=report
                )
                rope = Rope(self._config.rope, device=self._device, dtype=self._dtype)
        except RuntimeError as error:
            if isinstance(failure := translate(error), BackendOutOfMemory):
                raise self._no_room(source) from failure
            raise
        self._model = Llama(self._config, self._weights, rope)

    @property
    def spec(self) -> ModelSpec:
        """See ModelSpec."""
        config = self._config
        kv_bytes = 2 * config.layers * config.kv_heads * config.head_size * self._dtype.itemsize
        return ModelSpec(
            family=config.family,
            vocab_size=config.vocab_size,
            context_tokens=config.context_tokens,
            layer_groups=(
                LayerGroup("full", config.layers, config.kv_heads, config.head_size, None, kv_bytes),
            ),
            dtype=self._dtype_choice.name,
            device=str(self._device),
            parameters=self._weights.parameters,
            weight_bytes=self._weights.nbytes,
        )

    def allocate(self, plan: KVPlan) -> None:
        """See Backend."""
        if len(plan.blocks) != 1 or plan.block_tokens < 1 or plan.blocks[0] < 1:
            raise BackendFailure(
                f"a KV plan for this model has one layer group and at least one block, not {plan}"
            )
        self._pool = None
        wanted = plan.block_tokens * plan.blocks[0] * self.spec.kv_bytes_per_token
        free = device_memory(self._device).free_bytes
        if wanted > free:
            raise BackendOutOfMemory(
                f"the KV cache of {plan.blocks[0]} blocks of {plan.block_tokens} tokens takes {shown(wanted)};"
                f" {shown(free)} are free on {self._device}"
            )
        with translated(f"allocating {shown(wanted)} of KV cache with {shown(free)} free on {self._device}"):
            self._pool = KVPool(
                layers=self._config.layers,
                kv_heads=self._config.kv_heads,
                head_size=self._config.head_size,
                block_tokens=plan.block_tokens,
                blocks=plan.blocks[0],
                dtype=self._dtype,
                device=self._device,
            )

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        """See Backend."""
        pool = self._group(0)
        plan = plan_step(
            batch,
            block_tokens=pool.block_tokens,
            blocks=pool.blocks,
            vocab_size=self._config.vocab_size,
            context_tokens=self._config.context_tokens,
        )
        with translated(f"a step of {len(plan.token_ids)} tokens in {len(batch)} sequences"):
            logits = self._model.forward(self._place(plan, pool), pool)
            result: Float32Array = logits.cpu().numpy()
        self._steps += 1
        self._tokens += len(plan.token_ids)
        self._gathered += sum(span.run_start is None for span in plan.spans)
        return result

    def _place(self, plan: StepPlan, pool: KVPool) -> StepTensors:
        def placed(values: object) -> torch.Tensor:
            return torch.as_tensor(values).to(self._device)

        return StepTensors(
            token_ids=placed(plan.token_ids),
            positions=placed(plan.positions),
            slots=placed(plan.slots),
            slot_run=plan.slot_run,
            attention=plan_attention(
                plan, pool, device=self._device, dtype=self._dtype, batch_decodes=self._device.type != "cpu"
            ),
            logit_rows=placed(plan.logit_rows),
        )

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
        if group != 0:
            raise BackendFailure(f"layer group {group} does not exist; this model has one, number 0")
        if self._pool is None:
            raise BackendFailure("no KV memory has been allocated")
        return self._pool

    def memory(self) -> MemoryReport:
        """See Backend."""
        memory = device_memory(self._device)
        kv_bytes = self._pool.nbytes if self._pool is not None else 0
        return MemoryReport(self._weights.nbytes, kv_bytes, memory.free_bytes, memory.total_bytes)

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
            "weights_bytes": self._weights.nbytes,
            "kv_bytes": self._pool.nbytes if self._pool is not None else 0,
            "steps": self._steps,
            "tokens": self._tokens,
            "gathered_sequences": self._gathered,
        }

    def _check_room(self, source: ModelSource) -> None:
        """Before any weight is read, so that the machine is not driven into swapping first."""
        if weight_count(source) * self._dtype.itemsize > device_memory(self._device).free_bytes:
            raise self._no_room(source)

    def _no_room(self, source: ModelSource) -> StartupError:
        free = device_memory(self._device).free_bytes
        return StartupError(
            f"The weights of {source.name} take {shown(weight_count(source) * self._dtype.itemsize)} in"
            f" {self._dtype_choice.name}; {shown(free)} are free on {self._device}.",
            code="out_of_memory",
            remedy="Free memory, or choose a smaller model or a 16-bit dtype.",
        )


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
