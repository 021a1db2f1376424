"""GGUF files as models: configuration, names, row order, rotary scaling, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from stretto.errors import StartupError
from stretto.weights import dequantise, open_model
from stretto.weights.gguf_model import canonical_name, half_split_order
from support.weights_tiny import CHATML_TEMPLATE, TinyShape, tiny_gguf


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_configuration_and_facts(tmp_path: Path, arch: str) -> None:
    shape = TinyShape(layers=3, hidden=96, heads=6, kv_heads=3, head_size=32, ffn=160, context=512)
    model = open_model(tiny_gguf(tmp_path, arch=arch, shape=shape, rope_base=5e5, tied=False))
    config = model.config
    assert (config.family, config.layers, config.hidden_size, config.ffn_size) == (arch, 3, 96, 160)
    assert (config.heads, config.kv_heads, config.head_size) == (6, 3, 32)
    assert (config.vocab_size, config.context_tokens) == (shape.vocab, 512)
    assert config.norm_eps == pytest.approx(1e-5)
    assert (config.rope.base, config.rope.dims, config.rope.scaling) == (5e5, 32, "none")
    assert (config.tied_embeddings, config.attention_bias, config.qk_norm) == (
        False,
        arch == "qwen2",
        arch == "qwen3",
    )
    assert (model.format, model.name, model.chat_template) == ("gguf", f"Tiny {arch}", CHATML_TEMPLATE)
    names = model.tensor_names()
    assert names[0] == "model.embed_tokens.weight"
    assert names[-1] == "lm_head.weight"
    with pytest.raises(KeyError):
        model.raw("model.layers.3.mlp.up_proj.weight")


@pytest.mark.parametrize("quant", ["F32", "BF16", "Q4_1", "Q6_K"])
def test_tensors_are_the_files_rows(tmp_path: Path, quant: str) -> None:
    path = tiny_gguf(tmp_path, quant=quant)
    model = open_model(path)
    config = model.config
    for item in gguf.GGUFReader(path).tensors:
        name = canonical_name(item.name)
        assert name is not None
        raw = model.raw(name)
        wanted = dequantize(item.data, item.tensor_type).reshape(raw.shape)
        for part, heads in (("q_proj", config.heads), ("k_proj", config.kv_heads)):
            if part in name:
                # Written out by hand: file row 2i of a head is row i, file row 2i + 1 is row i + half.
                half = config.head_size // 2
                order = [
                    h * 2 * half + 2 * (r % half) + r // half for h in range(heads) for r in range(2 * half)
                ]
                wanted = wanted[order]
        assert np.array_equal(dequantise(raw), wanted)
        with pytest.raises(ValueError, match="read-only"):
            raw.data[0, 0] = 1


def test_half_split_order_undoes_the_converters_permutation() -> None:
    heads, size = 3, 8
    rows = np.arange(heads * size)
    # As converters permute: (heads, 2, size / 2) to (heads, size / 2, 2).
    stored = rows.reshape(heads, 2, size // 2).swapaxes(1, 2).reshape(-1)
    assert np.array_equal(stored[half_split_order(heads, size)], rows)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("arch", "quant"), [("llama", "Q8_0"), ("qwen2", "Q5_0"), ("qwen3", "Q4_1")])
def test_tensors_equal_those_that_transformers_loads(tmp_path: Path, arch: str, quant: str) -> None:
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = tiny_gguf(tmp_path, arch=arch, quant=quant, tied=False)
    config = transformers.AutoConfig.for_model(**load_gguf_checkpoint(path)["config"])
    empty = transformers.AutoModelForCausalLM.from_config(config)
    reference = load_gguf_checkpoint(path, return_tensors=True, model_to_load=empty)["tensors"]
    assert {*reference} == {*empty.state_dict()}
    model = open_model(path)
    assert {*model.tensor_names()} == {*reference}
    for name in model.tensor_names():
        assert np.array_equal(dequantise(model.raw(name)), reference[name].numpy()), name


def test_fingerprint(tmp_path: Path) -> None:
    path = tiny_gguf(tmp_path / "a.gguf")
    first = open_model(path).fingerprint
    copy = shutil.copy(path, tmp_path / "b.gguf")
    assert open_model(copy).fingerprint == first
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    assert open_model(path).fingerprint != first
    assert open_model(tiny_gguf(tmp_path / "c.gguf", metadata={"general.name": "Other"})).fingerprint != first
    assert len(first) == 64


def test_rope_scalings(tmp_path: Path) -> None:
    def rope(**scaling: object) -> object:
        return open_model(tiny_gguf(tmp_path / "rope.gguf", rope_scaling=scaling)).config.rope

    linear = rope(type="linear", factor=4.0)
    assert (linear.scaling, linear.factor, linear.attention_scale) == ("linear", 4.0, 1.0)
    assert rope(factor=4.0) == linear
    yarn = rope(type="yarn", factor=4.0, original_context_length=64, yarn_beta_fast=16.0)
    assert (yarn.scaling, yarn.original_context_tokens, yarn.beta_fast, yarn.beta_slow) == (
        "yarn",
        64,
        16.0,
        1.0,
    )
    assert yarn.attention_scale == pytest.approx(0.1 * np.log(4) + 1)
    assert rope(type="none", factor=1.0).scaling == "none"
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    by_tensor = open_model(tiny_gguf(tmp_path / "llama3.gguf", rope_factors=divisors)).config.rope
    assert by_tensor.scaling == "llama3"
    plain = 10_000.0 ** (-np.arange(0, 16, 2) / 16)
    assert by_tensor.inverse_frequencies() == pytest.approx(plain / divisors, rel=1e-6)
    assert linear.inverse_frequencies() == pytest.approx(plain / 4, rel=1e-6)


REFUSED: dict[str, tuple[dict[str, object], str, str]] = {
    "architecture": (
        {"general.architecture": "mamba"},
        "model_unsupported",
        "general.architecture is 'mamba'",
    ),
    "experts": ({"llama.expert_count": 8}, "model_unsupported", "llama.expert_count is 8"),
    "embedding scale": ({"llama.embedding_scale": 2.0}, "model_unsupported", "embedding_scale is 2.0"),
    "scale": ({"llama.logit_scale": 0.5}, "model_unsupported", "llama.logit_scale is 0.5"),
    "parts": ({"split.count": 3}, "model_unsupported", "one part of 3"),
    "value size": ({"llama.attention.value_length": 8}, "model_unsupported", "value_length differs"),
    "partial rope": ({"llama.rope.dimension_count": 8}, "model_unsupported", "on 8 of 16 values"),
    "rope key": ({"llama.rope.wobble": 1}, "model_unsupported", "llama.rope.wobble is not known"),
    "rope kind": ({"llama.rope.scaling.type": "longrope"}, "model_unsupported", "'longrope'"),
    "rope multiplier": (
        {"llama.rope.scaling.yarn_log_multiplier": 0.1},
        "model_unsupported",
        "yarn_log_multiplier",
    ),
    "rope factor": (
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": -2.0},
        "model_invalid",
        "scaling factor is -2.0",
    ),
    "rope base": ({"llama.rope.freq_base": 0.0}, "model_invalid", "rotary base is 0.0"),
    "no layers": ({"llama.block_count": 0}, "model_invalid", "layers is 0"),
    "countless layers": (
        {"llama.block_count": 4_000_000_000},
        "model_invalid",
        "layers is 4000000000, out of",
    ),
    "more layers": (
        {"llama.block_count": 3},
        "model_invalid",
        "model.layers.2.input_layernorm.weight [64] is missing",
    ),
    "fewer layers": ({"llama.block_count": 1}, "model_unsupported", "tensor model.layers.1."),
    "wrong width": (
        {"llama.feed_forward_length": 128},
        "model_invalid",
        "gate_proj.weight has the shape [96, 64]",
    ),
    "no heads": ({"llama.attention.head_count": 0}, "model_invalid", "head_count is 0"),
    "odd sharing": ({"llama.attention.head_count_kv": 3}, "model_invalid", "4 query heads cannot share 3"),
    "epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "model_invalid", "rms_epsilon is missing"),
    "context": ({"llama.context_length": None}, "model_invalid", "llama.context_length is missing"),
    "kind of value": ({"llama.context_length": "long"}, "model_invalid", "context_length is not a number"),
    "per layer": (
        {"llama.feed_forward_length": [96, 64]},
        "model_unsupported",
        "differs from layer to layer",
    ),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_computed_is_refused(tmp_path: Path, name: str) -> None:
    metadata, code, words = REFUSED[name]
    path = tiny_gguf(tmp_path / "x.gguf", metadata=metadata)
    with pytest.raises(StartupError) as caught:
        open_model(path)
    assert caught.value.code == code
    assert words in caught.value.message


def test_equal_sizes_for_each_layer_and_neutral_keys_are_accepted(tmp_path: Path) -> None:
    metadata: dict[str, object] = {
        "llama.attention.head_count_kv": [2, 2],
        "llama.expert_count": 0,
        "llama.attention.sliding_window": 4096,
        "llama.unheard_of": 5,
    }
    assert open_model(tiny_gguf(tmp_path, metadata=metadata)).config.kv_heads == 2


def test_tensors_that_do_not_belong(tmp_path: Path) -> None:
    data = tiny_gguf(tmp_path / "x.gguf").read_bytes()
    path = tmp_path / "y.gguf"
    path.write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    with pytest.raises(StartupError, match=r"tensor blk\.1\.ffn_xx\.weight is not known"):
        open_model(path)
    path.write_bytes(data.replace(b"output_norm.weight", b"output_xxxx.weight"))
    with pytest.raises(StartupError, match=r"tensor output_xxxx\.weight is not known"):
        open_model(path)
