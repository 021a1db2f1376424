"""The routes that answer: join a dialect, the pipeline and the writers."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial

import trio
from starlette.types import Receive, Scope, Send

from stretto.api.caller import caller_of
from stretto.api.ports import AnswerPort, PipelinePort
from stretto.api.replies import internal_error, new_request_id, send_json_bytes
from stretto.conversation.messages import Request
from stretto.dialects.dialect import Dialect, Renderer
from stretto.errors import InvalidRequest, StrettoError
from stretto.serving import EventStream, Header, drain_of, read_body, run_until_disconnect

logger = logging.getLogger(__name__)

_PARSED_ON_THE_LOOP_BYTES = 64 * 1024
_PARSED_AT_ONCE = 2  # large bodies; a parsed one takes several times its size

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
        self._parsing = trio.CapacityLimiter(_PARSED_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            StrettoError: why not.
            ClientDisconnected: nobody listens any more.
        """
        request_id = new_request_id(self._dialect.id_prefix)
        scope["state"]["request_id"] = request_id
        require_json(scope)
        caller = caller_of(scope)
        body = await read_body(receive)
        if len(body) > _PARSED_ON_THE_LOOP_BYTES:
            request = await trio.to_thread.run_sync(
                partial(self._dialect.parse, body, request_id=request_id), limiter=self._parsing
            )
        else:
            request = self._dialect.parse(body, request_id=request_id)
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


def require_json(scope: Scope) -> None:
    """Check that the body is declared as JSON. A page of another site cannot declare that without asking first (CORS).

    Raises:
        InvalidRequest: 415, code ``unsupported_media_type``.
    """
    declared = b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            declared = value
    kind = bytes(declared).partition(b";")[0].strip().lower()
    if kind != b"application/json":
        shown = kind.decode("latin-1")[:100] or "missing"
        raise InvalidRequest(
            f"The Content-Type of this request is {shown}; it must be application/json.",
            code="unsupported_media_type",
            status=415,
        )
