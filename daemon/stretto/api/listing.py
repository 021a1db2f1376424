"""What OpenRouter reads of the model, in the two formats that it accepts. They clash, so each has a document of its own."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stretto.api.credits import CreditRoutes
from stretto.api.models import More
from stretto.api.ports import ModelPort, PipelinePort
from stretto.api.replies import send_json
from stretto.ledger import Ledger, current_document, flat_fields


def ledger_routes(pipeline: PipelinePort, ledger: Ledger) -> list[BaseRoute]:
    """Everything that is there with a ledger only."""
    listing = Route("/v1/openrouter/models", CurrentListing(pipeline, ledger), methods=["GET"])
    return [listing, *CreditRoutes(ledger).routes()]


def flat_listing(ledger: Ledger) -> More:
    """The flat format, for the entries of ``/v1/models``."""

    def fields(model: ModelPort) -> Mapping[str, object]:
        return flat_fields(ledger.offer, model)

    return fields


class CurrentListing:
    """``GET /v1/openrouter/models``: the format of typed modalities.

    Args:
        pipeline: has the model.
        ledger: has its prices, and what the provider file says of it.
    """

    def __init__(self, pipeline: PipelinePort, ledger: Ledger) -> None:
        self._pipeline = pipeline
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        await send_json(send, {"data": [current_document(self._ledger.offer, self._pipeline.model)]})
