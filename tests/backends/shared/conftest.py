"""A model for each backend."""

from __future__ import annotations

import pytest

from support.shared_backends import BACKENDS, Model, make_model, require

MARKS = {"torch": pytest.mark.torch, "mlx": pytest.mark.mlx}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=MARKS.get(name.partition("-")[0], ())) for name in BACKENDS],
)
def backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def shared_models() -> dict[str, Model]:
    """Those that were made so far, by backend."""
    return {}


@pytest.fixture
def model(
    request: pytest.FixtureRequest,
    backend_name: str,
    shared_models: dict[str, Model],
    tmp_path_factory: pytest.TempPathFactory,
) -> Model:
    require(backend_name, request.function.__name__.removeprefix("test_"))
    if backend_name not in shared_models:
        shared_models[backend_name] = make_model(backend_name, tmp_path_factory.mktemp(backend_name))
    return shared_models[backend_name]
