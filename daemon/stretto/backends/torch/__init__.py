"""The torch backend on CPU, CUDA and MPS. Importing it does not import PyTorch."""

from __future__ import annotations

from stretto.backends.torch.backend import TorchBackend, probe, unimportable

__all__ = ["TorchBackend", "probe", "unimportable"]
