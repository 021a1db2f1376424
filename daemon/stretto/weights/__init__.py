"""Weights: reading model files, getting them, tokenizers."""
