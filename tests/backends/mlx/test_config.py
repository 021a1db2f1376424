"""What mlx-lm's models are told of config.json: nothing that changes the arithmetic is dropped in silence."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from stretto.backends.mlx.config import (
    check_layer_types,
    context_tokens,
    prepare_config,
    unused_window,
)
from stretto.backends.mlx.zoo import find_architecture
from stretto.errors import StartupError

pytestmark = pytest.mark.mlx

WHERE = Path("config.json")
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5, "low_freq_factor": 1.0}


def prepared(family: str, *, own_head: bool = False, **values: Any) -> dict[str, Any]:
    config = {"model_type": family, **values}
    return prepare_config(WHERE, config, find_architecture(config), own_head=own_head)


def test_rotary_parameters_as_one_object_are_put_where_the_model_reads_them() -> None:
    plain = prepared("llama", rope_parameters={"rope_type": "default", "rope_theta": 1e5})
    assert (plain["rope_theta"], plain.get("rope_scaling")) == (1e5, None)
    scaled = prepared("llama", rope_parameters=LLAMA3)
    assert scaled["rope_theta"] == 5e5
    assert scaled["rope_scaling"] == LLAMA3
    older = prepared("llama", rope_parameters={"rope_theta": 1e5}, rope_theta=7.0)
    assert older["rope_theta"] == 7.0
    itself = prepared("qwen3", rope_parameters={"rope_theta": 1e5})
    assert "rope_theta" not in itself


def test_rotary_parameters_by_layer_type() -> None:
    both = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    kinds = ["sliding_attention", "sliding_attention", "full_attention"]
    found = prepared("gemma3_text", rope_parameters=both, layer_types=kinds)
    assert (found["rope_theta"], found["rope_local_base_freq"]) == (1e6, 3e4)
    assert found["rope_scaling"]["factor"] == 8.0
    assert found["sliding_window_pattern"] == 3
    inside = prepared("gemma3", text_config={"rope_parameters": both, "layer_types": kinds})["text_config"]
    assert (inside["rope_theta"], inside["sliding_window_pattern"]) == (1e6, 3)
    for wrong in (
        {**both, "chunked_attention": {"rope_theta": 1.0}},
        {**both, "sliding_attention": LLAMA3},
        {"sliding_attention": {"rope_theta": 1.0}},
    ):
        with pytest.raises(StartupError, match="by layer type") as caught:
            prepared("gemma3_text", rope_parameters=wrong)
        assert caught.value.code == "model_unsupported"


def test_scaling_that_the_model_would_not_do_is_refused() -> None:
    for values in ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_parameters": LLAMA3}):
        with pytest.raises(StartupError, match="mlx-lm's gemma2 does not scale positions"):
            prepared("gemma2", **values)
    assert prepared("gemma2", rope_scaling={"rope_type": "default"})


def test_an_output_projection_is_not_dropped_where_the_file_does_not_speak_of_tying() -> None:
    assert prepared("llama", own_head=True)["tie_word_embeddings"] is False
    assert prepared("llama", own_head=True, tie_word_embeddings=True)["tie_word_embeddings"] is True
    assert "tie_word_embeddings" not in prepared("llama")


def test_program_code_of_the_model_is_not_run() -> None:
    with pytest.raises(StartupError, match=r"model_file is 'modelling\.py'.*not run"):
        prepared("llama", model_file="modelling.py")


def test_numbers_that_json_does_not_have() -> None:
    found = prepared("llama", limits=[{"__float__": "Infinity"}, {"__float__": "none"}])
    assert found["limits"] == [math.inf, {"__float__": "none"}]


def test_the_context_by_whoever_says_it() -> None:
    inner = SimpleNamespace(args=SimpleNamespace(max_position_embeddings=77))
    assert context_tokens({"max_position_embeddings": 5}, object()) == 5
    assert context_tokens({"text_config": {"max_seq_len": 9}, "max_position_embeddings": 5}, object()) == 9
    assert context_tokens({}, SimpleNamespace(language_model=inner)) == 77
    assert context_tokens({"max_position_embeddings": "many"}, object()) is None


def test_a_window_that_is_not_computed() -> None:
    assert unused_window({"sliding_window": 8}, windows=False) == 8
    assert unused_window({"sliding_window": 8}, windows=True) is None
    assert unused_window({"sliding_window": 8, "use_sliding_window": False}, windows=False) is None
    assert unused_window({"sliding_window": None}, windows=False) is None
    assert unused_window({"text_config": {"sliding_window": 4}}, windows=False) == 4


def test_layers_are_what_the_file_says() -> None:
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    check_layer_types(WHERE, kinds, [True, False])
    check_layer_types(WHERE, {}, [True])
    with pytest.raises(
        StartupError, match="full_attention for layer 1, and mlx-lm computes a sliding window"
    ):
        check_layer_types(WHERE, kinds, [True, True])
    with pytest.raises(
        StartupError, match="sliding_attention for layer 0, and mlx-lm computes full attention"
    ):
        check_layer_types(WHERE, {"text_config": kinds}, [False, False])
