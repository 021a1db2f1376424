"""The native backend: quantised models on the CPU through C kernels, without PyTorch."""

from __future__ import annotations

from stretto.backends.native.backend import NativeBackend
from stretto.backends.native.support import NativeSupport, native_support

__all__ = ["NativeBackend", "NativeSupport", "native_support"]
