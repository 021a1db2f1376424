"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import trio
from starlette.types import Receive, Scope, Send

from stretto.api.caller import caller_of
from stretto.api.ports import PipelinePort
from stretto.api.reading import require_json
from stretto.api.replies import send_json_bytes
from stretto.conversation.messages import Request
from stretto.dialects.dialect import Parse
from stretto.dialects.json_text import dumps
from stretto.dialects.tokens import (
    TokenizeRequest,
    parse_detokenize,
    parse_tokenize,
    render_detokenize,
    render_tokenize,
)
from stretto.serving import read_body, run_until_disconnect

_AT_ONCE = 2  # bodies that are parsed or written; both may be megabytes

T = TypeVar("T")


class _TokensRoute(ABC):
    """What both routes share: bodies are read and written in threads, and a client that goes is not waited for."""

    def __init__(self, pipeline: PipelinePort) -> None:
        self._pipeline = pipeline
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            StrettoError: why not.
            ClientDisconnected: nobody listens any more.
        """
        require_json(scope)
        body = await read_body(receive)

        async def reply(send: Send) -> None:
            await send_json_bytes(send, await self._reply(scope, body))

        await run_until_disconnect(receive, send, reply)

    @abstractmethod
    async def _reply(self, scope: Scope, body: bytes) -> bytes:
        """The reply to a body."""

    def _resolve(self, model: str | None) -> None:
        if model is not None:
            self._pipeline.model.resolve(model)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(work, limiter=self._limiter)


class TokenizeRoute(_TokensRoute):
    """``{"count", "max_model_len", "tokens", "token_strs"}`` of a text or a conversation.

    Args:
        pipeline: tokenises.
        parse_chat: reads a conversation.
    """

    def __init__(self, pipeline: PipelinePort, parse_chat: Parse) -> None:
        super().__init__(pipeline)
        self._parse_chat = parse_chat

    async def _reply(self, scope: Scope, body: bytes) -> bytes:
        caller = caller_of(scope)
        request = await self._in_thread(partial(parse_tokenize, body))
        self._resolve(request.model)
        tokens = self._pipeline.tokens
        if request.text is not None:
            ids = await tokens.of_text(
                request.text, add_bos=request.add_bos, allow_special=request.parse_special
            )
        else:
            chat = await self._in_thread(partial(self._chat, request, scope["state"]["request_id"]))
            ids = list(await tokens.of_request(replace(chat, caller=caller)))
        render = partial(
            render_tokenize,
            ids,
            context_tokens=self._pipeline.model.context_tokens,
            spelled=await tokens.spelled(ids) if request.spelled else None,
            pieces=await tokens.pieces(ids) if request.pieces else None,
        )
        return await self._in_thread(render)

    def _chat(self, request: TokenizeRequest, request_id: str) -> Request:
        body = dumps({"model": self._pipeline.model.id, **(request.chat or {})}).encode()
        return self._parse_chat(body, request_id=request_id)


class DetokenizeRoute(_TokensRoute):
    """``{"prompt", "content"}``: the text of tokens."""

    async def _reply(self, scope: Scope, body: bytes) -> bytes:
        request = await self._in_thread(partial(parse_detokenize, body))
        self._resolve(request.model)
        text = await self._pipeline.tokens.text_of(request.ids)
        return await self._in_thread(partial(render_detokenize, text))
