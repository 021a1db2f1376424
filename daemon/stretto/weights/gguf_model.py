"""A GGUF file as a model: its metadata as a ModelConfig, its tensors under canonical names and in canonical row order."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stretto.weights.blocks import RawTensor
from stretto.weights.config import ModelConfig
from stretto.weights.families import FAMILIES, LAYER_TENSORS, Family, gguf_architectures
from stretto.weights.faults import invalid, unsupported
from stretto.weights.gguf import GGUFArray, GGUFFile, GGUFTensor
from stretto.weights.gguf_reader import GGUFReader
from stretto.weights.gguf_rope import read_rope
from stretto.weights.gguf_tokenizer import build_gguf_tokenizer
from stretto.weights.limits import check_config
from stretto.weights.source import ModelSource, check_tensors
from stretto.weights.tokenizer import Tokenizer

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.scale": (),
    "attention.clamp_kqv": (0.0,),
    "attention.logit_softcapping": (0.0,),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "use_parallel_residual": (False,),
}
"""Keys that change the arithmetic, and the values under which they do not; with any other value a file is refused."""

_TOP: dict[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")
_ROPE_FREQUENCIES = "rope_freqs.weight"
_ROPE_TENSORS = (_ROPE_FREQUENCIES, "rope_factors_short.weight", "rope_factors_long.weight")
_EACH = ".*."


def canonical_name(name: str, layer_tensors: Mapping[str, str] = LAYER_TENSORS) -> str | None:
    """The Hugging Face name of a GGUF tensor, or None for one that has none. ``*`` in it stands for the number of an expert."""
    match = _LAYER.fullmatch(name)
    if match is None:
        return _TOP.get(name)
    part = layer_tensors.get(match[2])
    return None if part is None else f"model.layers.{match[1]}.{part}.{match[3]}"


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor of the model lies: all rows of a tensor of the file, or one expert's."""

    tensor: GGUFTensor
    expert: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape if self.expert is None else self.tensor.shape[1:]


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
        self._family = self._find_family()
        self._tensors: dict[str, _Place] = {}
        for tensor in file.tensors.values():
            if tensor.name in _ROPE_TENSORS:
                continue
            name = canonical_name(tensor.name, self._family.layer_tensors)
            if name is None:
                raise unsupported(path, f"tensor {tensor.name} is not known")
            if len(tensor.shape) == 1 and tensor.encoding not in ("F32", "F16", "BF16"):
                raise unsupported(path, f"tensor {tensor.name} is a vector in blocks ({tensor.encoding})")
            if _EACH not in name:
                self._tensors[name] = _Place(tensor, None)
                continue
            for expert in range(tensor.shape[0] if len(tensor.shape) == 3 else 0):
                self._tensors[name.replace("*", str(expert))] = _Place(tensor, expert)
        self.config = self._read_config()
        check_tensors(path, self.config, {name: tensor.shape for name, tensor in self._tensors.items()})
        self.name = file.text("general.name") or path.stem
        self.chat_template = file.text("tokenizer.chat_template")

    def _find_family(self) -> Family:
        self._arch = self._file.text("general.architecture") or ""
        for family in FAMILIES:
            if self._arch in family.gguf:
                return family
        raise unsupported(
            self.path,
            f"general.architecture is {self._arch!r}",
            remedy=f"Computable are {', '.join(gguf_architectures())}.",
        )

    def _read_config(self) -> ModelConfig:
        file, path, arch, family = self._file, self.path, self._arch, self._family
        for key, neutral in _NEUTRAL.items():
            value = file.metadata.get(f"{arch}.{key}")
            if key in family.gguf_computed or value is None:
                continue
            if isinstance(value, GGUFArray) or value not in neutral:
                raise unsupported(path, f"{arch}.{key} is {_shown(value)}, which is not computed here")
        read = GGUFReader(file, arch, self._tensors)
        whole = read.whole
        hidden, heads = whole("embedding_length"), whole("attention.head_count")
        if heads < 1 or hidden < 1:
            raise invalid(path, f"{arch}.attention.head_count is {heads}, {arch}.embedding_length {hidden}")
        head_size = whole("attention.key_length", hidden // heads)
        if whole("attention.value_length", head_size) != head_size:
            raise unsupported(path, f"{arch}.attention.value_length differs from key_length {head_size}")
        context = whole("context_length")
        embeddings = self._tensors.get("model.embed_tokens.weight")
        if embeddings is None or len(embeddings.shape) != 2:
            raise invalid(path, "the matrix token_embd.weight is missing")
        config = ModelConfig(
            family=family.name,
            vocab_size=embeddings.shape[0],
            hidden_size=hidden,
            layers=whole("block_count"),
            heads=heads,
            kv_heads=whole("attention.head_count_kv", heads),
            head_size=head_size,
            ffn_size=whole("feed_forward_length"),
            context_tokens=context,
            norm_eps=read.number("attention.layer_norm_rms_epsilon"),
            rope=read_rope(
                file,
                arch,
                head_size,
                context,
                self._rope_frequencies(head_size),
                longrope=family.own_rope,
            ),
            tied_embeddings="lm_head.weight" not in self._tensors,
        )
        check_config(path, config, partial_rope=family.partial_rope)
        config = family.from_gguf(read, config)
        check_config(path, config, partial_rope=family.partial_rope)
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
        factors = self._bytes(_Place(tensor, None)).view("<f4")[0]
        if not bool((np.isfinite(factors) & (factors > 0)).all()):
            raise invalid(self.path, f"tensor {tensor.name} has a value that is not a positive number")
        return tuple(float(factor) for factor in factors)

    def _bytes(self, place: _Place) -> npt.NDArray[np.uint8]:
        """uint8 [rows, bytes of a row]; a vector is one row."""
        tensor = place.tensor
        rows = math.prod(tensor.shape[:-1])
        data = self._file.file.data[tensor.start : tensor.start + tensor.nbytes].reshape(rows, -1)
        if place.expert is None:
            return data
        each = tensor.shape[1]
        return data[place.expert * each : (place.expert + 1) * each]

    def raw(self, name: str) -> RawTensor:
        """See ModelSource."""
        place = self._tensors[name]
        data = self._bytes(place)
        if self._family.interleaved and (".q_proj." in name or ".k_proj." in name):
            heads = self.config.heads if ".q_proj." in name else self.config.kv_heads
            order = half_split_order(heads, self.config.head_size)
            if len(place.shape) == 1:
                data = np.ascontiguousarray(data.reshape(place.shape[0], -1)[order]).reshape(1, -1)
            else:
                data = data[order]
            data.flags.writeable = False
        return RawTensor(name, place.tensor.encoding, place.shape, data)

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
