"""A torch backend with a model in it, and the independent truth to compare with.

``reference_logits`` runs ``transformers`` over the same tokens in one go, with its plain attention and no cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from stretto.backends.base import Float32Array
from stretto.backends.torch import TorchBackend
from stretto.weights import ModelConfig, ModelSource, dequantise, open_model
from support.backend_driver import silent


def loaded(path: Path, **options: Any) -> TorchBackend:
    """A backend with a model in it; in float32 and on one thread (which a busy machine slows least) unless told so."""
    source = open_model(path)
    backend = TorchBackend(source, **{"device": "cpu", "dtype": "float32", "threads": 1, **options})
    backend.load(silent)
    source.close()
    return backend


def reference_of_directory(path: Path) -> Any:
    """``transformers``' own reading of a Hugging Face directory, in float32."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def reference_of_source(source: ModelSource) -> Any:
    """A ``transformers`` llama with the dequantised weights of an opened model."""
    import transformers

    config: ModelConfig = source.config
    assert config.family == "llama"
    assert config.rope.scaling == "none"
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.ffn_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                head_dim=config.head_size,
                max_position_embeddings=config.context_tokens,
                rms_norm_eps=config.norm_eps,
                tie_word_embeddings=config.tied_embeddings,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.base},
                attn_implementation="eager",
            )
        )
    weights = {name: torch.from_numpy(dequantise(source.raw(name))) for name in source.tensor_names()}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    # A buffer, so not in the state dict, and made on the meta device above.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    assert not [name for name, value in model.named_parameters() if value.is_meta]
    return model.eval()


def reference_logits(model: Any, tokens: Sequence[int], rows: int = 0) -> Float32Array:
    """[rows, vocab] of the last tokens (0: of all), rounded to float32 where the model computes in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)]), use_cache=False, logits_to_keep=rows).logits[0]
    result: Float32Array = logits.float().numpy()
    return result
