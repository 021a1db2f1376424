"""From a mapped file to tensors: one tensor, and of a large one a few rows, at a time.

Beside the weights themselves memory holds one slice of decoded rows; the file's own pages are the operating system's
to drop.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from stretto.backends.base import ProgressReport
from stretto.backends.torch.linear import Projection, ProjectionChoice
from stretto.backends.torch.llama import LayerWeights, LlamaWeights
from stretto.errors import StartupError
from stretto.weights.blocks import RawTensor, dequantise
from stretto.weights.source import ModelSource

PHASE = "loading weights"
_SLICE_VALUES = 1 << 22
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def weight_count(source: ModelSource) -> int:
    """How many weights a model has, a tied table counted once."""
    return sum(math.prod(shape) for shape in source.config.tensor_shapes().values())


def load_weights(
    source: ModelSource,
    *,
    device: torch.device,
    dtype: torch.dtype,
    projection: ProjectionChoice,
    report: ProgressReport,
) -> LlamaWeights:
    """Decode and place all weights; projections that share their input are laid into one matrix.

    Whatever ``report`` raises passes through, and nothing is kept.

    Raises:
        StartupError: ``model_invalid``, for weights that are not finite numbers.
    """
    return _Loader(source, device, dtype, projection.make, report).load()


class _Loader:
    def __init__(
        self,
        source: ModelSource,
        device: torch.device,
        dtype: torch.dtype,
        projection: Callable[[Tensor, Tensor | None], Projection],
        report: ProgressReport,
    ) -> None:
        self._source = source
        self._device = device
        self._dtype = dtype
        self._projection = projection
        self._report = report
        self._shapes = source.config.tensor_shapes()
        self._total = weight_count(source)
        self._done = 0
        self._nbytes = 0

    def load(self) -> LlamaWeights:
        config = self._source.config
        self._report(PHASE, 0.0)
        embedding = self._tensor("model.embed_tokens.weight")
        layers = tuple(self._layer(number) for number in range(config.layers))
        norm = self._tensor("model.norm.weight")
        head = embedding if config.tied_embeddings else self._tensor("lm_head.weight")
        return LlamaWeights(
            embedding, layers, norm, self._projection(head, None), nbytes=self._nbytes, parameters=self._total
        )

    def _layer(self, number: int) -> LayerWeights:
        config = self._source.config
        prefix = f"model.layers.{number}."
        attention = prefix + "self_attn."
        qkv = tuple(f"{attention}{name}_proj" for name in "qkv")
        bias = self._tensor(*(name + ".bias" for name in qkv)) if config.attention_bias else None
        head_norm = None
        if config.qk_norm:
            head_norm = torch.cat(
                (
                    self._tensor(attention + "q_norm.weight").expand(config.heads, -1),
                    self._tensor(attention + "k_norm.weight").expand(config.kv_heads, -1),
                )
            )
        return LayerWeights(
            attention_norm=self._tensor(prefix + "input_layernorm.weight"),
            ffn_norm=self._tensor(prefix + "post_attention_layernorm.weight"),
            qkv=self._projection(self._tensor(*(name + ".weight" for name in qkv)), bias),
            head_norm=head_norm,
            attention_out=self._projection(self._tensor(attention + "o_proj.weight"), None),
            gate_up=self._projection(
                self._tensor(prefix + "mlp.gate_proj.weight", prefix + "mlp.up_proj.weight"), None
            ),
            down=self._projection(self._tensor(prefix + "mlp.down_proj.weight"), None),
        )

    def _tensor(self, *names: str) -> Tensor:
        """One tensor, or several below each other."""
        shapes = [self._shapes[name] for name in names]
        out = torch.empty(
            (sum(shape[0] for shape in shapes), *shapes[0][1:]), dtype=self._dtype, device=self._device
        )
        row = 0
        for name, shape in zip(names, shapes, strict=True):
            self._fill(out.narrow(0, row, shape[0]), self._source.raw(name))
            row += shape[0]
        self._nbytes += out.nbytes
        return out

    def _fill(self, target: Tensor, raw: RawTensor) -> None:
        """Decode into place, slice by slice."""
        rows, columns = (target.shape[0], target.shape[1]) if target.ndim == 2 else (1, target.shape[0])
        step = max(1, _SLICE_VALUES // columns)
        target = target.view(rows, columns)
        for start in range(0, rows, step):
            part = target[start : start + step]
            if self._device.type == "cpu" and _PLAIN.get(raw.encoding) == self._dtype:
                part.view(torch.uint8).numpy()[...] = raw.data[start : start + step]
            else:
                part.copy_(torch.from_numpy(dequantise(raw, slice(start, start + step))))
            if not bool(torch.isfinite(part).all()):
                raise StartupError(
                    f"{self._source.path}: tensor {raw.name} has values that are not finite numbers as"
                    f" {str(self._dtype).removeprefix('torch.')}.",
                    code="model_invalid",
                    remedy="Get the file again, or choose another dtype.",
                )
            self._done += part.numel()
            self._report(PHASE, self._done / self._total)
