"""The health routes: live and ready are two things, and both are told apart from the engine's own progress."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from stretto._version import __version__
from stretto.api.ports import PipelinePort
from stretto.api.replies import send_json


class HealthRoute:
    """``GET /health`` (the whole picture; fails with ``live``), ``/health/live``, ``/health/ready``.

    Args:
        pipeline: asked anew for each request; never waits for the engine.
        aspect: ``live`` or ``ready``: 503 when it does not hold.
    """

    def __init__(self, pipeline: PipelinePort, aspect: str) -> None:
        self._pipeline = pipeline
        self._aspect = aspect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        health = self._pipeline.health()
        holds = health.live if self._aspect == "live" else health.ready
        document = {
            "status": health.state,
            "live": health.live,
            "ready": health.ready,
            "model": self._pipeline.model.id,
            "version": __version__,
            "detail": health.detail,
        }
        await send_json(send, document, status=200 if holds else 503)
