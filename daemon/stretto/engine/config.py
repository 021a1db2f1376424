"""How the engine is set up, and what it reports of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from stretto.backends.base import KVPlan, ModelSpec
from stretto.engine.sequence import SequenceStats
from stretto.errors import SettingsError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of the engine.

    Attributes:
        max_batch: most sequences that run at once.
        max_context_tokens: most tokens of prompt and answer, or None for what the model and the memory allow.
        kv_cache_bytes: KV budget, or None for a share of the memory that is free after loading.
        block_tokens: tokens a KV block.
        prefill_chunk_tokens: most prompt tokens a step.
        prefix_cache: whether KV of known text is kept and shared.
        stall_target_s: how long a step may take while answers are being generated; bounds the prompt tokens in it.
        speculation: whether answers get on by drafts where that is faster; see ``Drafter``.
        reload_delays_s: waits before each attempt to reload a lost backend; the last one repeats.

    Raises:
        SettingsError: a value is out of range.
    """

    max_batch: int = 16
    max_context_tokens: int | None = None
    kv_cache_bytes: int | None = None
    block_tokens: int = 16
    prefill_chunk_tokens: int = 512
    prefix_cache: bool = True
    stall_target_s: float = 0.25
    speculation: bool = False
    reload_delays_s: tuple[float, ...] = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)

    def __post_init__(self) -> None:
        for name in (
            "max_batch",
            "max_context_tokens",
            "kv_cache_bytes",
            "block_tokens",
            "prefill_chunk_tokens",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{name} is {value}; it must be at least 1.", param=name)
        if not self.stall_target_s > 0:
            raise SettingsError(
                f"stall_target_s is {self.stall_target_s}; it must be above 0.", param="stall_target_s"
            )
        if not self.reload_delays_s or not min(self.reload_delays_s) >= 0:
            raise SettingsError(
                "reload_delays_s must hold at least one delay, none below 0.", param="reload_delays_s"
            )


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What was loaded and allocated; true until the engine stops, reloads included.

    Attributes:
        spec: the model.
        kv: blocks allocated for each layer group.
        max_context_tokens: the longest prompt and answer together that is really served.
        kv_bytes: bytes of the allocated KV memory.
    """

    spec: ModelSpec
    kv: KVPlan
    max_context_tokens: int
    kv_bytes: int


class EngineState(Enum):
    """Where the engine's thread is."""

    NEW = "new"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """For readiness and the watchdog.

    Attributes:
        busy: whether any sequence is queued or running.
        last_step_age_s: while busy, seconds since the last step ended or, if that is later, since work came; else 0.
        steps: steps tried so far; grows as long as there is work and the engine is well.
        alive: whether the engine can compute: loaded, not lost, its thread running.
        state: an ``EngineState`` value.
    """

    busy: bool
    last_step_age_s: float
    steps: int
    alive: bool
    state: str


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Everything ``GET /admin/status`` tells of the engine. Rates are moving averages, 0 until measured.

    Attributes:
        state: an ``EngineState`` value.
        queued, running, max_batch: sequences.
        held_back: those of ``queued`` that the last step had no place or no KV memory for; the others have come since.
        raised: sequences that had waited so long behind more urgent ones that they came to count as more urgent.
        kv_blocks_used, kv_blocks_cached, kv_blocks_total: over all layer groups; held by sequences, and kept for the prefix
            cache alone, which gives them up when they are needed.
        kv_bytes_used, kv_bytes_total: the same in bytes.
        steps, failed_steps, reloads: counts since the start.
        prompt_tokens, completion_tokens: tokens computed since the start.
        cache_hits, cache_misses: prompts of which the prefix cache had some, or nothing.
        cache_hit_tokens: prompt tokens that were not computed, thanks to it.
        cache_evictions: blocks that it gave up, over all layer groups.
        finished, cancelled, failed: sequences that ended so.
        accepted_tokens, rejected_tokens: tokens of drafts that the model looked at since the start, and drew itself, or did not.
        prefill_tokens_per_s, decode_tokens_per_s: prompt tokens, and generated tokens of all sequences together.
        prefill_budget_tokens: prompt tokens that the next step may hold.
        last_step_age_s: see EngineProgress.
        sequences: all live ones, running ones first.
        prefix_store: what the store of known text holds and did; empty without one.
        backend: the backend's own counters, at most a second old while it works.
    """

    state: str
    queued: int = 0
    held_back: int = 0
    raised: int = 0
    running: int = 0
    max_batch: int = 0
    kv_blocks_used: int = 0
    kv_blocks_cached: int = 0
    kv_blocks_total: int = 0
    kv_bytes_used: int = 0
    kv_bytes_total: int = 0
    steps: int = 0
    failed_steps: int = 0
    reloads: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_hit_tokens: int = 0
    cache_evictions: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    accepted_tokens: int = 0
    rejected_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    prefill_budget_tokens: int = 0
    last_step_age_s: float = 0.0
    sequences: tuple[SequenceStats, ...] = ()
    prefix_store: Mapping[str, object] = field(default_factory=dict)
    backend: Mapping[str, object] = field(default_factory=dict)
