"""From a mapped file to tensors: one tensor, and of a large one a few rows, at a time.

Beside the weights themselves memory holds one slice of decoded rows; the file's own pages are the operating system's
to drop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from stretto.backends.base import ProgressReport
from stretto.backends.torch.attention import ScoreRule
from stretto.backends.torch.layout import KVLayout
from stretto.backends.torch.linear import Projection
from stretto.backends.torch.norm import HeadNorm, Norm
from stretto.backends.torch.offload import MakeProjection, Offloader
from stretto.backends.torch.parts import ACTIVATIONS, GatedFeedForward, Mixture, SelfAttention
from stretto.errors import StartupError
from stretto.weights.blocks import RawTensor, dequantise
from stretto.weights.config import ModelConfig
from stretto.weights.rope_config import RopeConfig
from stretto.weights.source import ModelSource

PHASE = "loading weights"
_SLICE_VALUES = 1 << 22
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def layer_counts(source: ModelSource) -> list[int]:
    """How many weights each layer has in matrices, which can be offloaded."""
    counts = [0] * source.config.layers
    for name, shape in source.config.tensor_shapes().items():
        if len(shape) > 1 and name.startswith("model.layers."):
            counts[int(name.split(".")[2])] += math.prod(shape)
    return counts


def weight_count(source: ModelSource) -> int:
    """How many weights a model has, a tied table counted once."""
    return sum(math.prod(shape) for shape in source.config.tensor_shapes().values())


class Loader:
    """Decodes and places weights. Whatever ``report`` raises passes through.

    Attributes:
        total: how many weights the model has, a tied table counted once.
        nbytes: of what has been placed.
    """

    def __init__(
        self,
        source: ModelSource,
        *,
        device: torch.device,
        dtype: torch.dtype,
        projection: MakeProjection,
        report: ProgressReport,
    ) -> None:
        self.dtype = dtype
        self.projection = projection
        self._source = source
        self._device = device
        self._report = report
        self._shapes = source.config.tensor_shapes()
        self.total = weight_count(source)
        self._done = 0
        self.nbytes = 0
        report(PHASE, 0.0)

    def tensor(
        self, *names: str, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Tensor:
        """One tensor, or several below each other; in another dtype or place than the model's if those are given.

        Raises:
            StartupError: ``model_invalid``, for weights that are not finite numbers.
        """
        shapes = [self._shapes[name] for name in names]
        out = torch.empty(
            (sum(shape[0] for shape in shapes), *shapes[0][1:]),
            dtype=dtype or self.dtype,
            device=device or self._device,
        )
        row = 0
        for name, shape in zip(names, shapes, strict=True):
            self._fill(out.narrow(0, row, shape[0]), self._source.raw(name))
            row += shape[0]
        self.nbytes += out.nbytes
        return out

    def _fill(self, target: Tensor, raw: RawTensor) -> None:
        """Decode into place, slice by slice."""
        columns = target.shape[-1]
        target = target.view(-1, columns)
        rows = target.shape[0]
        step = max(1, _SLICE_VALUES // columns)
        for start in range(0, rows, step):
            part = target[start : start + step]
            if target.device.type == "cpu" and _PLAIN.get(raw.encoding) == target.dtype:
                part.view(torch.uint8).numpy()[...] = raw.data[start : start + step]
            else:
                part.copy_(torch.from_numpy(dequantise(raw, slice(start, start + step))))
            if not bool(torch.isfinite(part).all()):
                raise StartupError(
                    f"{self._source.path}: tensor {raw.name} has values that are not finite numbers as"
                    f" {str(target.dtype).removeprefix('torch.')}.",
                    code="model_invalid",
                    remedy="Get the file again, or choose another dtype.",
                )
            self._done += part.numel()
            self._report(PHASE, self._done / self.total)


class ModelParts:
    """Makes what a model consists of, from its tensors by name.

    Attributes:
        config: the architecture.
    """

    def __init__(self, loader: Loader, config: ModelConfig, offloader: Offloader | None = None) -> None:
        """``offloader``: makes the matrices, if they are not to lie on the device."""
        self.config = config
        self._loader = loader
        self._make = loader.projection if offloader is None else offloader.make
        self._place = None if offloader is None else offloader.host
        # Where a family's norms have an offset, or many of them follow each other, they are multiplied before rounding.
        self._norm_dtype = torch.float32 if config.residual_norms else loader.dtype

    def table(self, name: str) -> Tensor:
        """An embedding table, [rows, columns]."""
        return self._loader.tensor(self._full(name))

    def vector(self, name: str) -> Tensor:
        """A vector, in float32 where the model's norms are."""
        return self._loader.tensor(self._full(name), dtype=self._norm_dtype)

    def matrix(self, *names: str, bias: Sequence[str] = ()) -> Projection:
        """A projection of one matrix, or of several below each other."""
        weight, added = (
            self._loader.tensor(*(self._full(name) for name in listed), device=self._place)
            if listed
            else None
            for listed in (names, bias)
        )
        assert weight is not None
        return self._make(weight, added)

    def norm(self, name: str) -> Norm:
        """A norm over the hidden size, by its name without ``.weight``."""
        return Norm(self.norm_weight(f"{name}.weight"), self.config.norm_eps)

    def norm_weight(self, name: str) -> Tensor:
        """A norm's weights as they are multiplied."""
        weight = self.vector(name)
        return weight.add_(self.config.norm_offset) if self.config.norm_offset else weight

    def _full(self, name: str) -> str:
        return name


