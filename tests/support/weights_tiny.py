"""Tiny valid models for tests: GGUF files (with quantised tensors) and Hugging Face directories, a few hundred kilobytes each.

``tiny_gguf`` needs the ``gguf`` package, ``tiny_hf`` needs torch and transformers (mark such tests ``torch``). Both are
deterministic in their arguments. The tokenizer is a byte-level BPE of a few hundred tokens whose control tokens are
``<|endoftext|>`` (0, BOS as well), ``<|im_start|>`` (1) and ``<|im_end|>`` (2, EOS); the template is ChatML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from support.weights_blocks import BLOCK_VALUES, random_rows

CHATML_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = [
    "Ġthe",
    "Ġand",
    "Ġof",
    "Ġto",
    "Ġin",
    "Ġis",
    "Ġa",
    "Ġthat",
    "Ġhello",
    "Ġworld",
    "Ġcapital",
    "ĠFrance",
    "ĠParis",
    "ĠWhat",
    "Hello",
    "user",
    "assistant",
    "system",
    "Ġname",
    "Ġyou",
    "Ġare",
    "Ġhelpful",
    "def",
    "Ġreturn",
    "Ġprint",
    "ing",
    "ation",
    "ĠĠ",
    "ĠĠĠĠ",
    "ĊĊ",
    "Ã©",
    "Ġ1",
    "Ġ2",
]


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in byte-level BPE (GPT-2's table), by byte value."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet, spare = [], 0
    for byte in range(256):
        if byte in printable:
            alphabet.append(chr(byte))
        else:
            alphabet.append(chr(256 + spare))
            spare += 1
    return alphabet


@dataclass(frozen=True)
class TinyVocabulary:
    """Tokens by id and merges by rank, of a byte-level BPE."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]


@lru_cache(maxsize=1)
def tiny_vocabulary() -> TinyVocabulary:
    """The control tokens, the 256 bytes, then what the merges make."""
    tokens = [*SPECIAL_TOKENS, *byte_alphabet()]
    known, merges = set(tokens), []
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in known:
                known.add(word[:end])
                tokens.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    return TinyVocabulary(tuple(tokens), tuple(merges))


