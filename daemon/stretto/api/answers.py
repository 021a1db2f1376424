"""The routes that answer: join a dialect, the pipeline and the writers."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial

from starlette.types import Receive, Scope, Send

from stretto.api.caller import caller_of
from stretto.api.ports import AnswerPort, PipelinePort
from stretto.api.reading import RequestReader
from stretto.api.replies import internal_error, new_request_id, send_json_bytes
from stretto.conversation.messages import Request
from stretto.dialects.dialect import Dialect, Renderer
from stretto.errors import StrettoError
from stretto.serving import EventStream, Header, drain_of, run_until_disconnect

logger = logging.getLogger(__name__)

CACHE_MISS = b"x-stretto-cache-miss"
"""Where the prompt was not known any more, and why: ``96:diverged``. A stream's head goes out before that is known."""


class AnswerRoute:
    """The route of one dialect.

    Every refusal is raised before the first byte of the answer, so it has its own HTTP status. A client that goes, at any time
    after its request was read, cancels the work.

    Args:
        dialect: the wire format.
        pipeline: does the work.
        ping_interval_s: longest silence in a stream.
        clock: Unix seconds, for ``created``.
    """

    def __init__(
        self,
        dialect: Dialect,
        pipeline: PipelinePort,
        *,
        ping_interval_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._dialect = dialect
        self._pipeline = pipeline
        self._ping_interval_s = ping_interval_s
        self._clock = clock
        self._reader = RequestReader(dialect.parse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            StrettoError: why not.
            ClientDisconnected: nobody listens any more.
        """
        scope["state"]["request_id"] = new_request_id(self._dialect.id_prefix)
        caller = caller_of(scope)
        request, _ = await self._reader.read(scope, receive)
        request = replace(request, caller=caller)
        reply = self._stream if request.stream else self._whole
        await run_until_disconnect(receive, send, partial(reply, scope, request))

    def _renderer(self, request: Request) -> Renderer:
        return self._dialect.renderer(request, int(self._clock()), self._pipeline.model.id)

    async def _whole(self, scope: Scope, request: Request, send: Send) -> None:
        body, headers = await drain_of(scope).run(partial(self._collect, request))
        await send_json_bytes(send, body, headers=headers)

    async def _collect(self, request: Request) -> tuple[bytes, list[Header]]:
        async with self._pipeline.answer(request) as answer:
            events = [event async for event in answer]
        headers = list(answer.headers)
        if answer.cache_miss is not None:
            headers.append((CACHE_MISS, str(answer.cache_miss).encode()))
        return self._renderer(request).json(events), headers

    async def _stream(self, scope: Scope, request: Request, send: Send) -> None:
        async with self._pipeline.answer(request) as answer:
            renderer = self._renderer(request)
            stream = EventStream(
                _frames(answer, renderer),
                error_frame=partial(_error_frames, renderer, request.id),
                ping_interval_s=self._ping_interval_s,
                ping=self._dialect.ping,
                headers=answer.headers,
            )
            await stream.write(scope, send)


async def _frames(answer: AnswerPort, renderer: Renderer) -> AsyncGenerator[bytes, None]:
    """SSE frames; those of events that are at hand together come as one piece."""
    yield renderer.start(answer.prompt_tokens)
    async for event in answer:
        yield b"".join([renderer.event(event), *map(renderer.event, answer.take_ready())])
    yield renderer.end()


def _error_frames(renderer: Renderer, request_id: str, error: Exception) -> bytes:
    """The last words of a stream that failed: the error, and the usual end, so that no reader waits on."""
    if not isinstance(error, StrettoError):
        logger.error("Request %s failed in its stream", request_id, exc_info=error)
        error = internal_error()
    return renderer.error(error) + renderer.end()
