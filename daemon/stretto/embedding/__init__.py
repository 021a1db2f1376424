"""Embeddings and reranking: a BERT encoder of our own, and its faces on the event loop. Knows nothing of requests."""

from __future__ import annotations

from stretto.embedding.config import EncoderConfig
from stretto.embedding.cross_encoder import CrossEncoder
from stretto.embedding.embedder import Embedder, EmbedderStats, Embeddings
from stretto.embedding.model import EmbeddingModel
from stretto.embedding.reranker import Ranking, Reranker, RerankerStats

__all__ = [
    "CrossEncoder",
    "Embedder",
    "EmbedderStats",
    "EmbeddingModel",
    "Embeddings",
    "EncoderConfig",
    "Ranking",
    "Reranker",
    "RerankerStats",
]
