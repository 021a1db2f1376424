"""Live and ready are two things: ready needs an engine step within its deadline while there is work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto.engine import EngineProgress

State = Literal["ready", "draining", "stalled", "engine_lost"]


@dataclass(frozen=True, slots=True)
class Health:
    """What the health routes and the watchdog go by.

    Attributes:
        live: the daemon and its engine can still do something; False asks a supervisor for a restart.
        ready: new work will be taken and will progress.
        state: why.
        detail: figures behind it.
    """

    live: bool
    ready: bool
    state: State
    detail: dict[str, object]


def judge_health(progress: EngineProgress, draining: bool, step_deadline_s: float) -> Health:
    """Health from the engine's own progress.

    A stalled engine is alive until it has been silent for three deadlines: a long step may still end, a dead one never does.
    """
    silent_s = progress.last_step_age_s if progress.busy else 0.0
    detail: dict[str, object] = {
        "busy": progress.busy,
        "steps": progress.steps,
        "last_step_age_s": round(progress.last_step_age_s, 3),
        "step_deadline_s": step_deadline_s,
    }
    if not progress.alive:
        return Health(live=False, ready=False, state="engine_lost", detail=detail)
    if silent_s > step_deadline_s:
        return Health(live=silent_s <= 3 * step_deadline_s, ready=False, state="stalled", detail=detail)
    if draining:
        return Health(live=True, ready=False, state="draining", detail=detail)
    return Health(live=True, ready=True, state="ready", detail=detail)
