"""A model of ``transformers``: loaded, looked at, and tried against its own attention before it serves."""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.backends.base import Chunk, ProgressReport
from stretto.backends.chunks import StepLimits
from stretto.backends.torch.decoder import StepTensors
from stretto.backends.torch.foreign.bridge import NAME, Bridge, NotComputable, register
from stretto.backends.torch.kv import KVPool
from stretto.backends.torch.layout import KVLayout, group_layers
from stretto.backends.torch.loading import PHASE
from stretto.backends.torch.placing import place_step
from stretto.backends.torch.plan import plan_step
from stretto.errors import StartupError
from stretto.weights.foreign import ForeignCheckpoint

_TRIAL_TOKENS = 24
_TRIAL_BLOCK = 4
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}
"""Of the logits' standard deviation, by dtype: what two ways of computing attention may differ by."""

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")


class ForeignModel:
    """Computes steps like a ``Decoder``. See ``load_foreign``."""

    def __init__(self, model: Any, checkpoint: ForeignCheckpoint, device: torch.device) -> None:
        self._model = model
        self._bridge = Bridge()
        self._bridge.attach(model)
        self._device = device
        config = model.config.get_text_config()
        self.family = str(config.model_type)
        self.vocab_size = int(config.vocab_size)
        self.context_tokens = _context_tokens(config, checkpoint)
        self.parameters = checkpoint.parameters
        tensors = [*model.parameters(), *model.buffers()]
        self.nbytes = sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())
        self._keeps_rows = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.layout = self._look(int(config.num_hidden_layers))

    def forward(self, step: StepTensors) -> Tensor:
        """See Decoder.forward."""
        silent = step.logit_rows.shape[0] == 0
        rows = step.logit_rows.new_zeros(1) if silent else step.logit_rows
        self._bridge.step = step
        try:
            logits = self._call(step.token_ids, step.positions, rows)
        finally:
            self._bridge.step = None
        return logits.new_empty((0, self.vocab_size)) if silent else logits

    def _call(self, token_ids: Tensor, positions: Tensor, rows: Tensor | None = None) -> Tensor:
        """float32 [rows, vocab]; of all tokens without ``rows``."""
        options = {"logits_to_keep": rows} if self._keeps_rows and rows is not None else {}
        out = self._model(input_ids=token_ids[None], position_ids=positions[None], use_cache=False, **options)
        logits: Tensor = out.logits[0]
        if rows is not None and not self._keeps_rows:
            logits = logits.index_select(0, rows)
        return logits.float()

    def _look(self, layers: int) -> KVLayout:
        """What each layer asks of attention, by one token that is computed for nothing."""
        zero = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._call(zero, zero)
        seen = self._bridge.seen
        if sorted(seen) != list(range(layers)):
            raise NotComputable(
                f"{layers - len(seen)} of its {layers} layers look at other tokens by code of their own, or keep a state that is not "
                "keys and values by position, which can neither be paged nor be shared by prompts that begin alike"
            )
        layout = group_layers(
            [(seen[layer].window, seen[layer].kv_heads, seen[layer].head_size) for layer in range(layers)]
        )
        self._bridge.places = dict(enumerate(layout.places))
        return layout

    def prove(self) -> None:
        """Compare logits over paged memory, two sequences in chunks, with those of the model's own attention.

        Raises:
            NotComputable: they differ.
        """
        dtype = self._model.dtype
        rng = np.random.default_rng(1)
        texts = [rng.integers(0, self.vocab_size, count).astype(np.int32) for count in (_TRIAL_TOKENS, 9)]
        paged = self._paged(texts, dtype)
        with self._own_attention():
            wanted = [
                self._call(
                    torch.from_numpy(text.astype(np.int64)).to(self._device),
                    torch.arange(len(text), device=self._device),
                )
                for text in texts
            ]
        for found, own in zip(paged, wanted, strict=True):
            error = float((found - own).square().mean().sqrt())
            allowed = _TOLERANCE[dtype] * max(float(own.std()), 1e-6)
            if not error <= allowed:
                raise NotComputable(
                    f"its logits over paged memory differ from its own by {error:.2g} (allowed {allowed:.2g}): more than "
                    "attention looks at other tokens"
                )

    def _paged(self, texts: list[Any], dtype: torch.dtype) -> list[Tensor]:
        """Logits of each text, computed in chunks beside each other."""
        blocks = sum(math.ceil(len(text) / _TRIAL_BLOCK) for text in texts)
        pools = tuple(
            KVPool(
                layers=group.layers,
                kv_heads=group.kv_heads,
                head_size=group.head_size,
                block_tokens=_TRIAL_BLOCK,
                blocks=blocks,
                dtype=dtype,
                device=self._device,
            )
            for group in self.layout.groups
        )
        limits = StepLimits(
            _TRIAL_BLOCK,
            (blocks,) * len(pools),
            tuple(group.window_tokens for group in self.layout.groups),
            self.vocab_size,
            self.context_tokens,
        )
        # Odd blocks to one, even ones to the other: nothing lies in a row.
        first = math.ceil(len(texts[0]) / _TRIAL_BLOCK)
        order = np.arange(blocks, dtype=np.int32)[::-1]
        tables = [order[:first], order[first:]]
        found: list[list[Tensor]] = [[], []]
        for start in range(0, _TRIAL_TOKENS, 5):
            parts = [
                (number, Chunk(part, start, (tables[number],) * len(pools), len(part)))
                for number, text in enumerate(texts)
                if len(part := text[start : start + 5])
            ]
            plan = plan_step([chunk for _, chunk in parts], limits)
            logits = self.forward(place_step(plan, pools, self._device, dtype))
            counts = [chunk.logit_rows for _, chunk in parts]
            for (number, _), rows in zip(parts, torch.split(logits, counts), strict=True):
                found[number].append(rows)
        return [torch.cat(rows) for rows in found]

    @contextmanager
    def _own_attention(self) -> Iterator[None]:
        self._model.set_attn_implementation("eager")
        try:
            yield
        finally:
            self._model.set_attn_implementation(NAME)


