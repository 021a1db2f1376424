"""What a family of models says of itself: which files hold one, and how their metadata becomes a ModelConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from stretto.weights.config import ModelConfig
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.hf_reader import HFReader

LAYER_TENSORS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Tensors of a layer in GGUF, and their canonical names (Hugging Face's), as most families have them."""


@dataclass(frozen=True, slots=True)
class Family:
    """One family. The readings are given what all families have in common, and add the rest.

    Attributes:
        name: ``ModelConfig.family``; the torch backend has a module of that name.
        architectures: of config.json.
        wrappers: of config.json, for models that see or hear too, whose language model is of this family.
        hf_defaults: of the language model's part of such a config.json, which leaves out what is usual.
        from_hf: completes what was read of config.json.
        hf_computed: keys of config.json that change the arithmetic and that ``from_hf`` reads.
        head_size: where config.json has no ``head_dim``; None divides the hidden size.
        tied: ``tie_word_embeddings`` where config.json leaves it out.
        rope_base: ``rope_theta`` where it is left out.
        own_rope: ``from_hf`` reads the rotary positions itself.
        partial_rope: positions may turn a part of each head only.
        gguf: of ``general.architecture``; empty where the format has none.
        from_gguf: completes what was read of a GGUF file.
        gguf_computed: keys of GGUF that change the arithmetic and that ``from_gguf`` reads.
        layer_tensors: see LAYER_TENSORS.
        interleaved: rows of q and k are stored in pairs, see ``half_split_order``.
    """

    name: str
    architectures: tuple[str, ...]
    from_hf: Callable[[HFReader, ModelConfig], ModelConfig]
    wrappers: tuple[str, ...] = ()
    hf_defaults: Mapping[str, object] = field(default_factory=dict)
    hf_computed: frozenset[str] = frozenset()
    head_size: int | None = None
    tied: bool = False
    rope_base: float = 10_000.0
    own_rope: bool = False
    partial_rope: bool = False
    gguf: tuple[str, ...] = ()
    from_gguf: Callable[[GGUFReader, ModelConfig], ModelConfig] = field(default=lambda read, config: config)
    gguf_computed: frozenset[str] = frozenset()
    layer_tensors: Mapping[str, str] = field(default_factory=lambda: LAYER_TENSORS)
    interleaved: bool = False
