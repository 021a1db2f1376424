"""Live and ready, from the engine's progress alone."""

from __future__ import annotations

import pytest

from stretto.engine import EngineProgress
from stretto.pipeline.health import judge_health


@pytest.mark.parametrize(
    ("alive", "busy", "age_s", "draining", "state", "live", "ready"),
    [
        (True, False, 9999.0, False, "ready", True, True),  # idle: silence means nothing
        (True, True, 1.0, False, "ready", True, True),
        (True, True, 11.0, False, "stalled", True, False),
        (True, True, 31.0, False, "stalled", False, False),
        (True, True, 11.0, True, "stalled", True, False),  # a stalled engine will not drain either
        (True, False, 0.0, True, "draining", True, False),
        (False, False, 0.0, False, "engine_lost", False, False),
    ],
)
def test_states(
    alive: bool, busy: bool, age_s: float, draining: bool, state: str, live: bool, ready: bool
) -> None:
    progress = EngineProgress(
        busy=busy, last_step_age_s=age_s, steps=3, alive=alive, state="ready" if alive else "lost"
    )
    health = judge_health(progress, draining, step_deadline_s=10.0)
    assert (health.state, health.live, health.ready) == (state, live, ready)
