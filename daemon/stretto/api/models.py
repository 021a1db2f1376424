"""``/v1/models``: one document that the clients of several dialects can read."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.types import Receive, Scope, Send

from stretto.api.ports import EmbedderPort, ModelPort, PipelinePort
from stretto.api.replies import send_json


def model_entry(model: ModelPort) -> dict[str, object]:
    """One model: OpenAI's fields, Anthropic's (``type``, ``display_name``, ``created_at``), and the real limits."""
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": "stretto",
        "type": "model",
        "display_name": model.id,
        "created_at": _iso(model.created),
        "aliases": list(model.aliases),
        "family": model.family,
        "context_length": model.context_tokens,
        "max_output_length": model.max_output_tokens,
        "capabilities": list(model.capabilities),
        "modalities": {"input": ["text"], "output": ["text"]},
    }


def embedder_entry(embedder: EmbedderPort) -> dict[str, object]:
    """The embedding model: the same fields, for a model that writes nothing."""
    return {
        "id": embedder.name,
        "object": "model",
        "created": embedder.created,
        "owned_by": "stretto",
        "type": "model",
        "display_name": embedder.name,
        "created_at": _iso(embedder.created),
        "aliases": list(embedder.aliases),
        "family": "bert",
        "context_length": embedder.max_tokens,
        "max_output_length": 0,
        "dimensions": embedder.dimensions,
        "capabilities": ["embeddings"],
        "modalities": {"input": ["text"], "output": ["embeddings"]},
    }


def _iso(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ModelList:
    """``GET /v1/models``: the served model, then the embedding model if there is one."""

    def __init__(self, pipeline: PipelinePort, embedder: EmbedderPort | None = None) -> None:
        self._pipeline = pipeline
        self._embedder = embedder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        model = self._pipeline.model
        entry = model_entry(model)
        entries = [entry] if self._embedder is None else [entry, embedder_entry(self._embedder)]
        document = {
            "object": "list",
            "data": entries,
            "has_more": False,
            "first_id": model.id,
            "last_id": entries[-1]["id"],
            "models": [
                {
                    "name": model.id,
                    "description": f"{model.family} with a context of {model.context_tokens} tokens",
                    "release_date": str(entry["created_at"])[:10],
                }
            ],
        }
        await send_json(send, document)


class ModelDetail:
    """``GET /v1/models/{id}``; an alias shows the model it stands for."""

    def __init__(self, pipeline: PipelinePort, embedder: EmbedderPort | None = None) -> None:
        self._pipeline = pipeline
        self._embedder = embedder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            NotFound: code ``model_not_found``.
        """
        model = self._pipeline.model
        name = scope["path_params"]["model_id"]
        embedder = self._embedder
        if embedder is not None and name in (embedder.name, *embedder.aliases):
            await send_json(send, embedder_entry(embedder))
            return
        model.resolve(name)
        await send_json(send, model_entry(model))