@dataclass(frozen=True)
class TinyShape:
    """Sizes of a tiny model; all default sizes suit the formats with blocks of 32 values."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    ffn: int = 96
    context: int = 256
    vocab: int = field(default_factory=lambda: len(tiny_vocabulary().tokens))

    def rounded(self, block_values: int) -> TinyShape:
        """The smallest shape at least as large whose rows are whole blocks."""

        def up(value: int) -> int:
            return -(-value // block_values) * block_values

        if block_values <= 1:
            return self
        heads = self.heads
        while (heads * self.head_size) % block_values:
            heads += self.kv_heads
        return TinyShape(
            self.layers,
            up(self.hidden),
            heads,
            self.kv_heads,
            self.head_size,
            up(self.ffn),
            self.context,
            self.vocab,
        )


def tiny_gguf(
    path: Path,
    *,
    arch: str = "llama",
    quant: str = "Q8_0",
    shape: TinyShape | None = None,
    tied: bool = True,
    seed: int = 0,
    rope_base: float = 10_000.0,
    rope_scaling: Mapping[str, object] | None = None,
    rope_factors: npt.NDArray[np.float32] | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Path:
    """Write a GGUF file of random weights and give its path back.

    Args:
        path: where; a ``.gguf`` file, or a directory in which ``tiny-<arch>.gguf`` is made.
        arch: ``llama``, ``qwen2`` (with q/k/v biases) or ``qwen3`` (with q/k norms).
        quant: encoding of every matrix; sizes are rounded up to whole blocks (256 for K-quants).
        rope_scaling: values of the ``<arch>.rope.scaling.*`` keys, e.g. ``{"type": "linear", "factor": 2.0}``.
        rope_factors: float32 [head_size / 2], the ``rope_freqs.weight`` tensor of llama 3 files.
        metadata: further keys, or other values for the keys that are written; None takes a key out.
    """
    import gguf

    if path.suffix != ".gguf":
        path.mkdir(parents=True, exist_ok=True)
        path = path / f"tiny-{arch}.gguf"
    size = (shape or TinyShape()).rounded(BLOCK_VALUES[quant])
    vocabulary = tiny_vocabulary()
    rng = np.random.default_rng(seed)
    q_rows, kv_rows = size.heads * size.head_size, size.kv_heads * size.head_size
    values: dict[str, object] = {
        "general.name": f"Tiny {arch}",
        "general.file_type": 7,
        f"{arch}.context_length": size.context,
        f"{arch}.embedding_length": size.hidden,
        f"{arch}.block_count": size.layers,
        f"{arch}.feed_forward_length": size.ffn,
        f"{arch}.attention.head_count": size.heads,
        f"{arch}.attention.head_count_kv": size.kv_heads,
        f"{arch}.attention.key_length": size.head_size,
        f"{arch}.attention.value_length": size.head_size,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.dimension_count": size.head_size,
        f"{arch}.rope.freq_base": rope_base,
        f"{arch}.vocab_size": size.vocab,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm" if arch == "llama" else "qwen2",
        "tokenizer.ggml.tokens": list(vocabulary.tokens),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL_TOKENS)
        + [1] * (len(vocabulary.tokens) - len(SPECIAL_TOKENS)),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in vocabulary.merges],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML_TEMPLATE,
    }
    for key, value in (rope_scaling or {}).items():
        values[f"{arch}.rope.scaling.{key}"] = value
    values.update(metadata or {})
    writer = gguf.GGUFWriter(str(path), arch)
    for key, value in values.items():
        _add_value(writer, key, value)

    def matrix(name: str, rows: int, columns: int) -> None:
        data = random_rows(rng, quant, rows, columns, scale=columns**-0.5)
        writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[quant])

    def vector(name: str, length: int, mean: float) -> None:
        writer.add_tensor(name, rng.normal(mean, 0.2, length).astype(np.float32))

    matrix("token_embd.weight", size.vocab, size.hidden)
    for layer in range(size.layers):
        block = f"blk.{layer}."
        vector(block + "attn_norm.weight", size.hidden, 1.0)
        matrix(block + "attn_q.weight", q_rows, size.hidden)
        matrix(block + "attn_k.weight", kv_rows, size.hidden)
        matrix(block + "attn_v.weight", kv_rows, size.hidden)
        if arch == "qwen2":
            vector(block + "attn_q.bias", q_rows, 0.0)
            vector(block + "attn_k.bias", kv_rows, 0.0)
            vector(block + "attn_v.bias", kv_rows, 0.0)
        if arch == "qwen3":
            vector(block + "attn_q_norm.weight", size.head_size, 1.0)
            vector(block + "attn_k_norm.weight", size.head_size, 1.0)
        matrix(block + "attn_output.weight", size.hidden, q_rows)
        vector(block + "ffn_norm.weight", size.hidden, 1.0)
        matrix(block + "ffn_gate.weight", size.ffn, size.hidden)
        matrix(block + "ffn_up.weight", size.ffn, size.hidden)
        matrix(block + "ffn_down.weight", size.hidden, size.ffn)
    vector("output_norm.weight", size.hidden, 1.0)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    if not tied:
        matrix("output.weight", size.vocab, size.hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_value(writer: object, key: str, value: object) -> None:
    """Give one metadata value to a GGUFWriter under the type that converters use for it."""
    import gguf

    assert isinstance(writer, gguf.GGUFWriter)
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: a {type(value).__name__} has no GGUF type here")


def tiny_hf(
    path: Path,
    *,
    family: str = "llama",
    dtype: str = "float32",
    shape: TinyShape | None = None,
    tied: bool = True,
    seed: int = 0,
    rope_base: float = 10_000.0,
    rope_scaling: Mapping[str, object] | None = None,
    max_shard_bytes: int | None = None,
) -> Path:
    """Save a random model of ``transformers`` with tokenizer and template as a directory and give its path back.

    Args:
        family: ``llama``, ``mistral``, ``qwen2`` or ``qwen3``.
        dtype: ``float32``, ``float16`` or ``bfloat16``.
        rope_scaling: config.json's ``rope_scaling`` dictionary (``rope_type`` and its parameters).
        max_shard_bytes: split the weights into shards of about this size, with an index.
    """
    import torch
    import transformers

    size = shape or TinyShape()
    config_class, model_class = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }[family]
    extra: dict[str, object] = {"sliding_window": None} if family == "mistral" else {}
    if family != "qwen2":
        extra["head_dim"] = size.head_size
    elif size.heads * size.head_size != size.hidden:
        raise ValueError("a qwen2 head is hidden / heads wide")
    config = config_class(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.ffn,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.context,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": rope_base, **(rope_scaling or {})},
        bos_token_id=0,
        eos_token_id=2,
        pad_token_id=0,
        dtype=getattr(torch, dtype),
        **extra,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim == 2:
                    weight.normal_(0.0, weight.shape[1] ** -0.5)
                else:
                    weight.normal_(0.0 if name.endswith("bias") else 1.0, 0.2)
    model = model.to(getattr(torch, dtype))
    model.generation_config.bos_token_id = 0
    model.generation_config.eos_token_id = [2, 0]
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path, max_shard_size=max_shard_bytes or "1GB")
    tiny_hf_tokenizer(path, kind="qwen2" if family.startswith("qwen") else "smollm")
    return path


def tiny_hf_tokenizer(path: Path, *, kind: str = "smollm") -> None:
    """Write tokenizer.json and tokenizer_config.json (with the template) for the tiny vocabulary."""
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

    vocabulary = tiny_vocabulary()
    tokenizer = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(vocabulary.tokens)}, merges=list(vocabulary.merges)
        )
    )
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
        "chat_template": CHATML_TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
