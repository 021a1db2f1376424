"""``/v1/models``: one document that the clients of several dialects can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from stretto.api.envelopes import is_anthropic
from stretto.api.ports import EmbedderPort, ModelPort, PipelinePort, RerankerPort
from stretto.api.replies import send_json
from stretto.errors import InvalidRequest

_DEFAULT_LIMIT = 20
_MOST = 1000
_LIFECYCLES = ("active", "deprecated", "retired")

More = Callable[[ModelPort], Mapping[str, object]]
"""Further fields of a model's entry."""


def model_entry(model: ModelPort, more: More | None = None) -> dict[str, object]:
    """One model: OpenAI's fields, Anthropic's (from ``type`` to ``max_tokens``), and the real limits in other servers' words."""
    entry: dict[str, object] = {
        **_common(model.id, model.created),
        "aliases": list(model.aliases),
        "family": model.family,
        "context_length": model.context_tokens,
        "max_model_len": model.context_tokens,
        "max_input_tokens": model.context_tokens,
        "max_output_length": model.max_output_tokens,
        "max_tokens": model.max_output_tokens,
        "capabilities": list(model.capabilities),
        "modalities": {"input": ["text"], "output": ["text"]},
    }
    return {**entry, **more(model)} if more else entry


def embedder_entry(embedder: EmbedderPort) -> dict[str, object]:
    """The embedding model: the same fields, for a model that writes nothing."""
    return {
        **_common(embedder.name, embedder.created),
        "aliases": list(embedder.aliases),
        "family": "bert",
        "context_length": embedder.max_tokens,
        "max_model_len": embedder.max_tokens,
        "max_input_tokens": embedder.max_tokens,
        "max_output_length": 0,
        "max_tokens": 0,
        "dimensions": embedder.dimensions,
        "capabilities": ["embeddings"],
        "modalities": {"input": ["text"], "output": ["embeddings"]},
    }


def reranker_entry(reranker: RerankerPort) -> dict[str, object]:
    """The reranking model: the same fields, for a model that writes nothing."""
    return {
        **_common(reranker.name, reranker.created),
        "aliases": list(reranker.aliases),
        "family": "bert",
        "context_length": reranker.max_tokens,
        "max_model_len": reranker.max_tokens,
        "max_input_tokens": reranker.max_tokens,
        "max_output_length": 0,
        "max_tokens": 0,
        "capabilities": ["rerank"],
        "modalities": {"input": ["text"], "output": ["scores"]},
    }


Beside = Sequence[tuple[frozenset[str], dict[str, object]]]
"""Models beside the served one: the names of each, and its entry."""


def beside_entries(embedder: EmbedderPort | None, reranker: RerankerPort | None) -> Beside:
    """Those of the two that there are."""
    entries: list[tuple[frozenset[str], dict[str, object]]] = []
    if embedder is not None:
        entries.append((frozenset({embedder.name, *embedder.aliases}), embedder_entry(embedder)))
    if reranker is not None:
        entries.append((frozenset({reranker.name, *reranker.aliases}), reranker_entry(reranker)))
    return entries


class ModelList:
    """``GET /v1/models``: the served model, then those beside it; in pages, as Anthropic's clients may ask."""

    def __init__(self, pipeline: PipelinePort, beside: Beside = (), more: More | None = None) -> None:
        self._pipeline = pipeline
        self._beside = beside
        self._more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            InvalidRequest: the page that is asked for cannot be.
        """
        model = self._pipeline.model
        entry = model_entry(model, self._more)
        entries = [entry, *(other for _, other in self._beside)]
        page, has_more = _page([_as_asked(scope, each) for each in entries], scope["query_string"])
        document = {
            "object": "list",
            "data": page,
            "has_more": has_more,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
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

    def __init__(self, pipeline: PipelinePort, beside: Beside = (), more: More | None = None) -> None:
        self._pipeline = pipeline
        self._beside = beside
        self._more = more

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            NotFound: code ``model_not_found``.
        """
        model = self._pipeline.model
        name = scope["path_params"]["model_id"]
        for names, other in self._beside:
            if name in names:
                await send_json(send, _as_asked(scope, other))
                return
        model.resolve(name)
        await send_json(send, _as_asked(scope, model_entry(model, self._more)))


def _common(name: str, created: int) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "stretto",
        "type": "model",
        "display_name": name,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "line": None,
        "deprecated_at": None,
        "retires_at": None,
    }


def _as_asked(scope: Scope, entry: dict[str, object]) -> dict[str, object]:
    """Anthropic's clients read ``capabilities`` as an object, with an entry for all that there might be; everybody else as a list."""
    if not is_anthropic(scope):
        return entry
    able = entry["capabilities"]
    assert isinstance(able, list)
    thinks, no = {"supported": "reasoning" in able}, {"supported": False}
    return {
        **entry,
        "capabilities": {
            "batch": no,
            "citations": no,
            "code_execution": no,
            "context_management": no,
            "effort": {**thinks, **dict.fromkeys(("low", "medium", "high", "xhigh", "max"), thinks)},
            "image_input": no,
            "pdf_input": no,
            "server_tools": {**no, "code_execution": no, "web_search": no},
            "structured_outputs": {"supported": "structured_output" in able},
            "thinking": {**thinks, "types": {"adaptive": thinks, "enabled": thinks}},
        },
    }


def _page(entries: Sequence[dict[str, object]], query: bytes) -> tuple[Sequence[dict[str, object]], bool]:
    """The entries that are asked for, and whether there are more beyond them. Parameters that are not known are ignored."""
    given = parse_qs(query.decode("latin-1"))
    limit = _limit(given.get("limit", [str(_DEFAULT_LIMIT)])[-1])
    lifecycles = given.get("lifecycle", []) + given.get("lifecycle[]", [])
    for lifecycle in lifecycles:
        if lifecycle not in _LIFECYCLES:
            raise InvalidRequest(
                f"'lifecycle' is {lifecycle[:60]!r}; it must be one of {', '.join(_LIFECYCLES)}.",
                param="lifecycle",
            )
    if lifecycles and "active" not in lifecycles:
        return [], False
    if "before_id" in given:
        rest = entries[: _place(entries, given["before_id"][-1], "before_id")]
        return rest[-limit:], len(rest) > limit
    first = _place(entries, given["after_id"][-1], "after_id") + 1 if "after_id" in given else 0
    return entries[first : first + limit], len(entries) > first + limit


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= _MOST:
        raise InvalidRequest(
            f"'limit' is {text[:60]!r}; it must be a whole number from 1 to {_MOST}.", param="limit"
        )
    return int(text)


def _place(entries: Sequence[dict[str, object]], name: str, param: str) -> int:
    for index, entry in enumerate(entries):
        if entry["id"] == name:
            return index
    raise InvalidRequest(f"'{param}' is {name[:60]!r}; no model has that id.", param=param)
