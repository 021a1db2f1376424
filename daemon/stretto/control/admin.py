"""The admin routes: what is going on, ending a request, and ending the daemon."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from stretto.api import Endpoint, PipelinePort, read_checked, send_json
from stretto.errors import NotFound


class Admin:
    """The control plane's own routes.

    Args:
        pipeline: asked and told.
        on_stop: begins the daemon's end; gets the grace in seconds, or None for the configured one.
        on_drain: begins refusing new work.
    """

    def __init__(
        self, pipeline: PipelinePort, *, on_stop: Callable[[float | None], None], on_drain: Callable[[], None]
    ) -> None:
        self._pipeline = pipeline
        self._on_stop = on_stop
        self._on_drain = on_drain

    def routes(self) -> list[BaseRoute]:
        """For a router."""
        return [
            Route("/admin/status", Endpoint(self.status), methods=["GET"]),
            Route("/admin/requests", Endpoint(self.requests), methods=["GET"]),
            Route("/admin/requests/{request_id}", Endpoint(self.cancel), methods=["DELETE"]),
            Route("/admin/drain", Endpoint(self.drain), methods=["POST"]),
            Route("/admin/stop", Endpoint(self.stop), methods=["POST"]),
        ]

    async def status(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Engine, KV memory, queue, versions."""
        await send_json(send, self._pipeline.status())

    async def requests(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Live requests, oldest first."""
        await send_json(send, {"object": "list", "data": self._pipeline.requests()})

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """End one request; its caller is told.

        Raises:
            NotFound: code ``request_not_found``.
        """
        request_id = scope["path_params"]["request_id"]
        if not self._pipeline.cancel(request_id):
            raise NotFound(
                f"No live request has the id '{request_id[:100]}'.",
                code="request_not_found",
                remedy="GET /admin/requests lists those that are live.",
            )
        await send_json(send, {"id": request_id, "cancelled": True})

    async def drain(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse new work from now on."""
        await read_checked(scope, receive, "admin-drain-request")
        self._on_drain()
        await send_json(send, {"state": "draining", "requests": len(self._pipeline.requests())}, status=202)

    async def stop(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Drain, then end the daemon."""
        body = await read_checked(scope, receive, "admin-stop-request")
        grace_s = body.get("grace_s")
        self._on_stop(float(grace_s) if isinstance(grace_s, int | float) else None)
        await send_json(send, {"state": "stopping", "requests": len(self._pipeline.requests())}, status=202)
