"""Driving a torch backend as an engine would, and the independent truth to compare with.

``Driver`` hands out blocks (in runs, or shuffled over the whole pool) and feeds sequences chunk by chunk;
``reference_logits`` runs ``transformers`` over the same tokens in one go, with its plain attention and no cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stretto.backends.base import Chunk, Float32Array, KVPlan
from stretto.backends.torch import TorchBackend
from stretto.weights import ModelConfig, ModelSource, dequantise, open_model


def silent(phase: str, fraction: float) -> None:
    """A progress report that goes nowhere."""


@dataclass
class RunningSequence:
    """Tokens so far, how many of them are cached, and the blocks they are in."""

    tokens: list[int]
    table: list[int] = field(default_factory=list)
    cached: int = 0


class Driver:
    """A loaded backend with a trivial block allocator."""

    def __init__(
        self, backend: TorchBackend, *, blocks: int, block_tokens: int = 4, shuffled: bool = False
    ) -> None:
        self.backend = backend
        self.block_tokens = block_tokens
        backend.allocate(KVPlan(block_tokens, (blocks,)))
        self._free = list(range(blocks))
        if shuffled:
            random.Random(blocks).shuffle(self._free)

    def start(self, tokens: Sequence[int], room_tokens: int | None = None) -> RunningSequence:
        """A new sequence with blocks for ``room_tokens`` (its tokens, unless told otherwise)."""
        count = -(-(room_tokens or len(tokens)) // self.block_tokens)
        table, self._free = self._free[:count], self._free[count:]
        assert len(table) == count, "the test's pool is too small"
        return RunningSequence(list(tokens), table)

    def step(
        self, parts: Sequence[tuple[RunningSequence, int]], rows: int | None = None
    ) -> list[Float32Array]:
        """Run the next n tokens of each sequence; logits of the last ``rows`` tokens of each (all, unless told)."""
        batch, wanted = [], []
        for sequence, count in parts:
            ids = np.array(sequence.tokens[sequence.cached : sequence.cached + count], dtype=np.int32)
            wanted.append(count if rows is None else min(rows, count))
            batch.append(Chunk(ids, sequence.cached, (np.array(sequence.table, dtype=np.int32),), wanted[-1]))
        logits = self.backend.forward(batch)
        for sequence, count in parts:
            sequence.cached += count
        assert logits.dtype == np.float32
        assert logits.shape[0] == sum(wanted)
        return np.split(logits, np.cumsum(wanted)[:-1])

    def prefill(self, sequence: RunningSequence, chunk: int) -> Float32Array:
        """Logits of all of a sequence's tokens, computed ``chunk`` tokens at a time."""
        parts = []
        while sequence.cached < len(sequence.tokens):
            parts += self.step([(sequence, min(chunk, len(sequence.tokens) - sequence.cached))])
        return np.concatenate(parts)

    def greedy(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
        """Decode all prompts together; each prompt is prefilled on its own, while those before it already decode."""
        sequences = [self.start(prompt, len(prompt) + new_tokens) for prompt in prompts]
        limits = [len(prompt) + new_tokens for prompt in prompts]

        def decodes(count: int) -> list[tuple[RunningSequence, int]]:
            return [
                (s, 1) for s, limit in zip(sequences[:count], limits, strict=False) if len(s.tokens) < limit
            ]

        for number, sequence in enumerate(sequences):
            self._take([*decodes(number), (sequence, len(sequence.tokens))])
        while parts := decodes(len(sequences)):
            self._take(parts)
        return [s.tokens[len(prompt) :] for s, prompt in zip(sequences, prompts, strict=True)]

    def _take(self, parts: Sequence[tuple[RunningSequence, int]]) -> None:
        for (sequence, _), logits in zip(parts, self.step(parts, rows=1), strict=True):
            sequence.tokens.append(int(logits[-1].argmax()))


def loaded(path: Path, **options: Any) -> TorchBackend:
    """A backend with a model in it; in float32 and on one thread (which a busy machine slows least) unless told so."""
    source = open_model(path)
    backend = TorchBackend(source, **{"device": "cpu", "dtype": "float32", "threads": 1, **options})
    backend.load(silent)
    source.close()
    return backend


def reference_of_directory(path: Path) -> Any:
    """``transformers``' own reading of a Hugging Face directory, in float32."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def reference_of_source(source: ModelSource) -> Any:
    """A ``transformers`` llama with the dequantised weights of an opened model."""
    import transformers

    config: ModelConfig = source.config
    assert config.family == "llama"
    assert config.rope.scaling == "none"
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.ffn_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.head_size,
                max_position_embeddings=config.context_tokens,
                rms_norm_eps=config.norm_eps,
                tie_word_embeddings=config.tied_embeddings,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.base},
                attn_implementation="eager",
            )
        )
    weights = {name: torch.from_numpy(dequantise(source.raw(name))) for name in source.tensor_names()}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    # A buffer, so not in the state dict, and made on the meta device above.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    assert not [name for name, value in model.named_parameters() if value.is_meta]
    return model.eval()


def reference_logits(model: Any, tokens: Sequence[int], rows: int = 0) -> Float32Array:
    """[rows, vocab] of the last tokens (0: of all), rounded to float32 where the model computes in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=rows).logits[0]
    result: Float32Array = logits.float().numpy()
    return result
