"""The client for tasks, on trio and asyncio through anyio: the same calls as the sync client, awaited."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack

import anyio
import anyio.lowlevel

from clientlib.async_steps import run_flow_async
from clientlib.cache_calls import (
    cache_clear_call,
    cache_entries_call,
    cache_entry_call,
    cache_stats_call,
)
from clientlib.calls import (
    ChatOptions,
    Messages,
    Priority,
    Sampling,
    drain_call,
    health_call,
    models_call,
    prompt_messages,
    requests_call,
    status_call,
    stop_call,
)
from clientlib.credits import AsyncCredits
from clientlib.memory_calls import DEFAULT_SESSION, add_call, forget_session_call, sessions_call
from clientlib.replies import Delta, Health, JsonObject, Model, Reply
from clientlib.session import Session
from clientlib.steps import Flow
from clientlib.streaming import ChatStreamCore
from clientlib.timing import Timeouts
from clientlib.token_calls import detokenize_call, tokenize_call
from clientlib.views import StreamView

T = TypeVar("T")


class _Stream(StreamView):
    """A stream that tasks read."""

    def __init__(self, core: ChatStreamCore, sleep: Callable[[float], Awaitable[object]]) -> None:
        super().__init__(core)
        self._sleep = sleep

    async def __aenter__(self) -> Self:
        await run_flow_async(self._core.open(), self._sleep)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def aclose(self) -> None:
        """As close(), which awaits nothing."""
        self.close()

    async def _next(self) -> Delta:
        try:
            # Pieces that are already here must not starve other tasks, nor hide a cancellation.
            await anyio.lowlevel.checkpoint()
        except BaseException:
            self.close()
            raise
        delta = await run_flow_async(self._core.advance(), self._sleep)
        if delta is None:
            raise StopAsyncIteration
        return delta


class AsyncChatStream(_Stream):
    """An answer in pieces: iterate it for Deltas. Nothing is sent before ``async with`` or the first piece.

    Leaving the ``async with`` block, close(), a cancelled reader, or dropping the last reference before the end cancels the
    generation. Exhausting it gives the connection back. close() may come from another task; the one that iterates then gets
    ConnectionLost (``stream_closed``).
    """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        return await self._next()


class AsyncTextStream(_Stream):
    """An answer's text in pieces: iterate it for strings. Otherwise as AsyncChatStream."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        while True:
            delta = await self._next()
            if delta.text and delta.index == 0:
                return delta.text


class AsyncAdmin:
    """The control plane, which a daemon has on its Unix socket only (elsewhere: NotFound)."""

    def __init__(self, session: Session, sleep: Callable[[float], Awaitable[object]]) -> None:
        self._session = session
        self._sleep = sleep
        self.credits = AsyncCredits(session, self._run)

    async def status(self) -> JsonObject:
        """Engine, KV memory, queue, sequences, versions."""
        return await self._run(self._session.fetch(status_call()))

    async def requests(self) -> list[JsonObject]:
        """The requests that wait or run."""
        return await self._run(self._session.fetch(requests_call()))

    async def cancel(self, request_id: str) -> bool:
        """End a request, whoever made it; False when there is none of that id."""
        return await self._run(self._session.cancel(request_id))

    async def drain(self) -> JsonObject:
        """Refuse new work; what runs goes on."""
        return await self._run(self._session.fetch(drain_call()))

    async def stop(self, grace_s: float | None = None) -> JsonObject:
        """Stop the daemon; running answers get ``grace_s`` seconds (None: the daemon's setting)."""
        return await self._run(self._session.fetch(stop_call(grace_s)))

    async def memory_sessions(self) -> list[JsonObject]:
        """Every session that remembers anything, of every tenant, with its numbers of notes and exchanges."""
        return await self._run(self._session.fetch(sessions_call()))

    async def memory(self, session: str = DEFAULT_SESSION, *, tenant: str = "") -> list[JsonObject]:
        """All that a session remembers, oldest first."""
        return await self._run(self._session.memory(session, tenant))

    async def add_memory(self, text: str, *, session: str = DEFAULT_SESSION, tenant: str = "") -> JsonObject:
        """Pin a note to a session: it is in the context of all its later requests."""
        return await self._run(self._session.fetch(add_call(text, session, tenant)))

    async def forget_memory(self, entry_id: str, *, session: str = DEFAULT_SESSION, tenant: str = "") -> bool:
        """Forget one entry; False when the session has none of that id."""
        return await self._run(self._session.forget(entry_id, session, tenant))

    async def forget_session(self, session: str = DEFAULT_SESSION, *, tenant: str = "") -> int:
        """Forget all that a session remembers; returns how many entries that were."""
        return await self._run(self._session.fetch(forget_session_call(session, tenant)))

    async def cache_stats(self) -> JsonObject:
        """Settings, sizes and counts of the answer cache."""
        return await self._run(self._session.fetch(cache_stats_call()))

    async def cache_entries(
        self, *, limit: int = 100, before: int | None = None, tenant: str | None = None
    ) -> list[JsonObject]:
        """The newest questions that were answered, without their answers; those older than the entry ``before``."""
        return await self._run(self._session.fetch(cache_entries_call(limit, before, tenant)))

    async def cache_entry(self, entry_id: int) -> JsonObject:
        """One cached question with its answer. Raises NotFound."""
        return await self._run(self._session.fetch(cache_entry_call(entry_id)))

    async def clear_cache(self, *, tenant: str | None = None) -> int:
        """Forget all cached answers, or one tenant's; returns how many those were."""
        return await self._run(self._session.fetch(cache_clear_call(tenant)))

    async def _run(self, flow: Flow[T]) -> T:
        return await run_flow_async(flow, self._sleep)


