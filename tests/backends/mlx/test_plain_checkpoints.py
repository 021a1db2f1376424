"""Directories as ``transformers`` writes them, computed by mlx-lm's models over our caches, against ``transformers`` itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from stretto.errors import StartupError  # noqa: E402
from support.backend_driver import Driver  # noqa: E402
from support.mlx_models import loaded  # noqa: E402
from support.torch_runs import reference_logits, reference_of_directory  # noqa: E402
from support.weights_tiny import TinyShape, tiny_hf, tiny_hf_tokenizer, tiny_vocabulary  # noqa: E402

pytestmark = [pytest.mark.mlx, pytest.mark.torch]

TOLERANCE = 1e-4
VOCAB = len(tiny_vocabulary().tokens)
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def same_as_transformers(path: Path, tokens: int = 70) -> None:
    ids = np.random.default_rng(1).integers(0, VOCAB, tokens).tolist()
    backend = loaded(path)
    assert backend._runtime is not None
    groups = len(backend._runtime.spec.layer_groups)
    driver = Driver(backend, blocks=60, shuffled=True, groups=groups)
    first, second = driver.start(ids), driver.start(ids[:33])
    found = driver.step([(first, 31), (second, 20)])
    found += driver.step([(first, tokens - 31), (second, 13)])
    model = reference_of_directory(path)
    backend.close()
    wanted = reference_logits(model, ids)
    assert float(np.abs(np.concatenate([found[0], found[2]]) - wanted).max()) < TOLERANCE
    wanted = reference_logits(model, ids[:33])
    assert float(np.abs(np.concatenate([found[1], found[3]]) - wanted).max()) < TOLERANCE


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_llama_family(tmp_path: Path, family: str, tied: bool) -> None:
    same_as_transformers(tiny_hf(tmp_path, family=family, tied=tied, rope_base=50_000.0))


@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 2.0}, LLAMA3, YARN])
def test_scaled_positions(tmp_path: Path, scaling: dict[str, Any]) -> None:
    same_as_transformers(tiny_hf(tmp_path, rope_scaling=scaling, max_shard_bytes=50_000))


def gemma3(path: Path, **changes: Any) -> Path:
    import transformers

    size = TinyShape(layers=4)
    config = transformers.Gemma3TextConfig(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.ffn, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, head_dim=size.head_size,
        max_position_embeddings=size.context, sliding_window=8, query_pre_attn_scalar=16, bos_token_id=0,
        eos_token_id=2, pad_token_id=0, **changes,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.Gemma3ForCausalLM(config)
        with torch.no_grad():
            for weight in model.parameters():
                weight.normal_(0.0, weight.shape[-1] ** -0.5 if weight.ndim == 2 else 0.2)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tiny_hf_tokenizer(path)
    return path


KINDS = ["sliding_attention", "sliding_attention", "full_attention"]


def test_a_sliding_window_that_was_long_passed(tmp_path: Path) -> None:
    ropes = {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 90_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 7_000.0},
    }
    same_as_transformers(gemma3(tmp_path, layer_types=[*KINDS, KINDS[0]], rope_parameters=ropes))


def test_layers_in_an_order_that_mlx_lm_cannot_make_are_refused(tmp_path: Path) -> None:
    path = gemma3(tmp_path, layer_types=[KINDS[0], KINDS[2], KINDS[0], KINDS[0]])
    with pytest.raises(StartupError, match="layer_types says sliding_attention for layer 3"):
        loaded(path)
