"""The two ways in which a model is refused, in one wording."""

from __future__ import annotations

from pathlib import Path

from stretto.errors import StartupError


def invalid(path: Path, what: str) -> StartupError:
    """The file is broken, truncated or contradicts itself."""
    return StartupError(
        f"{path}: {what}.",
        code="model_invalid",
        remedy="Get the file again, or another conversion of the model.",
    )


def unsupported(path: Path, what: str, *, remedy: str | None = None) -> StartupError:
    """The file may be sound, but uses what this program cannot compute."""
    return StartupError(f"{path}: {what}.", code="model_unsupported", remedy=remedy)
