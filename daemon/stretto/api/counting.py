"""The route that counts a prompt's tokens and answers nothing."""

from __future__ import annotations

from dataclasses import replace

from starlette.types import Receive, Scope, Send

from stretto.api.caller import caller_of
from stretto.api.ports import PipelinePort
from stretto.api.reading import RequestReader
from stretto.api.replies import send_json
from stretto.dialects.dialect import Parse
from stretto.serving import run_until_disconnect


class CountRoute:
    """``{"input_tokens": N}``: what the same request for an answer would have as its prompt.

    Args:
        parse: reads the body.
        pipeline: renders and tokenises.
        kind: what the reply says it is, as ``object``; None leaves that out.
    """

    def __init__(self, parse: Parse, pipeline: PipelinePort, *, kind: str | None = None) -> None:
        self._said = {} if kind is None else {"object": kind}
        self._reader = RequestReader(parse)
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            StrettoError: why not.
            ClientDisconnected: nobody listens any more.
        """
        caller = caller_of(scope)
        request, _ = await self._reader.read(scope, receive)
        request = replace(request, caller=caller)

        async def count(send: Send) -> None:
            tokens = await self._pipeline.count_tokens(request)
            await send_json(send, {**self._said, "input_tokens": tokens})

        await run_until_disconnect(receive, send, count)
