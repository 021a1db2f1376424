"""From settings and a loaded model to the answer cache."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from stretto._version import __version__
from stretto.cache import AnswerCache, CacheConfig, Judge
from stretto.conversation import AnswerFormat
from stretto.engine import EngineClient, EngineFacts
from stretto.pipeline import ServedJudge
from stretto.store import Store

if TYPE_CHECKING:
    from stretto.chosen import ChosenModel
    from stretto.embedding import Embedder
    from stretto.observe import DaemonLog
    from stretto.settings import Settings

FEWEST_PARAMETERS = 10**9
"""Of a model that is asked to judge. Smaller ones say the same of everything, and cost a hit or a wait each time."""
SURE = 0.9
"""Least probability of a judge that nobody set a threshold for."""


async def open_answer_cache(
    settings: Settings,
    store: Store,
    chosen: ChosenModel,
    facts: EngineFacts,
    engine: EngineClient,
    embedder: Embedder | None,
    log: DaemonLog,
) -> AnswerCache:
    """Open the cache that the settings ask for; says at start who decides what is the same.

    Raises:
        StoreError: the storage is at fault.
    """
    semantic = settings.semantic_cache == "on"
    threshold = judge_threshold(settings, facts.spec.parameters) if semantic else None
    cache = AnswerCache(
        store,
        CacheConfig(
            threshold=settings.cache_threshold,
            judge_threshold=threshold,
            ttl_s=settings.cache_ttl,
            max_entries=settings.cache_max_entries,
        ),
        embedder=embedder if semantic else None,
        judge=None if threshold is None else _judge(chosen, engine),
    )
    dropped = await cache.load(fingerprint(chosen, facts, embedder if semantic else None))
    if dropped:
        log.warning(
            "The answer cache starts empty: its answers were made with something else.", dropped=dropped
        )
    if semantic:
        _warn(log, threshold, facts.spec.parameters)
    return cache


def judge_threshold(settings: Settings, parameters: int) -> float | None:
    """The least probability of a judge, or None when none is to be asked. ``parameters`` is 0 where it is not known."""
    if settings.cache_judge_threshold is None:
        return SURE if parameters >= FEWEST_PARAMETERS else None
    return settings.cache_judge_threshold or None


def fingerprint(chosen: ChosenModel, facts: EngineFacts, embedder: Embedder | None) -> str:
    """Hexadecimal; the same as long as the same request would be answered alike, and its vector be the same."""
    parts = (
        __version__,
        chosen.fingerprint,
        chosen.backend_name,
        facts.spec.dtype,
        facts.spec.kv_dtype,
        "" if chosen.template is None else chosen.template.source,
        "" if embedder is None else embedder.fingerprint,
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _judge(chosen: ChosenModel, engine: EngineClient) -> Judge | None:
    if chosen.template is None:  # then there is no chat either
        return None
    form = AnswerFormat.of(chosen.template, chosen.tokenizer)
    return ServedJudge(chosen.name, engine, chosen.tokenizer, chosen.template, form)


def _warn(log: DaemonLog, threshold: float | None, parameters: int) -> None:
    size = f"{parameters / 1e6:.0f} million parameters" if parameters else "an unknown number of parameters"
    if threshold is None:
        log.warning(
            f"The answer cache asks no judge (the served model has {size}): the comparison of words decides alone "
            "which questions are the same."
        )
    elif parameters < FEWEST_PARAMETERS:
        log.warning(
            f"The served model is a weak judge of which questions are the same: it has {size}. With "
            "--cache-judge-threshold 0 it is not asked."
        )
