"""A GGUF file as a model: its metadata as a ModelConfig, its tensors under canonical names and in canonical row order."""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stretto.weights.blocks import RawTensor
from stretto.weights.config import ModelConfig
from stretto.weights.faults import invalid, unsupported
from stretto.weights.gguf import GGUFArray, GGUFFile, GGUFTensor
from stretto.weights.gguf_rope import read_rope
from stretto.weights.gguf_tokenizer import build_gguf_tokenizer
from stretto.weights.limits import check_config
from stretto.weights.source import ModelSource, check_tensors
from stretto.weights.tokenizer import Tokenizer

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Values of ``general.architecture`` that can be computed."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.scale": (),
    "attention.clamp_kqv": (0.0,),
    "attention.logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
}
"""Keys that change the arithmetic, and the values under which they do not; with any other value a file is refused."""

_TENSORS: dict[str, str] = {
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
_TOP: dict[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")
_ROPE_FREQUENCIES = "rope_freqs.weight"


def canonical_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None for one that has none."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return _TOP.get(name)
    part = _TENSORS.get(match[2])
    return None if part is None else f"model.layers.{match[1]}.{part}.{match[3]}"


class GGUFModel(ModelSource):
    """See ModelSource. Raises StartupError when the file is broken, truncated or cannot be computed."""

    format = "gguf"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GGUFFile(path)
        try:
            self._open()
        except BaseException:
            self._file.file.close()
            raise

    def _open(self) -> None:
        file, path = self._file, self.path
        if (file.whole("split.count") or 1) > 1:
            raise unsupported(
                path,
                f"is one part of {file.whole('split.count')} (split.count)",
                remedy="Join the parts first.",
            )
        self._tensors: dict[str, GGUFTensor] = {}
        for tensor in file.tensors.values():
            if tensor.name == _ROPE_FREQUENCIES:
                continue
            name = canonical_name(tensor.name)
            if name is None:
                raise unsupported(path, f"tensor {tensor.name} is not known")
            if len(tensor.shape) == 1 and tensor.encoding not in ("F32", "F16", "BF16"):
                raise unsupported(path, f"tensor {tensor.name} is a vector in blocks ({tensor.encoding})")
            self._tensors[name] = tensor
        self.config = self._read_config()
        check_tensors(path, self.config, {name: tensor.shape for name, tensor in self._tensors.items()})
        self.name = file.text("general.name") or path.stem
        self.chat_template = file.text("tokenizer.chat_template")
        self._half_split = self.config.family == "llama"

    def _read_config(self) -> ModelConfig:
        file, path = self._file, self.path
        family = file.text("general.architecture")
        if family not in ARCHITECTURES:
            raise unsupported(
                path,
                f"general.architecture is {family!r}",
                remedy=f"Computable are {', '.join(ARCHITECTURES)}.",
            )
        for key, neutral in _NEUTRAL.items():
            value = file.metadata.get(f"{family}.{key}")
            if value is not None and (isinstance(value, GGUFArray) or value not in neutral):
                raise unsupported(path, f"{family}.{key} is {_shown(value)}, which is not computed here")

        def whole(key: str, otherwise: int | None = None) -> int:
            value = file.whole(f"{family}.{key}")
            if value is None:
                value = otherwise
            if value is None:
                raise invalid(path, f"the metadata key {family}.{key} is missing")
            return value

        hidden, heads = whole("embedding_length"), whole("attention.head_count")
        if heads < 1 or hidden < 1:
            raise invalid(
                path, f"{family}.attention.head_count is {heads}, {family}.embedding_length {hidden}"
            )
        head_size = whole("attention.key_length", hidden // heads)
        if whole("attention.value_length", head_size) != head_size:
            raise unsupported(path, f"{family}.attention.value_length differs from key_length {head_size}")
        context = whole("context_length")
        window = file.whole(f"{family}.attention.sliding_window") or 0
        if 0 < window < context:
            raise unsupported(
                path, f"{family}.attention.sliding_window is {window}: sliding windows are not computed"
            )
        embeddings = self._tensors.get("model.embed_tokens.weight")
        if embeddings is None or len(embeddings.shape) != 2:
            raise invalid(path, "the matrix token_embd.weight is missing")
        epsilon = file.number(f"{family}.attention.layer_norm_rms_epsilon")
        if epsilon is None:
            raise invalid(path, f"the metadata key {family}.attention.layer_norm_rms_epsilon is missing")
        config = ModelConfig(
            family=family,
            vocab_size=embeddings.shape[0],
            hidden_size=hidden,
            layers=whole("block_count"),
            heads=heads,
            kv_heads=whole("attention.head_count_kv", heads),
            head_size=head_size,
            ffn_size=whole("feed_forward_length"),
            context_tokens=context,
            norm_eps=float(epsilon),
            rope=read_rope(file, family, head_size, context, self._rope_frequencies(head_size)),
            tied_embeddings="lm_head.weight" not in self._tensors,
            attention_bias="model.layers.0.self_attn.q_proj.bias" in self._tensors,
            qk_norm=family == "qwen3",
        )
        check_config(path, config)
        return config

    def _rope_frequencies(self, head_size: int) -> tuple[float, ...] | None:
        tensor = self._file.tensors.get(_ROPE_FREQUENCIES)
        if tensor is None:
            return None
        if tensor.encoding != "F32" or tensor.shape != (head_size // 2,):
            raise unsupported(
                self.path,
                f"tensor {tensor.name} is {tensor.encoding} {list(tensor.shape)}, not F32 [{head_size // 2}]",
            )
        factors = self._bytes(tensor).view("<f4")[0]
        if not bool((np.isfinite(factors) & (factors > 0)).all()):
            raise invalid(self.path, f"tensor {tensor.name} has a value that is not a positive number")
        return tuple(float(factor) for factor in factors)

    def _bytes(self, tensor: GGUFTensor) -> npt.NDArray[np.uint8]:
        """uint8 [rows, bytes of a row]; a vector is one row."""
        rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
        return self._file.file.data[tensor.start : tensor.start + tensor.nbytes].reshape(rows, -1)

    def raw(self, name: str) -> RawTensor:
        """See ModelSource."""
        tensor = self._tensors[name]
        data = self._bytes(tensor)
        if self._half_split and (".q_proj." in name or ".k_proj." in name):
            heads = self.config.heads if ".q_proj." in name else self.config.kv_heads
            order = half_split_order(heads, self.config.head_size)
            if len(tensor.shape) == 1:
                data = np.ascontiguousarray(data.reshape(tensor.shape[0], -1)[order]).reshape(1, -1)
            else:
                data = data[order]
            data.flags.writeable = False
        return RawTensor(name, tensor.encoding, tensor.shape, data)

    @cached_property
    def fingerprint(self) -> str:
        """See ModelSource."""
        return hashlib.sha256(b"gguf" + self._file.file.digest(self._file.data_start)).hexdigest()

    def build_tokenizer(self) -> Tokenizer:
        """See ModelSource."""
        return build_gguf_tokenizer(self._file, self.config.vocab_size)

    def close(self) -> None:
        """See ModelSource."""
        self._file.file.close()


def half_split_order(heads: int, head_size: int) -> npt.NDArray[np.intp]:
    """Where each row of a query or key projection lies in a GGUF ``llama`` file.

    Converters interleave the two halves of every head (row ``i`` of the first half, then row ``i`` of the second) so
    that rotary pairs are neighbours; Hugging Face keeps the halves apart. Row ``k`` of the result's order is row
    ``order[k]`` of the file. Moving whole rows is exact in every encoding, since rows are whole blocks.
    """
    rows = np.arange(heads * head_size, dtype=np.intp)
    return rows.reshape(heads, head_size // 2, 2).swapaxes(1, 2).reshape(-1)


def _shown(value: object) -> str:
    return f"an array of {value.count}" if isinstance(value, GGUFArray) else repr(value)
