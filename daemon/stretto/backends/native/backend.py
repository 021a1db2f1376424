"""NativeBackend: the Backend protocol over the C kernels. It needs numpy and nothing else."""

from __future__ import annotations

import ctypes
import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stretto.backends.base import (
    BackendFailure,
    BackendOutOfMemory,
    Chunk,
    Float32Array,
    KVPlan,
    MemoryReport,
    ModelSpec,
    ProgressReport,
)
from stretto.backends.host import host_memory, shown, usable_cores
from stretto.backends.native.kv_format import KV_FORMAT_NUMBERS, kv_layer_groups, resolved_kv_dtype
from stretto.backends.native.library import (
    ENCODING_NUMBERS,
    Batch,
    Cache,
    Library,
    Op,
    Outcome,
    Plan,
    address,
)
from stretto.backends.native.packed import PackedWeights
from stretto.backends.native.prefill import Prefill, PrefillPlan
from stretto.backends.native.program import Program, decoder_program
from stretto.backends.native.support import native_support
from stretto.backends.pages import sparse_bytes
from stretto.errors import StartupError
from stretto.weights.blocks import ENCODINGS
from stretto.weights.config import ModelConfig
from stretto.weights.source import ModelSource

PHASE = "packing weights"
_QUANTISED = frozenset(name for name, encoding in ENCODINGS.items() if encoding.block_values > 1)
_FAULTS = {
    2: "token id {value} is not in the vocabulary of {vocab}",
    3: "block {value} is not in 0 to {last}, the range of the pool",
    4: "its positions, block table and logit_rows do not fit together",
}


