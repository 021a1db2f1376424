"""Hugging Face directories: safetensors against its own library, configuration, templates, refusals."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stretto.errors import StartupError
from stretto.weights import ModelConfig, RopeConfig, dequantise, load_tokenizer, open_model
from stretto.weights.safetensors import SafetensorsFile
from support.weights_tiny import CHATML_TEMPLATE, TinyShape, tiny_hf_tokenizer

SHAPE = TinyShape()
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": SHAPE.hidden,
    "intermediate_size": SHAPE.ffn,
    "num_hidden_layers": SHAPE.layers,
    "num_attention_heads": SHAPE.heads,
    "num_key_value_heads": SHAPE.kv_heads,
    "max_position_embeddings": SHAPE.context,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000,
    "vocab_size": SHAPE.vocab,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def weights(dtype: type[np.generic] = np.float32, *, seed: int = 3) -> dict[str, np.ndarray]:
    """Random tensors for CONFIG."""
    config = ModelConfig(
        "llama", SHAPE.vocab, SHAPE.hidden, SHAPE.layers, SHAPE.heads, SHAPE.kv_heads, SHAPE.head_size, SHAPE.ffn,
        SHAPE.context, 1e-5, RopeConfig(10_000.0, SHAPE.head_size), True,
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(dtype) for name, shape in config.tensor_shapes().items()}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A whole tiny model, made without torch."""
    path = tmp_path / "tiny-model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 1]}))
    save_file(weights(), path / "model.safetensors", metadata={"format": "pt"})
    tiny_hf_tokenizer(path)
    return path


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; ``...`` takes a key out."""
    contents = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in contents.items() if value is not ...}))


def refusal(path: Path, opener: Callable[[Path], object] = open_model) -> StartupError:
    with pytest.raises(StartupError) as caught:
        opener(path)
    return caught.value


def test_a_whole_directory(directory: Path) -> None:
    model = open_model(directory)
    assert (model.format, model.name, model.chat_template) == ("hf", "tiny-model", CHATML_TEMPLATE)
    assert model.config.tied_embeddings
    assert model.config.head_size == 16
    wanted = load_file(directory / "model.safetensors")
    assert {*model.tensor_names()} == {*wanted}
    for name, value in wanted.items():
        raw = model.raw(name)
        assert (raw.encoding, raw.nbytes, raw.data.flags.writeable) == ("F32", value.nbytes, False)
        assert np.array_equal(dequantise(raw), value)
    tokenizer = load_tokenizer(model)
    assert tokenizer.end_ids == {0, 1, 2}
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.add_bos) == (
        "<|endoftext|>",
        "<|im_end|>",
        False,
    )
    model.close()


@pytest.mark.torch
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_transformers_saves(tmp_path: Path, family: str, dtype: str) -> None:
    import torch
    import transformers

    from support.weights_tiny import tiny_hf

    path = tiny_hf(
        tmp_path / "m", family=family, dtype=dtype, tied=False, max_shard_bytes=60_000, rope_base=3e4
    )
    assert len(list(path.glob("model-*.safetensors"))) > 1
    model = open_model(path)
    assert model.config.family == ("llama" if family == "mistral" else family)
    assert model.config.rope.base == 3e4
    reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).state_dict()
    assert {*model.tensor_names()} == {*reference}
    for name, value in reference.items():
        assert np.array_equal(dequantise(model.raw(name)), value.numpy()), name


def test_fingerprint_follows_the_contents(directory: Path, tmp_path: Path) -> None:
    first = open_model(directory).fingerprint
    moved = directory.rename(tmp_path / "elsewhere")
    assert open_model(moved).fingerprint == first
    save_file(weights(seed=4), moved / "model.safetensors", metadata={"format": "pt"})
    second = open_model(moved).fingerprint
    (moved / "chat_template.jinja").write_text("{{ messages }}")
    assert len({first, second, open_model(moved).fingerprint}) == 3


def test_where_the_template_comes_from(directory: Path) -> None:
    change(
        directory / "tokenizer_config.json",
        chat_template=[{"name": "default", "template": "one"}, {"name": "x"}],
    )
    assert open_model(directory).chat_template == "one"
    (directory / "chat_template.json").write_text('{"chat_template": "two"}')
    assert open_model(directory).chat_template == "two"
    (directory / "chat_template.jinja").write_text("three")
    assert open_model(directory).chat_template == "three"
    (directory / "chat_template.jinja").unlink()
    (directory / "chat_template.json").unlink()
    change(directory / "tokenizer_config.json", chat_template=...)
    assert open_model(directory).chat_template is None
    change(directory / "tokenizer_config.json", chat_template=[{"name": "rag", "template": "x"}])
    assert "none named default" in refusal(directory).message


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has neither tokenizer.json nor tokenizer.model"),
        ("model.safetensors", "neither model.safetensors nor model.safetensors.index.json"),
    ],
)
def test_a_missing_file_is_named(directory: Path, name: str, words: str) -> None:
    (directory / name).unlink()
    assert words in refusal(directory).message


CONFIG_REFUSALS: dict[str, tuple[dict[str, Any], str, str]] = {
    "architecture": (
        {"architectures": ["GPT2LMHeadModel"]},
        "model_unsupported",
        "architectures is ['GPT2LMHead",
    ),
    "no architecture": ({"architectures": ...}, "model_unsupported", "architectures is None"),
    "quantised": (
        {"quantization_config": {"bits": 4}},
        "model_unsupported",
        "quantization_config is {'bits': 4}",
    ),
    "activation": ({"hidden_act": "gelu"}, "model_unsupported", "hidden_act is 'gelu'"),
    "mlp bias": ({"mlp_bias": True}, "model_unsupported", "mlp_bias is True"),
    "attention bias": ({"attention_bias": True}, "model_unsupported", "attention_bias is True"),
    "window": ({"sliding_window": 128}, "model_unsupported", "sliding_window is 128"),
    "layer types": ({"layer_types": ["chunked_attention"] * 2}, "model_unsupported", "['chunked_attention'"),
    "layer types of a part": ({"layer_types": ["full_attention"]}, "model_invalid", "1 entries for 2 layers"),
    "layers with a window": (
        {"layer_types": ["full_attention", "sliding_attention"]},
        "model_unsupported",
        "sliding_window is missing",
    ),
    "rope kind": (
        {"rope_scaling": {"rope_type": "longrope"}},
        "model_unsupported",
        "rope_type is 'longrope'",
    ),
    "rope key": (
        {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1]}},
        "model_unsupported",
        "mrope_section",
    ),
    "rope by layer": ({"rope_parameters": {"full_attention": {}}}, "model_unsupported", "full_attention"),
    "rope factor": (
        {"rope_scaling": {"type": "linear", "factor": 0}},
        "model_invalid",
        "scaling factor is 0.0",
    ),
    "rope no factor": ({"rope_scaling": {"type": "linear"}}, "model_invalid", "factor is missing"),
    "rope bounds": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
        "model_invalid",
        "bounds are 4.0 and 1.0",
    ),
    "partial rope": ({"partial_rotary_factor": 0.5}, "model_unsupported", "on 8 of 16 values"),
    "no size": ({"hidden_size": ...}, "model_invalid", "hidden_size is missing"),
    "text size": ({"hidden_size": "64"}, "model_invalid", "hidden_size is '64'"),
    "true size": ({"num_hidden_layers": True}, "model_invalid", "num_hidden_layers is True"),
    "negative": ({"vocab_size": -1}, "model_invalid", "vocab_size is -1"),
    "huge": ({"num_hidden_layers": 10**9}, "model_invalid", "layers is 1000000000"),
    "huge number": ({"rms_norm_eps": 10**400}, "model_invalid", "not a number"),
    "epsilon": ({"rms_norm_eps": float("nan")}, "model_invalid", "norm_eps is nan"),
    "wrong shape": ({"intermediate_size": 97}, "model_invalid", "has the shape [96, 64]"),
    "untied": ({"tie_word_embeddings": False}, "model_invalid", "lm_head.weight [364, 64] is missing"),
    "family": ({"architectures": ["Qwen2ForCausalLM"]}, "model_invalid", "q_proj.bias [64] is missing"),
}


@pytest.mark.parametrize("name", list(CONFIG_REFUSALS))
def test_a_configuration_that_cannot_be_computed(directory: Path, name: str) -> None:
    values, code, words = CONFIG_REFUSALS[name]
    change(directory / "config.json", **values)
    error = refusal(directory)
    assert error.code == code
    assert words in error.message


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "is not a JSON object"),
        ('{"a": 1, "a": 2}', "the key 'a' comes twice"),
        ("[" * 200_000, "is not valid JSON"),
    ],
)
def test_broken_json(directory: Path, contents: str, words: str) -> None:
    (directory / "config.json").write_text(contents)
    assert words in refusal(directory).message


def test_shards(directory: Path) -> None:
    tensors = weights()
    names = sorted(tensors)
    (directory / "model.safetensors").unlink()
    index = directory / "model.safetensors.index.json"

    def write(weight_map: object) -> None:
        index.write_text(json.dumps({"weight_map": weight_map}))

    save_file({name: tensors[name] for name in names[:7]}, directory / "a.safetensors")
    save_file({name: tensors[name] for name in names[7:]}, directory / "b.safetensors")
    write({name: "a.safetensors" if name in names[:7] else "b.safetensors" for name in names})
    model = open_model(directory)
    assert all(np.array_equal(dequantise(model.raw(name)), tensors[name]) for name in names)
    (directory / "b.safetensors").rename(directory / "c.safetensors")
    assert "the file b.safetensors is missing" in refusal(directory).message
    write({names[0]: "a.safetensors"})
    assert "is missing" in refusal(directory).message
    save_file({name: tensors[name] for name in names[6:]}, directory / "b.safetensors")
    write({names[0]: "a.safetensors", names[-1]: "b.safetensors"})
    assert f"tensor {names[6]} is in b.safetensors and in a.safetensors" in refusal(directory).message
    for stray in ("../a.safetensors", "/etc/passwd", "sub/a.safetensors", 7, "a.bin"):
        write({names[0]: stray})
        assert "not a file of this directory" in refusal(directory).message
    write({})
    assert "weight_map is missing or empty" in refusal(directory).message


def test_tensors_that_may_be_left_out(directory: Path) -> None:
    more = weights() | {
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "lm_head.weight": np.ones((SHAPE.vocab, SHAPE.hidden), np.float32),
    }
    save_file(more, directory / "model.safetensors")
    model = open_model(directory)
    assert "lm_head.weight" not in model.tensor_names()
    with pytest.raises(KeyError):
        model.raw("lm_head.weight")
    save_file(weights() | {"model.extra": np.ones(1, np.float32)}, directory / "model.safetensors")
    error = refusal(directory)
    assert (error.code, "tensor model.extra is not part" in error.message) == ("model_unsupported", True)


def container(header: object, data: bytes = b"") -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "short": (b"\0" * 7, "too few"),
    "huge header": (struct.pack("<Q", (1 << 64) - 1) + b"{}", "header of 18446744073709551615 bytes"),
    "header past the end": (struct.pack("<Q", 100) + b"{}", "header of 100 bytes"),
    "no JSON": (container(b"\xff\xfe"), "not valid JSON"),
    "deep JSON": (container(b"[" * 100_000), "not valid JSON"),
    "an array": (container([]), "not a JSON object"),
    "name twice": (container(b'{"a": {}, "a": {}}'), "comes twice"),
    "no object": (container({"a": 1}), "tensor a is not described"),
    "strange type": (container({"a": entry("I64", [1])}, b"\0" * 8), "tensor a has the type 'I64'"),
    "quantised type": (container({"a": entry("Q4_0", [32], [0, 18])}, b"\0" * 18), "has the type 'Q4_0'"),
    "no shape": (container({"a": entry(shape=None)}, b"\0" * 8), "has the shape None"),
    "negative shape": (container({"a": entry(shape=[-2])}, b"\0" * 8), "has the shape [-2]"),
    "truth shape": (container({"a": entry(shape=[True, 2])}, b"\0" * 8), "has the shape"),
    "huge shape": (container({"a": entry(shape=[1 << 60])}, b"\0" * 8), "has the data_offsets"),
    "offsets past the end": (container({"a": entry()}, b"\0" * 4), "it is truncated or its header is wrong"),
    "offsets backwards": (container({"a": entry(offsets=[8, 0])}, b"\0" * 8), "has the data_offsets [8, 0]"),
    "three offsets": (container({"a": entry(offsets=[0, 8, 9])}, b"\0" * 8), "has the data_offsets"),
    "gap": (container({"a": entry(offsets=[4, 12])}, b"\0" * 12), "begins at offset"),
    "overlap": (container({"a": entry(), "b": entry(offsets=[4, 12])}, b"\0" * 12), "tensor b begins at"),
    "more data": (container({"a": entry()}, b"\0" * 9), "but its tensors at"),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_safetensors_file(tmp_path: Path, name: str) -> None:
    data, words = HOSTILE[name]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        error = refusal(path, SafetensorsFile)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words in error.message
    assert error.code in ("model_invalid", "model_unsupported")
    assert peak < 1 << 21


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file({"a": np.ones((3, 4), np.float32), "b": np.zeros(5, np.float16)}, path)
    whole = path.read_bytes()
    rng, refusals, codes = random.Random(2), 0, set[str]()
    for _ in range(800):
        data = bytearray(whole[: rng.choice((len(whole), len(whole), rng.randrange(len(whole))))])
        for _ in range(rng.choice((0, 1, 3))):
            if data:
                data[rng.randrange(len(data))] = rng.choice(b'0123456789[]{}",:\xff\0 ')
        path.write_bytes(data)
        try:
            file = SafetensorsFile(path)
            for tensor in file.tensors.values():
                assert 8 <= tensor.start <= tensor.end <= len(data)
            file.file.close()
        except StartupError as error:
            codes.add(error.code)
            refusals += 1
    assert refusals > 200
    assert codes == {"model_invalid", "model_unsupported"}
