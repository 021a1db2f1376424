"""What mlx-lm's models are told: config.json, with what they would drop in silence put where they read it, or refused. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stretto.backends.mlx.zoo import Architecture
from stretto.weights.faults import invalid, unsupported

_TAGGED = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_CONTEXT_KEYS = (
    "max_position_embeddings",
    "max_sequence_length",
    "max_seq_len",
    "model_max_length",
    "seq_length",
    "n_positions",
    "n_ctx",
)


def prepare_config(
    path: Path, values: Mapping[str, Any], architecture: Architecture, *, own_head: bool
) -> dict[str, Any]:
    """A copy of config.json for ``Architecture.build``.

    Transformers 5 writes rotary parameters as one object, by layer type where they differ; most models of mlx-lm read the older
    keys and would compute with their defaults.

    Args:
        path: of config.json, for messages.
        values: its contents.
        architecture: which of its keys the model takes.
        own_head: the weights have an output projection besides the embedding table.

    Raises:
        StartupError: ``model_unsupported``, when part of it would be left out of the computation or runs foreign code.
    """
    if values.get("model_file") is not None:
        raise unsupported(
            path,
            f"model_file is {values['model_file']!r}: the model brings program code of its own, which is not run",
        )
    config: dict[str, Any] = _untagged(values)
    for part in _parts(config):
        _flatten_rope(path, part, architecture if part is config else None)
        if own_head:
            # Where it is left out, the default is not the same everywhere, and the projection's weights would be dropped.
            part.setdefault("tie_word_embeddings", False)
    _complete_pattern(config)
    scaling = config.get("rope_scaling")
    if (
        isinstance(scaling, dict)
        and not architecture.takes("rope_scaling")
        and _rope_type(scaling) != "default"
    ):
        raise unsupported(
            path,
            f"rope_type is {_rope_type(scaling)!r}, and mlx-lm's {architecture.module} does not scale positions",
        )
    return config


def context_tokens(values: Mapping[str, Any], model: object) -> int | None:
    """The longest context that the model was made for; the configuration's word, else the default of the model's arguments."""
    arguments = [
        getattr(part, "args", None)
        for part in (model, getattr(model, "language_model", None), getattr(model, "model", None))
    ]
    for source in (
        *reversed(_parts(values)),
        *(vars(item) for item in arguments if hasattr(item, "__dict__")),
    ):
        for key in _CONTEXT_KEYS:
            found = source.get(key)
            if type(found) is int and found > 0:
                return found
    return None


def unused_window(values: Mapping[str, Any], *, windows: bool) -> int | None:
    """A sliding window that the configuration has and the model does not compute; within it nothing is lost.

    Args:
        values: config.json.
        windows: whether any layer of the model has one.
    """
    part = _parts(values)[-1]
    window = part.get("sliding_window")
    if windows or type(window) is not int or part.get("use_sliding_window") is False:
        return None
    return window


def check_layer_types(path: Path, values: Mapping[str, Any], windows: list[bool]) -> None:
    """Compare the configuration's layer types with what the model computes.

    Args:
        path: of config.json, for messages.
        values: its contents.
        windows: for each layer that has a cache, whether it looks back a window only.

    Raises:
        StartupError: ``model_unsupported``, when a layer is computed as another type than it is.
    """
    kinds = _parts(values)[-1].get("layer_types")
    if not isinstance(kinds, list):
        return
    for number, (kind, window) in enumerate(zip(kinds, windows, strict=False)):
        if kind in ("full_attention", "sliding_attention") and (kind == "sliding_attention") != window:
            computed = "a sliding window" if window else "full attention"
            raise unsupported(
                path, f"layer_types says {kind} for layer {number}, and mlx-lm computes {computed} there"
            )


def _parts(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The configuration, and the language model's part of it if there is one."""
    text = values.get("text_config")
    return [dict(values) if not isinstance(values, dict) else values] + (
        [text] if isinstance(text, dict) else []
    )


def _flatten_rope(path: Path, config: dict[str, Any], architecture: Architecture | None) -> None:
    rope = config.get("rope_parameters")
    if rope is None or (architecture is not None and architecture.takes("rope_parameters")):
        return
    if not isinstance(rope, dict):
        raise invalid(path, f"rope_parameters is {rope!r}, not an object")
    by_type = {kind: found for kind, found in rope.items() if isinstance(found, dict)}
    if by_type:
        main = by_type.pop("full_attention", None)
        local = by_type.pop("sliding_attention", None)
        if main is None or by_type or (local is not None and _rope_type(local) != "default"):
            raise unsupported(
                path, "rope_parameters has rotary positions by layer type that mlx-lm does not compute"
            )
        if local is not None and "rope_theta" in local:
            config.setdefault("rope_local_base_freq", local["rope_theta"])
        rope = main
    for key in ("rope_theta", "partial_rotary_factor"):
        if rope.get(key) is not None:
            config.setdefault(key, rope[key])
    if _rope_type(rope) != "default" and config.get("rope_scaling") is None:
        config["rope_scaling"] = {key: value for key, value in rope.items() if value is not None}


def _rope_type(rope: Mapping[str, Any]) -> object:
    return rope.get("rope_type") or rope.get("type") or "default"


def _complete_pattern(config: dict[str, Any]) -> None:
    """Give the distance of full layers where the model reads that, and the file lists the layers' types."""
    for part in _parts(config):
        kinds = part.get("layer_types")
        if isinstance(kinds, list) and "full_attention" in kinds and "sliding_attention" in kinds:
            part.setdefault("sliding_window_pattern", kinds.index("full_attention") + 1)


def _untagged(value: Any) -> Any:
    """Undo how transformers writes numbers that JSON does not have."""
    if isinstance(value, dict):
        if set(value) == {"__float__"} and value["__float__"] in _TAGGED:
            return _TAGGED[value["__float__"]]
        return {key: _untagged(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_untagged(item) for item in value]
    return value
