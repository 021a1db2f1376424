"""All that a client knows and does, except waiting: shared by the sync and the async client."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from clientlib.address import parse_base_url, unix_address
from clientlib.calls import (
    Messages,
    Priority,
    cancel_call,
    chat_call,
    check_priority,
    encode_chat,
    models_call,
)
from clientlib.errors import NotFound
from clientlib.exchange import Call, Exchanger, Watch
from clientlib.http1 import Head
from clientlib.link import Link
from clientlib.memory_calls import forget_call, page_call, page_entries
from clientlib.paths import default_socket_path
from clientlib.pool import ConnectionPool
from clientlib.replies import JsonObject, Reply, optional_str
from clientlib.steps import Flow
from clientlib.streaming import ChatStreamCore
from clientlib.timing import Budget, Timeouts, check_limit

T = TypeVar("T")

_MODES = ("on", "read", "off")


class Session:
    """An address, its idle connections, limits, and the model's name. Makes flows; performs none.

    Args:
        socket: the daemon's Unix socket; the default socket when neither it nor ``base_url`` is given.
        base_url: ``http://host:port`` instead of a socket.
        model: the model to name in requests; None asks the daemon once which one it serves.
        api_key: sent as ``Authorization: Bearer …``.
        timeouts: see Timeouts.
        retries: how often to come back after a 429 or 503 that carries ``Retry-After``.
        session: the memory session that requests belong to; None leaves it to the daemon.
        memory: ``on``, ``read`` or ``off``; None leaves it to the daemon.
        priority: of requests that name none; None leaves it to the daemon.

    Raises:
        ValueError: an argument is not usable; the message names it.
    """

    def __init__(
        self,
        *,
        socket: str | os.PathLike[str] | None,
        base_url: str | None,
        model: str | None,
        api_key: str | None,
        timeouts: Timeouts | None,
        retries: int,
        session: str | None = None,
        memory: str | None = None,
        priority: Priority | None = None,
    ) -> None:
        if base_url is not None and socket is not None:
            raise ValueError("socket and base_url exclude each other: a client talks to one address")
        if retries < 0:
            raise ValueError(f"retries = {retries}: it must be 0 or more")
        self.address = (
            parse_base_url(base_url)
            if base_url is not None
            else unix_address(socket or default_socket_path())
        )
        self.timeouts = timeouts or Timeouts()
        self.pool = ConnectionPool()
        headers = (*_authorization(api_key), *_remembering(session, memory))
        self._exchanger = Exchanger(self.address, self.pool, headers, retries)
        self._priority = check_priority(priority)
        self._named_model = model
        self._found_model: str | None = None

    def fetch(self, call: Call[T], timeout_s: float | None = None) -> Flow[T]:
        """The result of a plain call."""
        return self._exchanger.fetch(call, self._budget(timeout_s))

    def chat(
        self,
        messages: Messages,
        options: Mapping[str, Any],
        model: str | None,
        timeout_s: float | None,
        priority: Priority | None,
    ) -> Flow[Reply]:
        """A chat completion as a whole."""
        encoded = encode_chat(messages, options, stream=False)
        urgency = check_priority(priority) or self._priority
        budget = self._budget(timeout_s)
        return self._with_model(
            model, budget, lambda name: self._exchanger.fetch(chat_call(name, encoded, urgency), budget)
        )

    def chat_stream(
        self,
        messages: Messages,
        options: Mapping[str, Any],
        model: str | None,
        timeout_s: float | None,
        priority: Priority | None,
    ) -> ChatStreamCore:
        """A chat completion in pieces; nothing is sent before its first advance()."""
        encoded = encode_chat(messages, options, stream=True)
        urgency = check_priority(priority) or self._priority
        total_s = math.inf if timeout_s is None else check_limit("timeout_s", timeout_s)

        def begin(budget: Budget, watch: Watch) -> Flow[tuple[Link, Head]]:
            return self._with_model(
                model,
                budget,
                lambda name: self._exchanger.open(
                    chat_call(name, encoded, urgency), budget, "text/event-stream", watch
                ),
            )

        return ChatStreamCore(begin, lambda: Budget(self.timeouts, total_s, stream=True), self.pool)

    def cancel(self, request_id: str) -> Flow[bool]:
        """End a request of anyone's; False when there is none of that id."""
        call = cancel_call(request_id)
        return self._cancel(call)

    def _cancel(self, call: Call[None]) -> Flow[bool]:
        try:
            yield from self.fetch(call)
        except NotFound as error:
            if error.code != "request_not_found":
                raise
            return False
        return True

    def memory(self, session: str, tenant: str) -> Flow[list[JsonObject]]:
        """All that a session remembers, oldest first; as many calls as there are pages."""
        found: list[JsonObject] = []
        after: str | None = None
        while True:
            page = yield from self.fetch(page_call(session, tenant, after))
            found += page_entries(page)
            after = optional_str(page.get("last_id"), "last_id")
            if not page.get("has_more") or after is None:
                return found

    def forget(self, entry_id: str, session: str, tenant: str) -> Flow[bool]:
        """Forget an entry of a session; False when it has none of that id."""
        try:
            yield from self.fetch(forget_call(entry_id, session, tenant))
        except NotFound as error:
            if error.code != "memory_not_found":
                raise
            return False
        return True

    def _budget(self, timeout_s: float | None) -> Budget:
        total_s = self.timeouts.total_s if timeout_s is None else check_limit("timeout_s", timeout_s)
        return Budget(self.timeouts, total_s, stream=False)

    def _with_model(self, model: str | None, budget: Budget, attempt: Callable[[str], Flow[T]]) -> Flow[T]:
        """Do ``attempt`` with the model that was named, else with the one that the daemon serves."""
        named = model or self._named_model
        if named is not None:
            return (yield from attempt(named))
        if self._found_model is not None:
            try:
                return (yield from attempt(self._found_model))
            except NotFound as error:
                # The daemon was started anew with another model. It refused before any work: asking again is safe.
                if error.code != "model_not_found":
                    raise
        self._found_model = yield from self._find_model(budget)
        return (yield from attempt(self._found_model))

    def _find_model(self, budget: Budget) -> Flow[str]:
        models = yield from self._exchanger.fetch(models_call(), budget)
        if not models:
            raise NotFound(
                f"The daemon at {self.address} serves no model.", code="model_not_found", param="model"
            )
        return models[0].id


def _remembering(session: str | None, memory: str | None) -> tuple[tuple[str, str], ...]:
    headers = []
    if session is not None:
        if (
            not 1 <= len(session) <= 128
            or not session.isascii()
            or not session.isprintable()
            or session != session.strip()
        ):
            raise ValueError(f"session = {session!r}: it must be 1 to 128 printable ASCII characters")
        headers.append(("X-Stretto-Session", session))
    if memory is not None:
        if memory not in _MODES:
            raise ValueError(f"memory = {memory!r}: it must be one of {', '.join(_MODES)}")
        headers.append(("X-Stretto-Memory", memory))
    return tuple(headers)


def _authorization(api_key: str | None) -> tuple[tuple[str, str], ...]:
    if api_key is None:
        return ()
    if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
        # The key itself stays out of messages.
        raise ValueError("api_key: it must be printable ASCII without spaces")
    return (("Authorization", f"Bearer {api_key}"),)
