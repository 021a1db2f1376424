"""What a model file says of its architecture, in one form for every format.

All families share one shape: RMS norms before attention and feed-forward, rotary positions on half-split heads, grouped KV
heads, a gated feed-forward. What else they have, or leave out, is a field of ``ModelConfig`` each.
"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.weights.rope_config import RopeConfig


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Attention of one layer, where layers differ.

    Attributes:
        kv_heads: key and value heads.
        head_size: values a head.
        window_tokens: how far back it reaches, its own position included; None for all that is there.
        rope: rotary positions; None for a layer without any.
        kv_layer: the layer before it whose keys and values it reads instead of making its own.
        keys_as_values: values are the keys before their norm and rotation.
    """

    kv_heads: int
    head_size: int
    window_tokens: int | None
    rope: RopeConfig | None
    kv_layer: int | None = None
    keys_as_values: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A feed-forward that is chosen token by token among several.

    Attributes:
        count: how many there are in a layer.
        per_token: how many compute each token.
        ffn_size: width of one.
        normalised: the weights of those that are chosen add up to 1.
        dense_layers: layers with a plain feed-forward instead.
        beside_dense: all layers have both, and add them.
    """

    count: int
    per_token: int
    ffn_size: int
    normalised: bool
    dense_layers: frozenset[int] = frozenset()
    beside_dense: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and kinds of one decoder-only model.

    Attributes:
        family: e.g. ``llama``, ``qwen3_moe`` or ``gemma3``; see ``stretto.weights.families``.
        vocab_size: rows of the embedding table, the width of the logits.
        hidden_size: values a token between layers.
        layers: decoder layers.
        heads: query heads; kv_heads: key and value heads, a divisor of it.
        head_size: values a head; heads * head_size need not be hidden_size.
        ffn_size: width of the feed-forward.
        context_tokens: the longest context the model was made for.
        norm_eps: epsilon of the RMS norms.
        rope: rotary positions.
        tied_embeddings: the output projection is the embedding table.
        attention_bias: q, k and v projections have biases (the output projection never has).
        qk_norm: RMS norms on each head of queries and keys.
        activation: of the feed-forward's gate: ``silu`` or ``gelu_tanh``.
        layer_attention: attention of each layer, where those differ or have a window; empty where all are as above.
        fused: q, k and v are one matrix in the file, and so are gate and up.
        residual_norms: norms also after attention and after the feed-forward, before they are added.
        norm_offset: what is added to the norms' weights as the file has them.
        query_scale: what scores are multiplied by; None for 1 / sqrt(head size).
        attention_cap, logit_cap: scores and logits are held below it by a hyperbolic tangent; None where they are not.
        embedding_scale: what embeddings are multiplied by.
        experts: None where every feed-forward is dense.
        value_norm: values are normed too, without weights.
        layer_scalars: each layer's output is multiplied by a number of its own.
        layer_input_size: width of a further embedding of the token for each layer; 0 where there is none.
        layer_input_vocab: rows of its table.
        wide_layers: layers whose feed-forward is twice as wide.
    """

    family: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    ffn_size: int
    context_tokens: int
    norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    attention_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    layer_attention: tuple[LayerAttention, ...] = ()
    fused: bool = False
    residual_norms: bool = False
    norm_offset: float = 0.0
    query_scale: float | None = None
    attention_cap: float | None = None
    logit_cap: float | None = None
    embedding_scale: float = 1.0
    experts: Experts | None = None
    value_norm: bool = False
    layer_scalars: bool = False
    layer_input_size: int = 0
    layer_input_vocab: int = 0
    wide_layers: frozenset[int] = frozenset()

    def attention(self, layer: int) -> LayerAttention:
        """Attention of one layer."""
        if self.layer_attention:
            return self.layer_attention[layer]
        return LayerAttention(self.kv_heads, self.head_size, None, self.rope)

    def ffn_size_of(self, layer: int) -> int:
        """Width of a layer's dense feed-forward."""
        return self.ffn_size * (2 if layer in self.wide_layers else 1)

    def has_experts(self, layer: int) -> bool:
        """Whether a layer chooses among experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

    def beyond_plain(self) -> str:
        """What of it goes beyond the plain shape of llama, qwen2 and qwen3, in words; empty when nothing does."""
        rope = self.rope
        found = {
            "a mixture of experts": self.experts is not None,
            "sliding windows": any(layer.window_tokens is not None for layer in self.layer_attention),
            "layers that differ from each other": bool(self.layer_attention),
            "matrices that are fused in the file": self.fused,
            "norms after attention": self.residual_norms,
            "soft caps": self.attention_cap is not None or self.logit_cap is not None,
            f"the activation {self.activation}": self.activation != "silu",
            "rotary positions on part of a head": rope.dims != self.head_size,
            f"{rope.scaling} rotary scaling": rope.scaling in ("longrope", "proportional"),
            "scales of its own": self.query_scale is not None or self.embedding_scale != 1.0,
        }
        return next((words for words, there in found.items() if there), "")

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that the model consists of, by canonical name, with its shape in row-major order."""
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
        }
        if self.layer_input_size:
            width = self.layers * self.layer_input_size
            shapes["model.embed_tokens_per_layer.weight"] = (self.layer_input_vocab, width)
            shapes["model.per_layer_model_projection.weight"] = (width, self.hidden_size)
            shapes["model.per_layer_projection_norm.weight"] = (self.layer_input_size,)
        for layer in range(self.layers):
            block = f"model.layers.{layer}."
            for part in (
                self._norm_shapes(),
                self._attention_shapes(layer),
                self._ffn_shapes(layer),
                self._other_shapes(layer),
            ):
                shapes.update({block + name: shape for name, shape in part.items()})
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return shapes

    def _norm_shapes(self) -> dict[str, tuple[int, ...]]:
        names = ["input_layernorm", "post_attention_layernorm"]
        if self.residual_norms:
            names += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        if self.experts is not None and self.experts.beside_dense:
            names += [
                "pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"
            ]  # fmt: skip
        return {f"{name}.weight": (self.hidden_size,) for name in names}

    def _attention_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        kind = self.attention(layer)
        queries, keys = self.heads * kind.head_size, kind.kv_heads * kind.head_size
        rows = {"q_proj": queries}
        if self.fused:
            rows = {"qkv_proj": queries + 2 * keys}
        elif kind.kv_layer is None:
            rows["k_proj"] = keys
            if not kind.keys_as_values:
                rows["v_proj"] = keys
        shapes: dict[str, tuple[int, ...]] = {}
        for name, count in rows.items():
            shapes[f"self_attn.{name}.weight"] = (count, self.hidden_size)
            if self.attention_bias:
                shapes[f"self_attn.{name}.bias"] = (count,)
        if self.qk_norm:
            shapes["self_attn.q_norm.weight"] = (kind.head_size,)
            if kind.kv_layer is None:
                shapes["self_attn.k_norm.weight"] = (kind.head_size,)
        shapes["self_attn.o_proj.weight"] = (self.hidden_size, queries)
        return shapes

    def _ffn_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        experts, hidden = self.experts, self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {}
        if experts is None or experts.beside_dense or not self.has_experts(layer):
            width = self.ffn_size_of(layer)
            if self.fused:
                shapes["mlp.gate_up_proj.weight"] = (2 * width, hidden)
            else:
                shapes["mlp.gate_proj.weight"] = (width, hidden)
                shapes["mlp.up_proj.weight"] = (width, hidden)
            shapes["mlp.down_proj.weight"] = (hidden, width)
        if experts is None or not self.has_experts(layer):
            return shapes
        if experts.beside_dense:
            shapes["router.proj.weight"] = (experts.count, hidden)
            shapes["router.scale"] = (hidden,)
            shapes["router.per_expert_scale"] = (experts.count,)
            shapes["experts.gate_up_proj"] = (experts.count, 2 * experts.ffn_size, hidden)
            shapes["experts.down_proj"] = (experts.count, hidden, experts.ffn_size)
            return shapes
        shapes["mlp.gate.weight"] = (experts.count, hidden)
        for number in range(experts.count):
            expert = f"mlp.experts.{number}."
            shapes[expert + "gate_proj.weight"] = (experts.ffn_size, hidden)
            shapes[expert + "up_proj.weight"] = (experts.ffn_size, hidden)
            shapes[expert + "down_proj.weight"] = (hidden, experts.ffn_size)
        return shapes

    def _other_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {}
        if self.layer_scalars:
            shapes["layer_scalar"] = (1,)
        if self.layer_input_size:
            shapes["per_layer_input_gate.weight"] = (self.layer_input_size, self.hidden_size)
            shapes["per_layer_projection.weight"] = (self.hidden_size, self.layer_input_size)
            shapes["post_per_layer_input_norm.weight"] = (self.hidden_size,)
        return shapes
