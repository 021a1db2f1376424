"""The engine: scheduler, sampler, KV accounting and the thread that owns the model."""

from __future__ import annotations

from stretto.engine.budget import plan_kv
from stretto.engine.client import EngineClient, Generation
from stretto.engine.config import EngineConfig, EngineFacts, EngineProgress, EngineState, EngineStats
from stretto.engine.constraint import TokenConstraint
from stretto.engine.engine import Engine
from stretto.engine.sequence import (
    CacheMiss,
    Deliver,
    Outcome,
    Phase,
    Post,
    SequenceRequest,
    SequenceStats,
    Timing,
    Token,
    Update,
)
from stretto.engine.storing import PrefixStore

__all__ = [
    "CacheMiss",
    "Deliver",
    "Engine",
    "EngineClient",
    "EngineConfig",
    "EngineFacts",
    "EngineProgress",
    "EngineState",
    "EngineStats",
    "Generation",
    "Outcome",
    "Phase",
    "Post",
    "PrefixStore",
    "SequenceRequest",
    "SequenceStats",
    "Timing",
    "Token",
    "TokenConstraint",
    "Update",
    "plan_kv",
]
