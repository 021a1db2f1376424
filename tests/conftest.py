"""Fixtures that more than one room's tests use."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's business.
settings.register_profile("stretto", deadline=None)
settings.load_profile("stretto")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that may take longest, by the limits that they set themselves, and then with those that start daemons: so that of
    several workers none is left alone with one of them at the end. A file's tests keep their order."""
    limits_s: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        limit = item.get_closest_marker("timeout")
        if limit is not None:
            limits_s[item.path] = max(limits_s[item.path], float(limit.args[0]))
    items.sort(key=lambda item: (-limits_s[item.path], "e2e" not in item.path.parts))


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct GGUF (Q4_1)."""
    return _installed("smollm2")


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    """The directory of the real all-MiniLM-L6-v2."""
    return _installed("minilm")


def _installed(name: str) -> Path:
    named = os.environ.get(f"STRETTO_TEST_{name.upper()}")
    if named:
        return Path(named)
    from stretto.weights.library import ModelLibrary, default_models_dir

    found = ModelLibrary(default_models_dir()).find(name)
    if found is None:
        pytest.fail(f"the real model is not installed: run `stretto pull {name}` (`make test` does it)")
    return found.path
