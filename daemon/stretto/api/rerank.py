"""``POST /v1/rerank``: joins the dialect and the reranker."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import trio
from starlette.types import Receive, Scope, Send

from stretto.api.ports import PipelinePort, RerankerPort
from stretto.api.replies import new_request_id
from stretto.api.retries import Retries
from stretto.api.shared_reply import share_reply
from stretto.conversation.events import Usage
from stretto.dialects.rerank import ID_PREFIX, RerankRequest, parse_rerank, render_rerank
from stretto.errors import NotFound, StrettoError
from stretto.observe import LifecycleLog
from stretto.pipeline import Billing, draining_error
from stretto.serving import Header, drain_of

_AT_ONCE = 2  # bodies that are parsed or written; both may be megabytes


class RerankRoute:
    """The route. A client that goes ends the work within a batch, unless it is expected to ask again; see ``Retries``.

    Args:
        reranker: computes; None when the daemon has none.
        pipeline: knows whether the daemon drains.
        billing: makes requests pay for the tokens they send.
        retries: lets a retry join the run of the request before; None runs each by itself.
        log: gets one line a run; counts and times, never content.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        reranker: RerankerPort | None,
        pipeline: PipelinePort,
        *,
        billing: Billing | None = None,
        retries: Retries | None = None,
        log: LifecycleLog | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reranker = reranker
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
            self._log.failed(request_id, phase="reranking", code=error.code, after_s=self._clock() - began)
            raise
        self._log.reranked(
            request_id,
            documents=len(counts),
            prompt_tokens=sum(counts),
            after_s=self._clock() - began,
        )
        return reply, headers

    async def _computed(
        self, scope: Scope, body: bytes, headers: list[Header]
    ) -> tuple[bytes, tuple[int, ...]]:
        """The reply's body, and the tokens read with each document; what its head is to say comes into ``headers``."""
        request = await trio.to_thread.run_sync(parse_rerank, body, limiter=self._limiter)
        reranker = self._resolve(request)
        state = scope["state"]
        names = (reranker.name, *reranker.aliases)
        async with self._billing.other_bill(state.get("tenant", ""), state["request_id"], names) as bill:
            await bill.reserve(len(request.documents) * reranker.max_tokens, [0])
            found = await reranker.rank(request.query, request.documents, truncate=request.truncate)
            used = await bill.settle(Usage(sum(found.token_counts), 0))
            bill.tell(headers)
        reply = await trio.to_thread.run_sync(
            render_rerank, request, state["request_id"], reranker.name, found.scores.tolist(), used,
            limiter=self._limiter,
        )  # fmt: skip
        return reply, found.token_counts

    def _resolve(self, request: RerankRequest) -> RerankerPort:
        reranker = self._reranker
        if reranker is None:
            raise NotFound(
                "This daemon ranks nothing: it has no reranking model.",
                code="reranker_off",
                remedy="Start the daemon with --reranker and the directory of a BERT cross-encoder.",
            )
        if request.model != reranker.name and request.model not in reranker.aliases:
            raise NotFound(
                f"The model '{request.model[:100]}' ranks nothing here; '{reranker.name}' does.",
                code="model_not_found",
                param="model",
                remedy=f"Set model to '{reranker.name}', or start the daemon with another --reranker.",
            )
        return reranker
