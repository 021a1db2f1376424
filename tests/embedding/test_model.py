"""Opening a model's directory: what is read, what is refused, and in which words."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import threadpoolctl
from safetensors.numpy import load_file, save_file

from stretto.embedding import EmbeddingModel
from stretto.errors import InvalidRequest, StartupError
from stretto.weights.safetensors import SafetensorsFile
from support.embedding_tiny import WORDS, tiny_embedder, tiny_weights, write_json


def edit_config(**changes: object) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "config.json"
        write_json(path, json.loads(path.read_text()) | changes)

    return edit


def edit_weights(change: Callable[[dict[str, np.ndarray]], object]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        tensors = tiny_weights(0)
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return edit


def edit_file(name: str, value: object) -> Callable[[Path], None]:
    return lambda directory: write_json(directory / name, value)


def remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no config": (remove("config.json"), "model_invalid", "no config.json"),
    "generator": (edit_config(architectures=["LlamaForCausalLM"]), "model_unsupported", "LlamaForCausalLM"),
    "activation": (edit_config(hidden_act="relu"), "model_unsupported", "hidden_act is 'relu'"),
    "relative positions": (
        edit_config(position_embedding_type="relative_key"), "model_unsupported", "position_embedding_type",
    ),
    "heads": (edit_config(num_attention_heads=5), "model_invalid", "32 is no multiple of num_attention_heads 5"),
    "size": (edit_config(hidden_size="32"), "model_invalid", "hidden_size is '32'"),
    "eps": (edit_config(layer_norm_eps=0), "model_invalid", "layer_norm_eps is 0"),
    "vocabulary": (edit_config(vocab_size=20), "model_invalid", "lies beyond the 20 rows"),
    "projection": (
        edit_file("modules.json", [{"type": "sentence_transformers.models.Dense"}]), "model_unsupported", "models.Dense",
    ),
    "modules": (edit_file("modules.json", {}), "model_invalid", "not a list of modules"),
    "pooling": (
        edit_file("1_Pooling/config.json", {"pooling_mode_max_tokens": True}), "model_unsupported", "pooling_mode_max_tokens",
    ),
    "length": (edit_file("sentence_bert_config.json", {"max_seq_length": 2}), "model_invalid", "max_seq_length is 2"),
    "no tokenizer": (remove("tokenizer.json"), "model_invalid", "tokenizer.json is missing"),
    "tokenizer": (edit_file("tokenizer.json", {"a": 1}), "model_invalid", "is not a tokenizer"),
    "no weights": (remove("model.safetensors"), "model_invalid", "model.safetensors is missing"),
    "missing tensor": (
        edit_weights(lambda tensors: tensors.pop("encoder.layer.1.output.dense.bias")),
        "model_invalid", "encoder.layer.1.output.dense.bias [32] is missing",
    ),
    "shape": (
        edit_weights(lambda tensors: tensors.update({"embeddings.LayerNorm.bias": np.zeros(31, np.float32)})),
        "model_invalid", "has the shape [31]",
    ),
    "more than BERT": (
        edit_weights(lambda tensors: tensors.update({"encoder.layer.2.x": np.zeros(1, np.float32)})),
        "model_unsupported", "encoder.layer.2.x",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_cannot_be_computed_is_refused(tmp_path: Path, name: str) -> None:
    directory = tiny_embedder(tmp_path / "model")
    damage, code, words = BROKEN[name]
    damage(directory)
    with pytest.raises(StartupError) as refused:
        EmbeddingModel(directory)
    assert refused.value.code == code
    assert words in refused.value.message
    assert str(directory) in refused.value.message


def test_buffers_may_be_whole_numbers_and_weights_may_not(tmp_path: Path) -> None:
    path = tiny_embedder(tmp_path / "model") / "model.safetensors"
    names = SafetensorsFile(path, buffers={"embeddings.position_ids"}).tensors
    assert set(names) == set(load_file(path)) - {"embeddings.position_ids"}
    with pytest.raises(StartupError, match="position_ids has the type 'I64'"):
        SafetensorsFile(path)


def test_the_limit_is_the_directorys_own_or_all_positions(tmp_path: Path) -> None:
    assert EmbeddingModel(tiny_embedder(tmp_path / "a", max_tokens=None)).config.max_tokens == 24
    assert EmbeddingModel(tiny_embedder(tmp_path / "b", max_tokens=9)).config.max_tokens == 9
    assert EmbeddingModel(tiny_embedder(tmp_path / "c", max_tokens=999)).config.max_tokens == 24


def test_half_precision_weights_are_read_too(tmp_path: Path) -> None:
    directory = tiny_embedder(tmp_path / "model")
    exact = EmbeddingModel(directory).forward([[2, 5, 6, 3]])
    halves = {
        name: tensor.astype(np.float16) if tensor.dtype == np.float32 else tensor
        for name, tensor in tiny_weights(0).items()
    }
    save_file(halves, directory / "model.safetensors")
    assert np.abs(EmbeddingModel(directory).forward([[2, 5, 6, 3]]) - exact).max() < 2e-3


def test_the_fingerprint_tells_models_apart_and_places_not(tmp_path: Path) -> None:
    first = EmbeddingModel(tiny_embedder(tmp_path / "a", seed=1)).fingerprint
    assert EmbeddingModel(tiny_embedder(tmp_path / "b", seed=1)).fingerprint == first
    assert EmbeddingModel(tiny_embedder(tmp_path / "c", seed=2)).fingerprint != first
    assert EmbeddingModel(tiny_embedder(tmp_path / "d", seed=1, pooling="cls")).fingerprint != first


def test_text_is_tokenised_whole_and_control_tokens_in_it_are_text(tmp_path: Path) -> None:
    model = EmbeddingModel(tiny_embedder(tmp_path / "model"))
    long = "open the account " * 10
    (ids,) = model.encode([long])
    assert len(ids) == 32  # not the 4 of the truncation that was saved with the tokenizer
    (forged,) = model.encode(["open [SEP] close"])
    assert forged.count(WORDS.index("[SEP]")) == 1


def test_of_a_very_long_text_only_the_beginning_is_tokenised(tmp_path: Path) -> None:
    model = EmbeddingModel(tiny_embedder(tmp_path / "model"))
    (many,) = model.texts.encode(["open " * 100_000])
    assert many.cut
    assert len(many.ids) > model.config.max_tokens
    (few,) = model.texts.encode([" " * 5000 + "open account"])
    assert not few.cut
    assert few.ids == model.encode(["open account"])[0]


def test_half_a_surrogate_pair_is_named(tmp_path: Path) -> None:
    model = EmbeddingModel(tiny_embedder(tmp_path / "model"))
    with pytest.raises(InvalidRequest, match=r"U\+D83D\) at character 2") as refused:
        model.encode(["open", "a \ud83d b"])
    assert refused.value.param == "input[1]"


def test_numpy_computes_in_the_thread_that_calls_it(tmp_path: Path) -> None:
    EmbeddingModel(tiny_embedder(tmp_path / "model"))
    of_numpy = [library for library in threadpoolctl.threadpool_info() if "numpy" in library["filepath"]]
    assert {library["num_threads"] for library in of_numpy} <= {1}