class LayerParts(ModelParts):
    """The same for one layer; names are those within it.

    Attributes:
        number: of the layer.
    """

    def __init__(
        self,
        loader: Loader,
        config: ModelConfig,
        number: int,
        layout: KVLayout,
        ropes: Sequence[RopeConfig],
        offloader: Offloader | None = None,
    ) -> None:
        super().__init__(loader, config, offloader)
        self.number = number
        self._layout, self._ropes = layout, ropes

    def attention(self) -> SelfAttention:
        """The layer's attention."""
        config, kind = self.config, self.config.attention(self.number)
        kv_heads = 0 if kind.kv_layer is not None else kind.kv_heads
        names = ["q_proj"]
        if config.fused:
            names = ["qkv_proj"]
        elif kv_heads:
            names += ["k_proj"] if kind.keys_as_values else ["k_proj", "v_proj"]
        bias = [f"self_attn.{name}.bias" for name in names] if config.attention_bias else []
        return SelfAttention(
            heads=config.heads,
            kv_heads=kv_heads,
            head_size=kind.head_size,
            place=self._layout.places[self.number],
            rope=None if kind.rope is None else self._ropes.index(kind.rope),
            rule=ScoreRule(config.query_scale, config.attention_cap),
            qkv=self.matrix(*(f"self_attn.{name}.weight" for name in names), bias=bias),
            head_norm=self._head_norm(kv_heads) if config.qk_norm else None,
            value_norm=Norm(None, config.norm_eps) if config.value_norm else None,
            keys_as_values=kind.keys_as_values and kv_heads > 0,
            out=self.matrix("self_attn.o_proj.weight"),
        )

    def _head_norm(self, kv_heads: int) -> HeadNorm:
        weights = [self.norm_weight("self_attn.q_norm.weight").expand(self.config.heads, -1)]
        if kv_heads:
            weights.append(self.norm_weight("self_attn.k_norm.weight").expand(kv_heads, -1))
        return HeadNorm(torch.cat(weights), self.config.norm_eps)

    def feed_forward(self) -> GatedFeedForward:
        """The layer's dense feed-forward."""
        fused = ("mlp.gate_up_proj.weight",)
        names = fused if self.config.fused else ("mlp.gate_proj.weight", "mlp.up_proj.weight")
        return GatedFeedForward(
            self.matrix(*names), self.matrix("mlp.down_proj.weight"), ACTIVATIONS[self.config.activation]
        )

    def experts(self) -> Mixture:
        """The layer's experts, without what chooses among them."""
        experts, activation = self.config.experts, ACTIVATIONS[self.config.activation]
        assert experts is not None
        if experts.beside_dense:
            gate_up, down = (
                self._loader.tensor(self._full(f"experts.{name}"), device=self._place)
                for name in ("gate_up_proj", "down_proj")
            )
            made = [
                GatedFeedForward(self._make(first, None), self._make(second, None), activation)
                for first, second in zip(gate_up, down, strict=True)
            ]
        else:
            made = [
                GatedFeedForward(
                    self.matrix(f"{expert}.gate_proj.weight", f"{expert}.up_proj.weight"),
                    self.matrix(f"{expert}.down_proj.weight"),
                    activation,
                )
                for expert in (f"mlp.experts.{number}" for number in range(experts.count))
            ]
        return Mixture(made, experts.per_token, experts.normalised)

    def _full(self, name: str) -> str:
        return f"model.layers.{self.number}.{name}"
