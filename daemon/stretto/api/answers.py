"""The routes that answer: join a dialect, the pipeline and the writers."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import trio
from starlette.types import Receive, Scope, Send

from stretto.api.caller import caller_of
from stretto.api.ports import AnswerPort, PipelinePort
from stretto.api.reading import RequestReader
from stretto.api.recording import Recording
from stretto.api.replies import internal_error, new_request_id, send_json_bytes
from stretto.api.retries import Retries
from stretto.api.shared_reply import key_of, recorded_head, send_recorded
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
    after its request was read, cancels the work; unless it is expected to send the request again, see ``Retries``.

    Args:
        dialect: the wire format.
        pipeline: does the work.
        ping_interval_s: longest silence in a stream.
        retries: lets a retry join the run of the request before; None runs each by itself.
        clock: Unix seconds, for ``created``.
    """

    def __init__(
        self,
        dialect: Dialect,
        pipeline: PipelinePort,
        *,
        ping_interval_s: float,
        retries: Retries | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._dialect = dialect
        self._pipeline = pipeline
        self._ping_interval_s = ping_interval_s
        self._retries = retries
        self._clock = clock
        self._reader = RequestReader(dialect.parse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            StrettoError: why not.
            ClientDisconnected: nobody listens any more.
        """
        began = trio.current_time()
        scope["state"]["request_id"] = new_request_id(self._dialect.id_prefix)
        caller = caller_of(scope)
        request, body = await self._reader.read(scope, receive)
        request = replace(request, caller=caller, priority=caller.priority or request.priority)
        key = await key_of(scope, caller, body, stream=request.stream)
        if self._retries is None or key is None:
            reply = self._stream if request.stream else self._whole
            await run_until_disconnect(receive, send, partial(reply, scope, request))
            return
        with self._retries.joined(key, request.id, partial(self._play, request), began) as (run, again):
            scope["state"]["request_id"] = run.request_id
            replay = partial(self._replay, scope, run.recording, request.stream, again)
            await run_until_disconnect(receive, send, replay)

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
            last_words = partial(_error_frames, renderer, request.id)
            stream = self._event_stream(_frames(answer, renderer), last_words, answer.headers)
            await stream.write(scope, send)

    async def _play(self, request: Request, recording: Recording) -> None:
        """The same, for whoever reads the recording."""
        if not request.stream:
            body, headers = await self._collect(request)
            recording.begin(headers)
            await recording.write(body)
            return
        async with self._pipeline.answer(request) as answer:
            renderer = self._renderer(request)
            last_words = partial(_error_frames, renderer, request.id)
            recording.begin(answer.headers, last_words)
            try:
                async with aclosing(_frames(answer, renderer)) as frames:
                    async for frame in frames:
                        await recording.write(frame)
            except Exception as error:
                await recording.write(last_words(error))
                raise

    async def _replay(
        self, scope: Scope, recording: Recording, stream: bool, again: bool, send: Send
    ) -> None:
        if not stream:
            await send_recorded(scope, recording, again, send)
            return
        headers = await recorded_head(scope, recording, again)
        assert recording.last_words is not None
        await self._event_stream(recording.read(), recording.last_words, headers).write(scope, send)

    def _event_stream(
        self,
        frames: AsyncGenerator[bytes, None],
        last_words: Callable[[Exception], bytes],
        headers: Sequence[Header],
    ) -> EventStream:
        return EventStream(
            frames,
            error_frame=last_words,
            ping_interval_s=self._ping_interval_s,
            ping=self._dialect.ping,
            headers=headers,
        )


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
