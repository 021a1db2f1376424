"""The real SmolLM2 as mlx-lm converts it, and what mlx-lm itself answers; made once, and kept in pytest's cache directory.

mlx-lm's CPU build is for tests: a token of this model takes it half a second. So prompts and answers are short, and with packed
weights it computes in float32, which is ten times as fast there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from stretto.weights import Tokenizer, dequantise, load_tokenizer, open_model

SCRIPT = Path(__file__).with_name("mlx_reference.py")

PROMPTS = (
    "The sky is",
    "Water boils at",
    "import numpy as",
    "Once upon a time",
    "Hello, my name",
    "To be or not",
    "The capital of France is",
)


@dataclass(frozen=True)
class Variant:
    """A conversion: bits a weight (None for bfloat16), the dtype that is computed in (None for the file's), the answers' length."""

    name: str
    bits: int | None
    dtype: str | None
    new_tokens: int


VARIANTS = (Variant("bf16", None, None, 3), Variant("4-bit", 4, "float32", 2))


def conversions(source_path: Path, cache: Path) -> Path:
    """A folder with one directory a variant, each with ``answers.json`` in it.

    It is made anew for another file, another version of MLX or mlx-lm, and other questions.
    """
    stat = source_path.stat()
    asked = [
        SCRIPT.read_text(),
        PROMPTS,
        [asdict(one) for one in VARIANTS],
        version("mlx"),
        version("mlx-lm"),
    ]
    key = hashlib.sha256(repr([asked, stat.st_size, stat.st_mtime_ns]).encode()).hexdigest()[:16]
    found = cache / key
    if not found.is_dir():
        # Another run may do the same at the same time; the last one's is as good as the first one's.
        with tempfile.TemporaryDirectory(dir=cache) as work:
            _convert(source_path, Path(work))
            try:
                os.rename(Path(work) / "made", found)
            except OSError:
                if not found.is_dir():
                    raise
    return found


def answers(directory: Path) -> list[list[int]]:
    """What mlx-lm answered to each of PROMPTS: token ids."""
    found: list[list[int]] = json.loads((directory / "answers.json").read_text())
    return found


def _convert(source_path: Path, work: Path) -> None:
    (work / "made").mkdir()
    tokenizer = _write_plain(source_path, work / "plain")
    job = {
        "checkpoint": str(work / "plain"),
        "prompts": [tokenizer.encode(prompt, allow_special=False) for prompt in PROMPTS],
        "variants": [{**asdict(one), "directory": str(work / "made" / one.name)} for one in VARIANTS],
    }
    (work / "job.json").write_text(json.dumps(job))
    subprocess.run([sys.executable, str(SCRIPT), str(work / "job.json")], check=True, stdout=sys.stderr)


def _write_plain(source_path: Path, directory: Path) -> Tokenizer:
    """SmolLM2 as Hugging Face lays it out, in bfloat16, from its GGUF file."""
    source = open_model(source_path)
    config = source.config
    directory.mkdir()
    weights: Any = {
        name: mx.array(dequantise(source.raw(name))).astype(mx.bfloat16) for name in source.tensor_names()
    }
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "pt"})
    tokenizer = load_tokenizer(source)
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": config.context_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": config.rope.base,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": tokenizer.eos_id,
    }
    (directory / "config.json").write_text(json.dumps(values))
    (directory / "tokenizer.json").write_text(tokenizer._special.to_str())
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "chat_template": source.chat_template,
        "clean_up_tokenization_spaces": False,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    source.close()
    return tokenizer
