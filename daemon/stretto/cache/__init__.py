"""The answer cache: an answer that was given once, for a question that asks the same again."""

from stretto.cache.answer import CachedAnswer, cacheable_answer
from stretto.cache.cache import AnswerCache, CacheConfig, Lookup
from stretto.cache.judge import Judge, JudgeFailed
from stretto.cache.key import CacheKey
from stretto.cache.rows import Entry
from stretto.cache.tables import SCHEMA

__all__ = [
    "SCHEMA",
    "AnswerCache",
    "CacheConfig",
    "CacheKey",
    "CachedAnswer",
    "Entry",
    "Judge",
    "JudgeFailed",
    "Lookup",
    "cacheable_answer",
]