class NativeBackend:
    """See ``stretto.backends.base.Backend``.

    Matrices stay as the file quantised them; activations are quantised to nearly 16 bits (or 8) in groups of 32 with float32
    scales, products are summed exactly in a group and in float32 between groups. Everything else is float32; K and V are kept
    in bfloat16, float32 or int8. Every row is computed from its own sequence alone.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        threads: int | None = None,
        kv_dtype: str = "auto",
        activation_bits: int = 16,
        instruction_set: str = "",
        prefill: PrefillPlan | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            source: an opened model; must be open during ``load``.
            threads: compute threads; None takes all usable processors (their barriers sleep when one is taken away).
            kv_dtype: ``auto`` (bfloat16), ``bfloat16``, ``float32`` or ``int8``: in groups of 32 of a token's head, each with a
                bfloat16 scale, as llama.cpp's ``q8_0`` (whose scales are float16).
            activation_bits: 16 or 8, see ``decoder_program``. With 8, prompts and batches are computed up to twice as fast, and the
                next token's distribution is some 25 times as far from that of float32.
            instruction_set: kernels to use, one of ``Library.kernels``; empty takes the best.
            prefill: how PyTorch may compute prompts; None leaves them to the kernels.
        """
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}; it is a whole number from 1")
        if activation_bits not in (8, 16):
            raise ValueError(f"activation_bits is {activation_bits}; it is 8 or 16")
        self._source = source
        self._threads = usable_cores() if threads is None else threads
        self._activation_bits = activation_bits
        self._kv_dtype = resolved_kv_dtype(kv_dtype)
        self._instruction_set = instruction_set
        self._prefill = None if prefill is None else Prefill(prefill)
        self._loaded: LoadedModel | None = None

    def load(self, report: ProgressReport) -> ModelSpec:
        """See Backend.

        Raises:
            StartupError: ``backend_unavailable`` with the reason, ``out_of_memory``, ``model_invalid``.
        """
        self.close()
        support = native_support(self._source, self._instruction_set)
        if not support.available:
            raise StartupError(
                f"The native kernels cannot compute {self._source.name}: {support.reason}.",
                code="backend_unavailable",
                remedy="Let the torch backend compute.",
            )
        loaded = LoadedModel(
            self._source, self._threads, self._kv_dtype, self._activation_bits, support.kernels
        )
        try:
            loaded.load(report)
            if self._prefill is not None:
                self._prefill.load(report)
        except BaseException:
            loaded.close()
            raise
        self._loaded = loaded
        return dataclasses.replace(loaded.spec, weight_bytes=self._weight_bytes)

    def allocate(self, plan: KVPlan) -> None:
        """See Backend."""
        model = self._model()
        model.allocate(plan)
        if self._prefill is not None:
            self._prefill.attach(
                model.pool(0),
                model.forward,
                kv_dtype=self._kv_dtype,
                block_tokens=plan.block_tokens,
                vocab=model.spec.vocab_size,
            )

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        """See Backend."""
        model = self._model()
        if self._prefill is not None and batch:
            model.pool(0)
            batch = self._prefill.take(batch)
            if not batch:
                return np.empty((0, model.spec.vocab_size), dtype=np.float32)
        return model.forward(batch)

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        """See Backend."""
        pool = self._model().pool(group)
        for source, destination in pairs:
            _in_pool(source, pool)
            _in_pool(destination, pool)
            pool[:, destination] = pool[:, source]

    def read_block(self, group: int, block: int) -> bytes:
        """See Backend: [layers, kv_heads, keys by dimension then values by token] in the dtype of the cache, and int8's scales."""
        pool = self._model().pool(group)
        _in_pool(block, pool)
        return pool[:, block].tobytes()

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """See Backend."""
        pool = self._model().pool(group)
        _in_pool(block, pool)
        target = pool[:, block]
        if len(data) != target.nbytes:
            raise BackendFailure(f"a block has {target.nbytes} bytes, {len(data)} were given")
        target[...] = np.frombuffer(data, dtype=np.uint8).reshape(target.shape)

    def memory(self) -> MemoryReport:
        """See Backend."""
        memory = host_memory()
        model = self._model()
        return MemoryReport(self._weight_bytes, model.kv_bytes, memory.free_bytes, memory.total_bytes)

    def stats(self) -> dict[str, object]:
        """See Backend; empty of counters before ``load``."""
        if self._loaded is None:
            return {"loaded": False}
        prefill = {} if self._prefill is None else {"prefill": self._prefill.stats()}
        return {"loaded": True, **self._loaded.stats(), **prefill}

    def close(self) -> None:
        """See Backend. Weights, KV and threads are given back; ``load`` may be called again."""
        if self._prefill is not None:
            self._prefill.close()
        if self._loaded is not None:
            self._loaded.close()
        self._loaded = None

    @property
    def _weight_bytes(self) -> int:
        return self._model().weight_bytes + (0 if self._prefill is None else self._prefill.nbytes)

    def _model(self) -> LoadedModel:
        if self._loaded is None:
            raise BackendFailure("the model is not loaded")
        return self._loaded


