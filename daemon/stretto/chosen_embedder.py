"""From settings to the embedder, if there is to be one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.errors import StartupError

if TYPE_CHECKING:
    from stretto.embedding import Embedder
    from stretto.settings import Settings

DEFAULT_EMBEDDER = "minilm"
_MOST_THREADS = 4


def choose_embedder(settings: Settings) -> Embedder | None:
    """Find the embedding model and read it. Blocks (a tenth of a second or so): run it in a worker thread.

    ``auto`` takes what is installed and asks for nothing; a model that is named has to be there.

    Raises:
        StartupError: no such model, one that computes no embeddings, or broken files.
    """
    wanted = settings.embedder
    if wanted == "off" or (wanted == "auto" and settings.backend == "echo"):
        _require_no_embedder(settings)
        return None
    from stretto.weights.library import ModelLibrary

    library = ModelLibrary(settings.models_dir)
    installed = library.find(DEFAULT_EMBEDDER) if wanted == "auto" else library.require(wanted)
    if installed is None:
        _require_no_embedder(settings)
        return None
    if not installed.path.is_dir():
        raise StartupError(
            f"The model '{installed.name}' is a file; embedding models are directories with a BERT encoder.",
            code="model_unsupported",
            remedy=f"Leave --embedder out, or get one with: stretto pull {DEFAULT_EMBEDDER}",
        )
    # Both are numpy and more; only who has an embedder pays for them.
    from stretto.backends.host import usable_cores
    from stretto.embedding import Embedder, EmbeddingModel

    created = installed.pulled_at
    return Embedder(
        EmbeddingModel(installed.path),
        name=installed.name,
        aliases=tuple(alias for alias in installed.aliases if alias != installed.name),
        created=int(created.timestamp() if created is not None else installed.path.stat().st_mtime),
        # Half the machine at most: the served model computes too.
        threads=max(1, min(_MOST_THREADS, usable_cores() // 2)),
    )


def _require_no_embedder(settings: Settings) -> None:
    """Refuse to go without an embedder where something cannot."""
    if settings.semantic_cache == "on":
        raise StartupError(
            "--semantic-cache on compares questions by an embedding model, and there is none.",
            code="model_not_found",
            remedy=f"Get one with: stretto pull {DEFAULT_EMBEDDER}. Or name one with --embedder, or use --semantic-cache exact.",
        )
    if settings.memory_recall == "hybrid":
        raise StartupError(
            "--memory-recall hybrid compares messages by an embedding model, and there is none.",
            code="model_not_found",
            remedy=f"Get one with: stretto pull {DEFAULT_EMBEDDER}. Or name one with --embedder, or use --memory-recall words.",
        )
