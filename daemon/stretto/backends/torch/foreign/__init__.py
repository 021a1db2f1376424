"""Models that ``transformers`` computes, over our KV memory: for families that have no module here."""

from __future__ import annotations

from stretto.backends.torch.foreign.model import load_foreign

__all__ = ["load_foreign"]