class LoadedModel:
    """A packed model, its threads, its cache, and steps over them."""

    def __init__(
        self, source: ModelSource, threads: int, kv_dtype: str, activation_bits: int, kernels: str
    ) -> None:
        self._source = source
        self._config: ModelConfig = source.config
        self._threads, self._kv_dtype, self._kernels = threads, kv_dtype, kernels
        self._activation_bits = activation_bits
        self._library = Library()
        self._weights: PackedWeights | None = None
        self._threads_pool: int | None = None
        self._model: int | None = None
        self._plan = Plan()
        self._kept: list[object] = []
        self._cache: npt.NDArray[np.uint8] | None = None
        self._block_tokens = 0
        self._steps = self._tokens = 0
        self.weight_bytes = 0

    @property
    def spec(self) -> ModelSpec:
        """See ModelSpec."""
        config = self._config
        return ModelSpec(
            family=config.family,
            vocab_size=config.vocab_size,
            context_tokens=config.context_tokens,
            layer_groups=kv_layer_groups(config, self._kv_dtype),
            dtype=f"int{self._activation_bits}",
            device="cpu",
            parameters=sum(math.prod(shape) for shape in config.tensor_shapes().values()),
            weight_bytes=self.weight_bytes,
            kv_dtype=self._kv_dtype,
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of the cache."""
        return 0 if self._cache is None else self._cache.nbytes

    def load(self, report: ProgressReport) -> None:
        """Pack the weights and lay out the program. Raises StartupError, and what ``report`` raises."""
        report(PHASE, 0.0)
        self._check_room()
        encodings = {name: self._source.raw(name).encoding for name in self._source.tensor_names()}
        program = decoder_program(
            self._config, lambda name: encodings[name] in _QUANTISED, self._activation_bits
        )
        self._threads_pool = self._library.call.stretto_pool_new(self._threads)
        if not self._threads_pool:
            raise StartupError(f"{self._threads} compute threads cannot be started.", code="out_of_memory")
        try:
            self._weights = PackedWeights(
                self._library,
                self._threads_pool,
                self._source,
                program,
                lambda fraction: report(PHASE, fraction),
            )
        except ValueError as error:
            raise StartupError(
                f"{self._source.path}: {error}.", code="model_invalid", remedy="Get the file again."
            ) from error
        except MemoryError as error:
            raise self._no_room() from error
        self._lay_out(program)
        self._model = self._library.call.stretto_model_new(
            ctypes.byref(self._plan), self._kernels.encode("ascii"), self._threads_pool
        )
        if not self._model:
            raise self._no_room()

    def _lay_out(self, program: Program) -> None:
        """Fill the plan; everything that it points to is kept."""
        assert self._weights is not None
        config, weights = self._config, self._weights
        ops = (Op * len(program.instructions))()
        for op, wanted in zip(ops, program.instructions, strict=True):
            op.kind, op.input, op.output = wanted.kind, wanted.input, wanted.output
            op.column, op.flags, op.layer = wanted.column, wanted.flags, wanted.layer
            if wanted.matrix:
                op.matrix = ctypes.pointer(weights.matrix(wanted.matrix))
            op.vector = weights.vector(wanted.vector) if wanted.vector else None
            op.second = weights.vector(wanted.second) if wanted.second else None
        widths = (ctypes.c_int32 * len(program.widths))(*program.widths)
        frequencies = np.ascontiguousarray(config.rope.inverse_frequencies(), dtype=np.float32)
        # Rows of the embedding are read where they lie in the file: a step needs a few of them.
        table = self._source.raw("model.embed_tokens.weight")
        plan = self._plan
        plan.hidden, plan.heads, plan.kv_heads = config.hidden_size, config.heads, config.kv_heads
        plan.head_size, plan.rope_dims = config.head_size, config.rope.dims
        plan.vocab, plan.context = config.vocab_size, config.context_tokens
        plan.table_encoding = ENCODING_NUMBERS[table.encoding]
        plan.eps, plan.rope_scale = config.norm_eps, config.rope.attention_scale
        plan.frequencies, plan.table = address(frequencies), address(table.data)
        plan.table_row_bytes = table.data.shape[1]
        plan.op_count, plan.buffer_count = len(ops), len(widths)
        plan.widest = program.widest_quantised
        plan.ops, plan.widths = ops, widths
        self._kept = [ops, widths, frequencies, table]
        self.weight_bytes = weights.nbytes

    def allocate(self, plan: KVPlan) -> None:
        """See Backend."""
        if len(plan.blocks) != 1 or plan.block_tokens < 1 or plan.blocks[0] < 1:
            raise BackendFailure(
                f"a KV plan for this model has one layer group and at least one block, not {plan}"
            )
        self._cache = None
        kv_format = KV_FORMAT_NUMBERS[self._kv_dtype]
        block_bytes = self._library.call.stretto_block_bytes(
            ctypes.byref(self._plan), plan.block_tokens, kv_format
        )
        wanted = self._config.layers * plan.blocks[0] * block_bytes
        free = host_memory().free_bytes
        if wanted > free:
            raise BackendOutOfMemory(
                f"the KV cache of {plan.blocks[0]} blocks of {plan.block_tokens} tokens takes {shown(wanted)};"
                f" {shown(free)} are free"
            )
        try:
            # The operating system gives the memory as blocks are first written.
            shape = self._config.layers, plan.blocks[0], block_bytes
            self._cache = sparse_bytes(math.prod(shape)).reshape(shape)
        except MemoryError as error:
            raise BackendOutOfMemory(f"{shown(wanted)} of KV cache cannot be allocated") from error
        self._block_tokens = plan.block_tokens
        cache = Cache(address(self._cache), plan.blocks[0], plan.block_tokens, kv_format, self._config.layers)
        self._library.call.stretto_model_cache(self._model, ctypes.byref(cache))

    def pool(self, group: int) -> npt.NDArray[np.uint8]:
        """uint8 [layers, blocks, bytes of a block]. Raises BackendFailure before ``allocate``."""
        if group != 0:
            raise BackendFailure(f"layer group {group} does not exist; this model has one, number 0")
        if self._cache is None:
            raise BackendFailure("no KV memory has been allocated")
        return self._cache

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        """See Backend."""
        self.pool(0)
        if not batch:
            raise BackendFailure("the step is empty")
        for number, chunk in enumerate(batch):
            if len(chunk.block_tables) != 1:
                raise BackendFailure(
                    f"chunk {number} of the step: {len(chunk.block_tables)} block tables; this model has one layer group"
                )
        parts = np.array(
            [
                (len(chunk.token_ids), chunk.start, len(chunk.block_tables[0]), chunk.logit_rows)
                for chunk in batch
            ],
            dtype=np.int32,
        )
        tokens = np.concatenate([chunk.token_ids for chunk in batch]).astype(np.int32, copy=False)
        tables = np.concatenate([chunk.block_tables[0] for chunk in batch]).astype(np.int32, copy=False)
        try:
            logits: Float32Array = np.empty(
                (max(0, int(parts[:, 3].sum())), self._config.vocab_size), dtype=np.float32
            )
        except MemoryError as error:
            raise BackendOutOfMemory("the logits of the step do not fit in memory") from error
        step = Batch(
            len(batch), len(tokens), address(parts), address(tokens), address(tables), address(logits)
        )
        outcome = Outcome()
        self._library.call.stretto_step(self._model, ctypes.byref(step), ctypes.byref(outcome))
        if outcome.fault:
            raise self._failure(outcome, len(tokens))
        self._steps += 1
        self._tokens += len(tokens)
        return logits

    def _failure(self, outcome: Outcome, tokens: int) -> BackendFailure:
        if outcome.fault not in _FAULTS:
            return BackendOutOfMemory(f"the working memory of a step of {tokens} tokens does not fit")
        last = self.pool(0).shape[1] - 1
        text = _FAULTS[outcome.fault].format(value=outcome.value, vocab=self._config.vocab_size, last=last)
        return BackendFailure(f"chunk {outcome.part} of the step: {text}")

    def stats(self) -> dict[str, object]:
        """Facts, and counters since load."""
        return {
            "device": "cpu",
            "kernels": "native",
            "instruction_set": self._kernels,
            "instruction_sets": list(self._library.kernels),
            "dtype": f"int{self._activation_bits}",
            "kv_dtype": self._kv_dtype,
            "threads": self._threads,
            "weights_bytes": self.weight_bytes,
            "kv_bytes": self.kv_bytes,
            "scratch_bytes": int(self._library.call.stretto_scratch_bytes(self._model)) if self._model else 0,
            "steps": self._steps,
            "tokens": self._tokens,
        }

    def close(self) -> None:
        """Give everything back. Idempotent."""
        if self._model:
            self._library.call.stretto_model_free(self._model)
        if self._threads_pool:
            self._library.call.stretto_pool_free(self._threads_pool)
        self._model = self._threads_pool = None
        self._cache = None
        self._weights = None
        self._kept = []

    def _needed_bytes(self) -> int:
        return sum(self._source.raw(name).nbytes for name in self._source.tensor_names())

    def _check_room(self) -> None:
        if self._needed_bytes() > host_memory().free_bytes:
            raise self._no_room()

    def _no_room(self) -> StartupError:
        return StartupError(
            f"The weights of {self._source.name} take {shown(self._needed_bytes())};"
            f" {shown(host_memory().free_bytes)} are free.",
            code="out_of_memory",
            remedy="Free memory, or choose a smaller model.",
        )


def _in_pool(block: int, pool: npt.NDArray[np.uint8]) -> None:
    if not 0 <= block < pool.shape[1]:
        raise BackendFailure(f"block {block} is not in 0 to {pool.shape[1] - 1}, the range of the pool")