class AsyncClient:
    """A daemon, reached through its Unix socket, or over TCP with ``base_url``. Usable from many tasks, threads and event loops, and after a
    fork: its connections belong to no loop.

    Args:
        socket: the daemon's socket; the default one (see default_socket_path) when neither this nor ``base_url`` is given.
        base_url: ``http://host:port`` instead of a socket.
        model: the model to name in requests; None asks the daemon once which one it serves.
        api_key: sent as ``Authorization: Bearer …``.
        timeouts: the limits of connecting, of silence, and of whole calls.
        retries: how often to try again after a 429 or 503 that says when to come back (``Retry-After``).
        sleep: waits between those tries.
        session: the memory session that requests belong to; None means the daemon's ``default``.
        memory: ``read`` recalls and does not record, ``off`` does neither; None does both, where the daemon remembers at all.
        priority: ``background`` yields to what others wait for, ``high`` goes before it; each call that asks for an answer may name another.

    Every call raises ClientError (see clientlib.errors) and takes ``timeout_s``, its limit as a whole, where that makes sense.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        *,
        base_url: str | None = None,
        model: str | None = None,
        api_key: str | None = None,
        timeouts: Timeouts | None = None,
        retries: int = 0,
        sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
        session: str | None = None,
        memory: str | None = None,
        priority: Priority | None = None,
    ) -> None:
        self._session = Session(
            socket=socket,
            base_url=base_url,
            model=model,
            api_key=api_key,
            timeouts=timeouts,
            retries=retries,
            session=session,
            memory=memory,
            priority=priority,
        )
        self._sleep = sleep
        self.admin = AsyncAdmin(self._session, sleep)

    async def generate(
        self,
        prompt: str,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        **sampling: Unpack[Sampling],
    ) -> str:
        """The answer to one prompt, as text."""
        options = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stop": stop,
            "seed": seed,
            **sampling,
        }
        return (
            await self._run(
                self._session.chat(prompt_messages(prompt, system), options, model, timeout_s, priority)
            )
        ).text

    def stream(
        self,
        prompt: str,
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        **sampling: Unpack[Sampling],
    ) -> AsyncTextStream:
        """The answer to one prompt, in pieces of text as they are made."""
        options = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "stop": stop,
            "seed": seed,
            **sampling,
        }
        core = self._session.chat_stream(prompt_messages(prompt, system), options, model, timeout_s, priority)
        return AsyncTextStream(core, self._sleep)

    async def chat(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        **options: Unpack[ChatOptions],
    ) -> Reply:
        """The answer to a conversation."""
        return await self._run(self._session.chat(messages, options, model, timeout_s, priority))

    def chat_stream(
        self,
        messages: Messages,
        *,
        model: str | None = None,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        **options: Unpack[ChatOptions],
    ) -> AsyncChatStream:
        """The answer to a conversation, in pieces as they are made."""
        return AsyncChatStream(
            self._session.chat_stream(messages, options, model, timeout_s, priority), self._sleep
        )

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text. With ``special`` it begins with BOS where the model wants it, and has control tokens where they are
        written; without, it is text and nothing else."""
        return await self._run(self._session.fetch(tokenize_call(text, special=special)))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of tokens, control tokens as they are written."""
        return await self._run(self._session.fetch(detokenize_call(tokens)))

    async def models(self) -> tuple[Model, ...]:
        """The models that the daemon serves."""
        return await self._run(self._session.fetch(models_call()))

    async def health(self) -> Health:
        """Whether the daemon takes work. Not being ready is an answer, not an error."""
        return await self._run(self._session.fetch(health_call()))

    async def status(self) -> JsonObject:
        """As admin.status()."""
        return await self.admin.status()

    async def requests(self) -> list[JsonObject]:
        """As admin.requests()."""
        return await self.admin.requests()

    async def cancel(self, request_id: str) -> bool:
        """As admin.cancel()."""
        return await self.admin.cancel(request_id)

    async def drain(self) -> JsonObject:
        """As admin.drain()."""
        return await self.admin.drain()

    async def stop(self, grace_s: float | None = None) -> JsonObject:
        """As admin.stop()."""
        return await self.admin.stop(grace_s)

    def stats(self) -> dict[str, int]:
        """``idle``: connections waiting for the next call."""
        return self._session.pool.stats()

    async def aclose(self) -> None:
        """Close idle connections. Open streams live on; later calls open connections that they do not keep. Idempotent."""
        self._session.pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._session.address)!r})"

    async def _run(self, flow: Flow[T]) -> T:
        return await run_flow_async(flow, self._sleep)
