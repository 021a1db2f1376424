"""An embedding model that is only listed."""

from __future__ import annotations

from typing import Any


class FakeEmbedder:
    name = "vectors"
    aliases: tuple[str, ...] = ()
    created = 1_700_000_000
    dimensions = 8
    max_tokens = 256

    async def embed(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("nobody asked for vectors")
