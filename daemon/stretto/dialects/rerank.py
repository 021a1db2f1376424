"""The dialect of rerankers, as Jina and Cohere shaped it: a body to a request, scores to a body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.conversation.events import Usage
from stretto.dialects.fields import read_fields
from stretto.dialects.json_text import dumps

RERANK_SCHEMA = "rerank-request"
ID_PREFIX = "rerank-"


@dataclass(frozen=True, slots=True)
class RerankRequest:
    """What is asked for.

    Attributes:
        model: as the client wrote it.
        query: what is looked for.
        documents: texts.
        top_n: how many of them are wanted, or None for all.
        return_documents: whether results have their text.
        truncate: whether a document that is too long may be cut.
    """

    model: str
    query: str
    documents: tuple[str, ...]
    top_n: int | None = None
    return_documents: bool = True
    truncate: bool = False


def parse_rerank(body: bytes) -> RerankRequest:
    """Read the body of ``POST /v1/rerank``.

    Raises:
        InvalidRequest: the codes of ``read_fields``.
    """
    fields = read_fields(RERANK_SCHEMA, body)
    return RerankRequest(
        model=fields["model"],
        query=fields["query"],
        documents=tuple(item if isinstance(item, str) else item["text"] for item in fields["documents"]),
        top_n=None if "top_n" not in fields else int(fields["top_n"]),
        return_documents=fields.get("return_documents", True),
        truncate=fields.get("truncate", False),
    )


def render_rerank(
    request: RerankRequest, request_id: str, model: str, scores: Sequence[float], used: Usage
) -> bytes:
    """The reply's body: the best documents first, of equal ones those that came first.

    Args:
        request: what was asked for.
        request_id: of the reply.
        model: the id of the model that computed.
        scores: of each document, from 0 to 1.
        used: tokens that were read, and what they cost.
    """
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: request.top_n]
    results: list[dict[str, object]] = []
    for index in order:
        result: dict[str, object] = {"index": index, "relevance_score": scores[index]}
        if request.return_documents:
            result["document"] = {"text": request.documents[index]}
        results.append(result)
    return dumps(
        {
            "id": request_id,
            "object": "list",
            "model": model,
            "results": results,
            "usage": {"prompt_tokens": used.prompt_tokens, "total_tokens": used.total_tokens, **used.cost},
        }
    ).encode()
