"""The names of mlx-lm that are used here and promised nowhere: this fails when one of them moves."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx.core", reason="MLX is not installed")

from stretto.backends.mlx import zoo
from stretto.backends.mlx.selfcheck import COVERED
from stretto.backends.mlx.zoo import CacheKind, NotInZoo, cache_tree, find_architecture, own_caches
from support.mlx_models import CONFIGS, config_of

pytestmark = pytest.mark.mlx

ROOT = Path(__file__).parents[3]


def package() -> Path:
    spec = find_spec("mlx_lm")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def cache_module() -> Any:
    find_architecture({"model_type": "llama"})
    return importlib.import_module(f"{zoo.ALIAS}.models.cache")


def test_the_version_is_the_one_that_this_was_written_for() -> None:
    installed = version("mlx-lm")
    assert f"mlx-lm=={installed}" in (ROOT / "constraints.txt").read_text()
    assert f'"mlx-lm=={installed};' in (ROOT / "pyproject.toml").read_text()


def test_the_renamed_models_are_those_of_mlx_lm() -> None:
    tree = ast.parse((package() / "utils.py").read_text())
    tables = {
        target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.endswith("REMAPPING")
    }
    assert tables == {
        "MODEL_REMAPPING": zoo.RENAMED,
        "MODEL_ARCHITECTURE_REMAPPING": zoo.RENAMED_ARCHITECTURES,
    }


def test_caches_have_the_methods_that_layers_call() -> None:
    module = cache_module()
    for name in (*zoo.PAGED, zoo.SLIDING):
        kind = getattr(module, name)
        assert list(inspect.signature(kind.update_and_fetch).parameters) == ["self", "keys", "values"]
        assert hasattr(kind, "make_mask")
    assert list(inspect.signature(module.RotatingKVCache.make_mask).parameters) == [
        "self", "N", "window_size", "return_array",
    ]  # fmt: skip
    assert list(inspect.signature(module.create_attention_mask).parameters) == [
        "N", "offset", "return_array", "window_size",
    ]  # fmt: skip
    assert module.KVCache().offset == 0
    both = module.CacheList(module.KVCache(), module.RotatingKVCache(max_size=9))
    assert cache_tree(both) == (CacheKind(None), CacheKind(9))


def test_layers_ask_for_masks_by_these_names() -> None:
    cache_module()
    base = importlib.import_module(f"{zoo.ALIAS}.models.base")
    asked: list[Any] = []

    class Spy:
        def make_mask(self, N: int, return_array: bool, window_size: int | None) -> str:
            asked.append((N, return_array, window_size))
            return "the mask"

    import mlx.core as mx

    assert base.create_attention_mask(mx.zeros((2, 5, 8)), Spy(), window_size=3) == "the mask"
    assert asked == [(5, False, 3)]


def test_what_cannot_be_paged_is_named() -> None:
    module = cache_module()
    for cache, what in (
        (module.ArraysCache(2), "ArraysCache"),
        (module.ChunkedKVCache(8), "ChunkedKVCache"),
        (module.CacheList(module.ArraysCache(1), module.KVCache()), "ArraysCache"),
        (module.RotatingKVCache(max_size=8, keep=4), "first 4 positions"),
    ):
        with pytest.raises(NotInZoo, match=what):
            cache_tree(cache)


@pytest.mark.parametrize("family", sorted(COVERED))
def test_covered_models_are_made_from_their_configuration(family: str) -> None:
    config = config_of(family)
    architecture = find_architecture(config)
    model = architecture.build(config)
    kinds = [cache_tree(cache) for cache in own_caches(model)]
    assert len(kinds) == 3
    windows = [kind.window_tokens for kind in kinds if isinstance(kind, CacheKind)]
    assert windows == ([8, 8, None] if family.startswith("gemma3") else [None] * 3)
    assert architecture.takes("model_type")
    assert not architecture.takes("no_such_key")


def test_the_tests_cover_what_is_said_to_be_covered() -> None:
    assert set(CONFIGS) == COVERED


@pytest.mark.parametrize(
    "model_type", ["no_such_model", "base", "cache", "../llama", "rope_utils", "os.path", "", None, 7]
)
def test_a_model_that_is_not_there(model_type: object) -> None:
    with pytest.raises(NotInZoo, match="model"):
        find_architecture({"model_type": model_type})


def test_an_architecture_may_rename_its_type() -> None:
    found = find_architecture({"model_type": "bailing_hybrid", "architectures": ["BailingMoeV3ForCausalLM"]})
    assert found.module == "bailing_moe_v3"
    assert find_architecture({"model_type": "mistral"}).module == "llama"


ALONE = """
import resource, sys
before = resource.getrlimit(resource.RLIMIT_NOFILE)
from stretto.backends.mlx.zoo import find_architecture, own_caches
find_architecture({"model_type": "qwen3"})
for name in ("transformers", "torch", "huggingface_hub", "mlx_lm"):
    assert name not in sys.modules, name
assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
import stretto.backends.mlx, os
assert "TRANSFORMERS_NO_ADVISORY_WARNINGS" not in os.environ
"""


def test_models_are_imported_without_the_package_and_what_that_does_to_the_process() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True)


def test_importing_the_backend_does_not_import_mlx() -> None:
    code = (
        "import sys, stretto.backends.mlx; assert 'mlx' not in sys.modules and 'mlx.core' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
