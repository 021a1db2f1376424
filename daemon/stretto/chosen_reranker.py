"""From settings to the reranker, if there is to be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.errors import StartupError

if TYPE_CHECKING:
    from stretto.embedding import Reranker
    from stretto.settings import Settings

_MOST_THREADS = 4


def choose_reranker(settings: Settings) -> Reranker | None:
    """Find the reranking model and read it. Blocks: run it in a worker thread.

    Raises:
        StartupError: no such model, one that does not rank, or broken files.
    """
    if settings.reranker == "off":
        return None
    from stretto.weights.library import ModelLibrary

    installed = ModelLibrary(settings.models_dir).require(settings.reranker)
    if not installed.path.is_dir():
        raise StartupError(
            f"The model '{installed.name}' is a file; reranking models are directories with a BERT cross-encoder.",
            code="model_unsupported",
            remedy="Leave --reranker out, or name such a directory.",
        )
    # Both are numpy and more; only who has a reranker pays for them.
    from stretto.backends.host import usable_cores
    from stretto.embedding import CrossEncoder, Reranker

    created = installed.pulled_at
    return Reranker(
        CrossEncoder(installed.path),
        name=installed.name,
        aliases=tuple(alias for alias in installed.aliases if alias != installed.name),
        created=int(created.timestamp() if created is not None else installed.path.stat().st_mtime),
        # Half the machine at most: the served model computes too.
        threads=max(1, min(_MOST_THREADS, usable_cores() // 2)),
    )
