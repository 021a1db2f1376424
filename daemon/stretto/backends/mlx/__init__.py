"""The MLX backend: the models of mlx-lm, on Apple's chips and elsewhere. Importing it does not import MLX."""

from __future__ import annotations

from stretto.backends.mlx.backend import MLXBackend, probe

__all__ = ["MLXBackend", "probe"]
