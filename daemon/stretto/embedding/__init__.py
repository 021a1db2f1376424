"""Embeddings: a BERT encoder of our own, and its face on the event loop. Knows nothing of requests."""

from __future__ import annotations

from stretto.embedding.config import EncoderConfig
from stretto.embedding.embedder import Embedder, EmbedderStats, Embeddings
from stretto.embedding.model import EmbeddingModel

__all__ = ["Embedder", "EmbedderStats", "EmbeddingModel", "Embeddings", "EncoderConfig"]
