"""``POST /v1/embeddings``: joins the dialect and the embedder."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import trio
from starlette.types import Receive, Scope, Send

from stretto.api.ports import EmbedderPort, PipelinePort
from stretto.api.replies import new_request_id
from stretto.api.retries import Retries
from stretto.api.shared_reply import share_reply
from stretto.conversation.events import Usage
from stretto.dialects.openai_embeddings import (
    ID_PREFIX,
    EmbeddingsRequest,
    Float32Array,
    parse_embeddings,
    render_embeddings,
)
from stretto.errors import InvalidRequest, NotFound, StrettoError
from stretto.observe import LifecycleLog
from stretto.pipeline import Billing, draining_error
from stretto.serving import Header, drain_of

_AT_ONCE = 2  # bodies that are parsed or written; both may be megabytes


class EmbeddingsRoute:
    """The route. A client that goes ends the work within a batch, unless it is expected to ask again; see ``Retries``.

    Args:
        embedder: computes; None when the daemon has none.
        pipeline: knows whether the daemon drains.
        billing: makes requests pay for the tokens they send.
        retries: lets a retry join the run of the request before; None runs each by itself.
        log: gets one line a run; counts and times, never content.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        embedder: EmbedderPort | None,
        pipeline: PipelinePort,
        *,
        billing: Billing | None = None,
        retries: Retries | None = None,
        log: LifecycleLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._embedder = embedder
        self._pipeline = pipeline
        self._billing = billing or Billing()
        self._retries = retries
        self._log = LifecycleLog() if log is None else log
        self._clock = clock
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer.

        Raises:
            StrettoError: why not.
            ClientDisconnected: nobody listens any more.
        """
        request_id = scope["state"]["request_id"] = new_request_id(ID_PREFIX)
        reply = partial(self._reply, scope, request_id)
        await share_reply(scope, receive, send, reply, retries=self._retries)

    async def _reply(self, scope: Scope, request_id: str, body: bytes) -> tuple[bytes, list[Header]]:
        began = self._clock()
        headers: list[Header] = []
        try:
            if self._pipeline.health().state == "draining":
                raise draining_error()
            reply, counts = await drain_of(scope).run(partial(self._computed, scope, body, headers))
        except StrettoError as error:
            self._log.failed(request_id, phase="embedding", code=error.code, after_s=self._clock() - began)
            raise
        self._log.embedded(
            request_id,
            texts=len(counts),
            prompt_tokens=sum(counts),
            after_s=self._clock() - began,
        )
        return reply, headers

    async def _computed(
        self, scope: Scope, body: bytes, headers: list[Header]
    ) -> tuple[bytes, tuple[int, ...]]:
        """The reply's body, and the tokens read of each input; what its head is to say comes into ``headers``."""
        request = await trio.to_thread.run_sync(parse_embeddings, body, limiter=self._limiter)
        embedder = self._resolve(request)
        state = scope["state"]
        names = (embedder.name, *embedder.aliases)
        async with self._billing.other_bill(state.get("tenant", ""), state["request_id"], names) as bill:
            await bill.reserve(len(request.inputs) * embedder.max_tokens, [0])
            found = await embedder.embed(request.inputs, truncate=request.truncate)
            used = await bill.settle(Usage(sum(found.token_counts), 0))
            bill.tell(headers)
        vectors = _cut(found.vectors, request.dimensions)
        reply = await trio.to_thread.run_sync(
            render_embeddings, request, embedder.name, vectors, used, limiter=self._limiter
        )
        return reply, found.token_counts

    def _resolve(self, request: EmbeddingsRequest) -> EmbedderPort:
        name = request.model[:100]
        embedder = self._embedder
        if embedder is None:
            raise NotFound(
                f"The model '{name}' computes no embeddings here: this daemon has no embedding model.",
                code="model_not_found",
                param="model",
                remedy="Run `stretto pull minilm` and start the daemon again, or name another one with --embedder.",
            )
        if request.model != embedder.name and request.model not in embedder.aliases:
            raise NotFound(
                f"The model '{name}' computes no embeddings here; '{embedder.name}' does.",
                code="model_not_found",
                param="model",
                remedy=f"Set model to '{embedder.name}', or start the daemon with --embedder.",
            )
        if request.dimensions is not None and request.dimensions > embedder.dimensions:
            raise InvalidRequest(
                f"'dimensions' is {request.dimensions}; the vectors of '{embedder.name}' have {embedder.dimensions}.",
                param="dimensions",
                remedy=f"Send at most {embedder.dimensions}, or leave it out.",
            )
        return embedder


def _cut(vectors: Float32Array, dimensions: int | None) -> Float32Array:
    """The first values of each vector, brought to length 1 again."""
    if dimensions is None or dimensions == vectors.shape[1]:
        return vectors
    cut = vectors[:, :dimensions]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    return np.asarray(cut / np.maximum(lengths, np.float32(1e-12)), dtype=np.float32)
