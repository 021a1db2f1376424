"""One suite for every backend: tiny models to load, a backend that waits to be let on, and engines that keep what was said.

What a backend cannot do stands in ``EXCUSED`` with its reason; everything else it has to do.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from stretto.backends.base import (
    Backend,
    Chunk,
    Float32Array,
    KVPlan,
    MemoryReport,
    ModelSpec,
    ProgressReport,
)
from stretto.conversation import Tokenizer
from stretto.conversation.messages import SamplingParams
from stretto.engine import EngineConfig, SequenceRequest, TokenConstraint
from support.engine_harness import GREEDY, PATIENCE_S, Heard, Running

BACKENDS = (
    "echo",
    "torch",
    "torch-gemma3",
    "torch-transformers",
    "native",
    "native-int8",
    "mlx",
    "mlx-gemma3-4bit",
)
EXCUSED: dict[tuple[str, str], str] = {}
"""By backend and capability, why it is not asked for."""

CONFIG = EngineConfig(max_batch=4, max_context_tokens=192, block_tokens=8, prefill_chunk_tokens=24)


@dataclass(frozen=True)
class Model:
    """A model on disk and who computes it.

    Attributes:
        make: a backend with nothing loaded yet.
        prompts: of several lengths, the longest longer than two prefill chunks; token ids.
    """

    make: Callable[[], Backend]
    tokenizer: Tokenizer
    prompts: tuple[tuple[int, ...], ...]


def missing(backend: str) -> str:
    """Why this machine cannot run a backend; empty when it can."""
    if backend.startswith("torch") and importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    if backend in ("torch-gemma3", "torch-transformers") and importlib.util.find_spec("transformers") is None:
        return "transformers is not installed"
    if backend.startswith("mlx") and importlib.util.find_spec("mlx") is None:
        return "MLX is not installed"
    if backend.startswith("native"):
        from stretto.backends.native import native_support

        support = native_support()
        return "" if support.available else support.reason
    return ""


def make_model(backend: str, path: Path) -> Model:
    """Write a tiny model for a backend that is there."""
    if backend == "echo":
        from stretto.backends.echo import EchoBackend, EchoScript
        from support.engine_echo import TOKENIZER, chat_ids

        texts = ("hello", "a longer text that is read in pieces, one after the other", "x", "and one more")
        # So flat that other tokens are drawn too, as from a real model.
        script = EchoScript(context_tokens=256, peak=3.0)
        return Model(lambda: EchoBackend(script), TOKENIZER, tuple(tuple(chat_ids(text)) for text in texts))
    if backend.startswith("mlx"):
        from stretto.backends.mlx import MLXBackend
        from stretto.weights import Checkpoint
        from support.mlx_models import tiny_mlx

        if backend == "mlx":
            tiny_mlx(path)
        else:
            tiny_mlx(
                path, "gemma3_text", bits=4
            )  # two layer groups, one of them with a window that is soon passed
        checkpoint = Checkpoint(path)
        return _with_weights(lambda: MLXBackend(checkpoint, device="cpu"), checkpoint.build_tokenizer())
    from stretto.backends.native import NativeBackend
    from stretto.backends.torch import TorchBackend
    from stretto.weights import ForeignCheckpoint, ModelSource, open_any
    from support.weights_tiny import tiny_gguf

    if backend == "torch-gemma3":
        from support.weights_families import tiny_family

        path = tiny_family(path, "gemma3")  # two layer groups, one of them with a window that is soon passed
    elif backend == "torch-transformers":
        from support.weights_foreign import tiny_foreign

        path = tiny_foreign(path, "GPTNeoX")
    else:
        path = tiny_gguf(path)
    source = open_any(path)
    if backend.startswith("torch"):
        assert isinstance(source, ModelSource | ForeignCheckpoint)
        return _with_weights(
            lambda: TorchBackend(source, device="cpu", dtype="float32", threads=1), source.build_tokenizer()
        )
    assert isinstance(source, ModelSource)
    return _with_weights(
        lambda: NativeBackend(source, threads=1, kv_dtype="int8" if backend == "native-int8" else "float32"),
        source.build_tokenizer(),
    )


def _with_weights(make: Callable[[], Backend], tokenizer: Tokenizer) -> Model:
    rng = np.random.default_rng(7)
    prompts = tuple(tuple(rng.integers(3, 300, count).tolist()) for count in (9, 61, 1, 30))
    return Model(make, tokenizer, prompts)


class Watched:
    """A backend that notes who calls it with what, and in which steps a test has to let it on."""

    def __init__(self, inner: Backend, *, gated: bool = False) -> None:
        self.inner = inner
        self.threads: set[int] = set()
        self.batches: list[list[tuple[int, int]]] = []
        """Of each step, each chunk's start and tokens."""
        self._gated = gated
        self._waiting, self._gate = threading.Semaphore(0), threading.Semaphore(0)

    def load(self, report: ProgressReport) -> ModelSpec:
        self.threads.add(threading.get_ident())
        return self.inner.load(report)

    def allocate(self, plan: KVPlan) -> None:
        self.threads.add(threading.get_ident())
        self.inner.allocate(plan)

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        self.threads.add(threading.get_ident())
        self.batches.append([(chunk.start, len(chunk.token_ids)) for chunk in batch])
        if self._gated:
            self._waiting.release()
            assert self._gate.acquire(timeout=PATIENCE_S)
        return self.inner.forward(batch)

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        self.inner.copy_blocks(group, pairs)

    def read_block(self, group: int, block: int) -> bytes:
        return self.inner.read_block(group, block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        self.inner.write_block(group, block, data)

    def memory(self) -> MemoryReport:
        self.threads.add(threading.get_ident())
        return self.inner.memory()

    def stats(self) -> dict[str, object]:
        self.threads.add(threading.get_ident())
        return self.inner.stats()

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.inner.close()

    def wait_until_in_step(self) -> None:
        """Return once the engine is inside a step that waits to be let on."""
        assert self._waiting.acquire(timeout=PATIENCE_S)

    def let_on(self, steps: int = 1) -> None:
        """Let so many steps go on."""
        self._gate.release(steps)


def asked(
    name: str,
    prompt: Sequence[int],
    max_tokens: int = 6,
    *,
    sampling: SamplingParams = GREEDY,
    end: frozenset[int] = frozenset(),
    logprobs: int | None = None,
    constraint: TokenConstraint | None = None,
    prompt_logprobs: int | None = None,
) -> SequenceRequest:
    """A request that ends at ``end`` or after ``max_tokens``."""
    return SequenceRequest(
        name, list(prompt), sampling, max_tokens, end, logprobs, b"", constraint, prompt_logprobs
    )


def alone(model: Model, requests: Sequence[SequenceRequest], config: EngineConfig = CONFIG) -> list[Heard]:
    """What each request gives when nothing else runs, and nothing is known from before."""
    with Running(model.make(), replace(config, prefix_cache=False)) as running:
        found = []
        for request in requests:
            running.finish([heard := running.submit(request)])
            found.append(heard)
    return found


def require(backend: str, capability: str) -> None:
    """Skip, with the reason, what this machine or this backend cannot do."""
    reason = missing(backend) or EXCUSED.get((backend, capability), "")
    if reason:
        pytest.skip(reason)
