"""The one place that knows the inside of mlx-lm: its model modules, their names, and what their layers ask of a cache.

mlx-lm promises nothing about these, so its version is pinned, and a test fails when one of the names moves.

Its model modules are imported without its package: that would import transformers and PyTorch (seconds of start-up), start
streams on the importing thread, and lower the process's limit of open files for good.

What a layer asks of its cache: ``offset`` (positions before this pass, a number or one a sequence), ``make_mask``, and
``update_and_fetch``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import Any

ALIAS = "_stretto_mlx_lm"
"""Stands for mlx-lm's package in ``sys.modules``, without having run it."""

RENAMED = {
    "mistral": "llama",
    "llava": "mistral3",
    "phi-msft": "phixtral",
    "falcon_mamba": "mamba",
    "joyai_llm_flash": "deepseek_v3",
    "kimi_k2": "deepseek_v3",
    "qwen2_5_vl": "qwen2_vl",
    "minimax_m2": "minimax",
    "iquestcoder": "llama",
    "xverse": "llama",
    "gemma4_unified": "gemma4",
    "deepseek_v41_text": "deepseek_v41",
}
"""``model_type`` of config.json to the module that computes it, where the two differ; mlx-lm's own table."""

RENAMED_ARCHITECTURES = {("bailing_hybrid", "BailingMoeV3ForCausalLM"): "bailing_moe_v3"}
"""The same for single architectures of a type."""

PAGED = ("KVCache", "ConcatenateKVCache")
SLIDING = "RotatingKVCache"
SEVERAL = "CacheList"


class NotInZoo(Exception):
    """mlx-lm has no such model, or none that could be served; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model of the zoo.

    Attributes:
        model_type: as config.json has it.
        module: mlx-lm's name for it.
        model: the class, made from arguments.
        arguments: the class of those.
    """

    model_type: str
    module: str
    model: type[Any]
    arguments: type[Any]

    def takes(self, key: str) -> bool:
        """Whether the arguments know a key of config.json; all others are dropped in silence when it is read."""
        return key in getattr(self.arguments, "__dataclass_fields__", {})

    def build(self, config: Mapping[str, Any]) -> Any:
        """The model with weights that are not there yet. Raises what mlx-lm raises for a configuration it cannot use."""
        return self.model(self.arguments.from_dict(dict(config)))


@dataclass(frozen=True, slots=True)
class CacheKind:
    """What a layer keeps of the past.

    Attributes:
        window_tokens: how far back it looks; None for all of it.
    """

    window_tokens: int | None


CacheTree = CacheKind | tuple[CacheKind, ...]
"""A layer may keep several."""


def zoo_version() -> str:
    """E.g. ``0.32.2``."""
    return version("mlx-lm")


def find_architecture(config: Mapping[str, Any]) -> Architecture:
    """The model that config.json asks for.

    Raises:
        NotInZoo: there is none.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type.replace("-", "_").replace(".", "_").isidentifier():
        raise NotInZoo(f"model_type is {model_type!r}")
    listed = config.get("architectures")
    names: Sequence[object] = listed if isinstance(listed, list) else ()
    module = RENAMED.get(model_type, model_type)
    for name in names:
        module = RENAMED_ARCHITECTURES.get((model_type, str(name)), module)
    if "." in module or module in ("base", "cache"):
        raise NotInZoo(f"model_type is {model_type!r}")
    try:
        found = importlib.import_module(f"{_root()}.models.{module}")
    except (
        ImportError,
        SystemExit,
    ) as error:  # one of the modules ends the program when a package is missing
        raise NotInZoo(
            f"mlx-lm has no model of the type {model_type!r} that it can import here ({error})"
        ) from error
    if not hasattr(found, "Model") or not hasattr(found, "ModelArgs"):
        raise NotInZoo(f"mlx-lm has no model of the type {model_type!r}")
    return Architecture(model_type, module, found.Model, found.ModelArgs)


def own_caches(model: Any) -> list[Any]:
    """The caches that mlx-lm itself would use for one sequence, in the order in which the model takes them."""
    caches: list[Any] = _cache_module().make_prompt_cache(model)
    return caches


def cache_tree(cache: Any) -> CacheTree:
    """What one of ``own_caches`` keeps.

    Raises:
        NotInZoo: something that does not lie there position by position, and so cannot be paged.
    """
    name = type(cache).__name__
    if name in PAGED:
        return CacheKind(None)
    if name == SLIDING:
        if cache.keep:
            raise NotInZoo(f"it keeps the first {cache.keep} positions beside a sliding window")
        return CacheKind(int(cache.max_size))
    if name == SEVERAL:
        parts = [cache_tree(part) for part in cache.caches]
        if all(isinstance(part, CacheKind) for part in parts):
            return tuple(part for part in parts if isinstance(part, CacheKind))
    raise NotInZoo(f"its layers keep a {name}, a state that cannot be cut into blocks of positions")


def _cache_module() -> ModuleType:
    return importlib.import_module(f"{_root()}.models.cache")


def _root() -> str:
    """Put mlx-lm's directory into the import system under another name, without running its ``__init__``."""
    if ALIAS not in sys.modules:
        spec = importlib.util.find_spec("mlx_lm")
        if spec is None or not spec.submodule_search_locations:
            raise ImportError("mlx-lm is not installed")
        root = ModuleType(ALIAS)
        root.__path__ = list(spec.submodule_search_locations)
        sys.modules[ALIAS] = root
    return ALIAS
