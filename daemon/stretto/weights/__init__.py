"""Weights: reading model files, getting them, tokenizers."""

from __future__ import annotations

from stretto.weights.blocks import ENCODINGS, Encoding, RawTensor, dequantise
from stretto.weights.checkpoint import Checkpoint
from stretto.weights.config import ModelConfig
from stretto.weights.foreign import ForeignCheckpoint
from stretto.weights.opening import load_tokenizer, open_any, open_files, open_model
from stretto.weights.rope_config import RopeConfig
from stretto.weights.source import ModelFiles, ModelSource
from stretto.weights.tokenizer import Tokenizer

__all__ = [
    "ENCODINGS",
    "Checkpoint",
    "Encoding",
    "ForeignCheckpoint",
    "ModelConfig",
    "ModelFiles",
    "ModelSource",
    "RawTensor",
    "RopeConfig",
    "Tokenizer",
    "dequantise",
    "load_tokenizer",
    "open_any",
    "open_files",
    "open_model",
]
