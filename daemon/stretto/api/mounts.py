"""Which routes a dialect brings along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from stretto.api.counting import CountRoute
from stretto.api.embeddings import EmbeddingsRoute
from stretto.api.ports import EmbedderPort, PipelinePort, RerankerPort
from stretto.api.rerank import RerankRoute
from stretto.api.retries import Retries
from stretto.api.tokens import DetokenizeRoute, TokenizeRoute
from stretto.api.versions import AnthropicVersion
from stretto.dialects.anthropic import MESSAGES, parse_count
from stretto.dialects.dialect import Dialect
from stretto.dialects.openai_chat import CHAT
from stretto.dialects.openai_completion import COMPLETION
from stretto.dialects.openai_responses import RESPONSES
from stretto.ledger import Ledger
from stretto.pipeline import Billing


@dataclass(frozen=True, slots=True)
class Parts:
    """What routes are made of.

    Attributes:
        pipeline: does the work.
        answer: from a dialect to the endpoint that answers in it.
        embedder: computes embeddings, if there is one.
        ledger: whom embeddings and scores are paid to, if anybody.
        reranker: scores documents, if there is one.
        retries: lets a retry of those join the run of the request before.
    """

    pipeline: PipelinePort
    answer: Callable[[Dialect], ASGIApp]
    embedder: EmbedderPort | None = None
    ledger: Ledger | None = None
    reranker: RerankerPort | None = None
    retries: Retries | None = None


def openai_routes(parts: Parts) -> list[BaseRoute]:
    """What clients of OpenAI's API ask."""
    return [
        Route("/v1/chat/completions", parts.answer(CHAT), methods=["POST"]),
        Route("/v1/completions", parts.answer(COMPLETION), methods=["POST"]),
        Route("/v1/responses", parts.answer(RESPONSES), methods=["POST"]),
        Route(
            "/v1/responses/input_tokens",
            CountRoute(RESPONSES.parse, parts.pipeline, kind="response.input_tokens"),
            methods=["POST"],
        ),
        Route(
            "/v1/embeddings",
            EmbeddingsRoute(
                parts.embedder, parts.pipeline, billing=Billing(parts.ledger), retries=parts.retries
            ),
            methods=["POST"],
        ),
        Route(
            "/v1/rerank",
            RerankRoute(parts.reranker, parts.pipeline, billing=Billing(parts.ledger), retries=parts.retries),
            methods=["POST"],
        ),
        Route("/tokenize", TokenizeRoute(parts.pipeline, CHAT.parse), methods=["POST"]),
        Route("/detokenize", DetokenizeRoute(parts.pipeline), methods=["POST"]),
    ]


def anthropic_routes(parts: Parts) -> list[BaseRoute]:
    """What clients of Anthropic's API ask."""
    count = CountRoute(parse_count, parts.pipeline)
    return [
        Route("/v1/messages", AnthropicVersion(parts.answer(MESSAGES)), methods=["POST"]),
        Route("/v1/messages/count_tokens", AnthropicVersion(count), methods=["POST"]),
    ]


MOUNTS: Mapping[str, Callable[[Parts], list[BaseRoute]]] = {
    "openai": openai_routes,
    "anthropic": anthropic_routes,
}
"""By the name that ``--api-compat`` has for it."""
