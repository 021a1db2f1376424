"""The KV plan, and what can never fit."""

from __future__ import annotations

import pytest

from stretto.backends.base import LayerGroup, MemoryReport, ModelSpec
from stretto.engine.budget import check_fits, plan_kv
from stretto.engine.config import EngineConfig, EngineFacts
from stretto.errors import ContextLengthExceeded, InvalidRequest, SettingsError, StartupError


def spec(*, context: int = 1000, bytes_per_token: tuple[int, ...] = (100,)) -> ModelSpec:
    groups = tuple(LayerGroup(f"g{n}", 1, 1, 1, None, size) for n, size in enumerate(bytes_per_token))
    return ModelSpec("test", 10, context, groups, "float32", "cpu")


def plan(free: int = 10**9, *, model: ModelSpec | None = None, **settings: int) -> EngineFacts:
    return plan_kv(model or spec(), MemoryReport(0, 0, free, free), EngineConfig(**settings))


def test_no_more_than_the_batch_can_use() -> None:
    facts = plan(max_batch=3)
    assert facts.max_context_tokens == 1000
    assert facts.kv.blocks == (3 * 63,)
    assert facts.kv_bytes == 3 * 63 * 16 * 100


def test_a_share_of_the_free_memory() -> None:
    facts = plan(free=1_000_000, max_batch=16)
    assert facts.kv.blocks == (600_000 // 1600,)
    assert facts.max_context_tokens == 1000


def test_memory_shortens_the_context() -> None:
    facts = plan(free=100_000)
    assert facts.kv.blocks == (37,)
    assert facts.max_context_tokens == 37 * 16


def test_a_set_budget_and_context() -> None:
    facts = plan(kv_cache_bytes=50_000, max_context_tokens=300)
    assert facts.kv.blocks == (31,)
    assert facts.max_context_tokens == 300


def test_a_setting_beyond_the_model_is_the_models() -> None:
    assert plan(max_context_tokens=5000).max_context_tokens == 1000


def test_every_layer_group_gets_as_many_blocks() -> None:
    facts = plan(model=spec(bytes_per_token=(100, 20)), max_batch=1, block_tokens=10)
    assert facts.kv.blocks == (100, 100)
    assert facts.kv_bytes == 100 * 10 * 120


def test_a_set_context_that_does_not_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(StartupError) as caught:
        plan(kv_cache_bytes=50_000, max_context_tokens=500)
    assert caught.value.code == "out_of_memory"
    text = str(caught.value)
    assert "500 tokens needs 51200 bytes" in text
    assert "the budget is 50000 bytes (as set), enough for 496 tokens" in text
    assert "shorter context" in text


def test_a_useless_context_is_refused() -> None:
    with pytest.raises(
        StartupError, match=r"256 tokens needs 25600 bytes.*60% of the 30000 bytes that are free"
    ):
        plan(free=30_000)
    assert plan(free=30_000, model=spec(context=100)).max_context_tokens == 100


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch", 0),
        ("block_tokens", 0),
        ("stall_target_s", 0.0),
        ("kv_cache_bytes", -1),
        ("reload_delays_s", ()),
    ],
)
def test_wrong_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        EngineConfig(**{name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


def test_what_can_never_fit() -> None:
    config = EngineConfig(kv_cache_bytes=50_000)
    facts = plan_kv(spec(), MemoryReport(0, 0, 10**9, 10**9), config)
    assert facts.max_context_tokens == 496
    check_fits(400, 96, facts, config)
    with pytest.raises(
        InvalidRequest, match=r"400 prompt tokens .* 97 .* 497.* 49700 bytes .* 49600 bytes"
    ) as caught:
        check_fits(400, 97, facts, config)
    assert caught.value.code == "kv_budget_exceeded"
    with pytest.raises(ContextLengthExceeded, match=r"make 1001, and the context is 496"):
        check_fits(1, 1000, facts, config)
