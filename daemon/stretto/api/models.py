"""``/v1/models``: one document that the clients of several dialects can read."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.types import Receive, Scope, Send

from stretto.api.ports import ModelPort, PipelinePort
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
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "aliases": list(model.aliases),
        "family": model.family,
        "context_length": model.context_tokens,
        "max_output_length": model.max_output_tokens,
        "capabilities": list(model.capabilities),
        "modalities": {"input": ["text"], "output": ["text"]},
    }


class ModelList:
    """``GET /v1/models``."""

    def __init__(self, pipeline: PipelinePort) -> None:
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        model = self._pipeline.model
        entry = model_entry(model)
        document = {
            "object": "list",
            "data": [entry],
            "has_more": False,
            "first_id": model.id,
            "last_id": model.id,
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

    def __init__(self, pipeline: PipelinePort) -> None:
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            NotFound: code ``model_not_found``.
        """
        model = self._pipeline.model
        model.resolve(scope["path_params"]["model_id"])
        await send_json(send, model_entry(model))
