"""What a place that models come from offers the library, and what it hands back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from stretto.weights.manifest import InstalledFile
from stretto.weights.progress import ProgressMeter

__all__ = ["Fetched", "Source"]

R_contra = TypeVar("R_contra", contravariant=True)


@dataclass(frozen=True)
class Fetched:
    """Files that now lie in the model's directory, whole and verified.

    Attributes:
        files: each one, with the SHA-256 that was computed on the way.
        main: path of the model file relative to the directory, or "." for a checkpoint directory.
        licence: as the source states it, or None.
        revision: the exact commit, where the source has commits.
    """

    files: tuple[InstalledFile, ...]
    main: str
    licence: str | None
    revision: str | None = None


class Source(Protocol[R_contra]):
    """Brings models of one kind of reference."""

    def fetch(self, reference: R_contra, directory: Path, scratch: Path, meter: ProgressMeter) -> Fetched:
        """Bring every file into ``directory``; partial work stays in ``scratch`` for the next try.

        Files that are already there and right are kept. The caller holds the model's lock.

        Raises:
            StartupError: ``model_not_found``, ``download_failed``, ``checksum_mismatch`` or ``model_invalid``.
        """
        ...
