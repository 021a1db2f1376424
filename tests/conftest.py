"""Fixtures that more than one room's tests use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The real SmolLM2-135M-Instruct GGUF (Q4_1)."""
    named = os.environ.get("STRETTO_TEST_SMOLLM2")
    if named:
        return Path(named)
    from stretto.weights.library import ModelLibrary, default_models_dir

    found = ModelLibrary(default_models_dir()).find("smollm2")
    if found is None:
        pytest.fail("the real model is not installed: run `stretto pull smollm2` (`make test` does it)")
    return found.path