def load_foreign(
    checkpoint: ForeignCheckpoint, *, device: torch.device, dtype: torch.dtype, report: ProgressReport
) -> ForeignModel:
    """Load a model that ``transformers`` knows, and see that it computes over paged memory what it computes by itself.

    Raises:
        StartupError: ``backend_unavailable`` without ``transformers``; ``model_unsupported``, with the reason.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise StartupError(
            f"{checkpoint.reason} transformers cannot be imported ({error}).",
            code="backend_unavailable",
            remedy="Install it: pip install 'stretto[torch,transformers]'",
        ) from error
    report(PHASE, 0.0)
    register()
    transformers.logging.disable_progress_bar()
    try:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint.path,
            dtype=dtype,
            attn_implementation=NAME,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
        )
        model = ForeignModel(loaded.eval().to(device), checkpoint, device)
        model.prove()
    except StartupError:
        raise
    except NotComputable as error:
        raise _refused(checkpoint, str(error)) from error
    except torch.OutOfMemoryError:
        raise
    except KeyError as error:
        if str(error) != repr(NAME):
            raise
        raise _refused(checkpoint, "its attention cannot be replaced") from error
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _refused(checkpoint, f"loading it failed: {text}") from error
    report(PHASE, 1.0)
    return model


def _refused(checkpoint: ForeignCheckpoint, why: str) -> StartupError:
    return StartupError(
        f"{checkpoint.reason} transformers cannot compute it over the daemon's KV memory either: {why}.",
        code="model_unsupported",
    )


def _context_tokens(config: Any, checkpoint: ForeignCheckpoint) -> int:
    for key in _CONTEXT_KEYS:
        found = getattr(config, key, None)
        if type(found) is int and found > 0:
            return found
    raise _refused(checkpoint, f"its config.json has none of {', '.join(_CONTEXT_KEYS)}")
