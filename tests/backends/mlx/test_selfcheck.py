"""The check at load notices what it is there for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from stretto.backends.mlx import MLXBackend, runtime, selfcheck  # noqa: E402
from stretto.backends.mlx.cache import GroupView, PagedCache  # noqa: E402
from stretto.backends.mlx.runtime import Runtime  # noqa: E402
from stretto.backends.mlx.selfcheck import check_model  # noqa: E402
from stretto.backends.mlx.zoo import NotInZoo  # noqa: E402
from stretto.errors import StartupError  # noqa: E402
from support.mlx_models import loaded, tiny_mlx  # noqa: E402

pytestmark = pytest.mark.mlx


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLXBackend]:
    made = loaded(tiny_mlx(tmp_path_factory.mktemp("model"), "qwen3"))
    yield made
    made.close()


def inner(backend: MLXBackend) -> Runtime:
    assert backend._runtime is not None
    return backend._runtime


def check(backend: MLXBackend) -> str:
    return check_model(inner(backend)._loaded.model, inner(backend)._layout)


def test_positions_that_are_wrong(backend: MLXBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PagedCache, "offset", property(lambda self: 0))
    with pytest.raises(NotInZoo, match=r"computes something else .* of the logits' spread"):
        check(backend)


def test_a_mask_that_is_left_out(backend: MLXBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = GroupView.mask

    def blind(self: GroupView, window: int | None, *, as_array: bool) -> object:
        found = plain(self, window, as_array=as_array)
        return None if isinstance(found, mx.array) else found

    monkeypatch.setattr(GroupView, "mask", blind)
    assert check(backend) == "mlx-lm's model mixes up sequences of a pass"


def test_code_that_fails_over_several_offsets(backend: MLXBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = PagedCache.offset.fget
    assert plain is not None

    def single(self: PagedCache) -> int:
        return int(plain(self))

    monkeypatch.setattr(PagedCache, "offset", property(single))
    assert check(backend).startswith("mlx-lm's model takes one sequence a pass (")


def test_a_model_that_no_test_covers_is_checked_at_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_mlx(tmp_path)
    monkeypatch.setattr(runtime, "COVERED", frozenset())
    made = loaded(path)
    assert made.stats()["sequences_a_pass"] == "several"
    made.close()
    monkeypatch.setattr(selfcheck, "TOLERANCE", -1.0)
    with pytest.raises(StartupError, match=r"'llama' cannot be served: over blocks it computes") as caught:
        loaded(path)
    assert caught.value.code == "model_unsupported"
