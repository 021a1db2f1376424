"""A chat completion in pieces: the life of its connection, shared by the sync and the async stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from clientlib.assembly import ChatAssembler
from clientlib.errors import ClientError, ConnectionLost, ProtocolError
from clientlib.exchange import Watch, next_event
from clientlib.http1 import Head, Mark
from clientlib.link import Link
from clientlib.pool import ConnectionPool
from clientlib.replies import Delta
from clientlib.sse import SseParser
from clientlib.steps import Flow, WaitSocket
from clientlib.timing import Budget

_DRAIN_S = 1.0
"""After ``[DONE]`` the end of the HTTP reply follows at once; a connection where it does not is not worth keeping."""

Begin = Callable[[Budget, Watch], Flow[tuple[Link, Head]]]


class ChatStreamCore:
    """State of one stream: not begun, open, then finished (told in full, failed, or closed early).

    advance() is one thread's (or task's) business at a time; close() may come from any thread and ends a wait in progress.
    """

    def __init__(self, begin: Begin, make_budget: Callable[[], Budget], pool: ConnectionPool) -> None:
        self._begin = begin
        self._make_budget = make_budget
        self._pool = pool
        self._budget: Budget | None = None
        self._link: Link | None = None  # ours from the reply's head on
        self._watched: Link | None = None  # what close() may cut while a reader waits
        self._parser = SseParser()
        self._ready: deque[Delta | ClientError] = deque()
        self._finished = False
        self._closed = False
        self._advancing = False
        self._lock = threading.Lock()  # never held over a wait
        self.assembler = ChatAssembler(None)

    def open(self) -> Flow[None]:
        """Send the request and read the reply's head, unless that is done. Raises ClientError."""
        self._enter()
        try:
            yield from self._open()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._leave()

    def advance(self) -> Flow[Delta | None]:
        """The next piece; None at the end.

        Raises:
            ClientError: with ``text``, the answer so far. The stream is over then, and its connection closed.
        """
        self._enter()
        try:
            yield from self._open()
            while not self._ready and not self._finished:
                yield from self._finish() if self.assembler.done else self._receive()
            if not self._ready:
                return None
            piece = self._ready.popleft()
            if isinstance(piece, ClientError):
                raise piece
            return piece
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._leave()

    def close(self) -> None:
        """End the stream. Before its end this cancels the generation. Idempotent; callable from any thread."""
        with self._lock:
            if self._closed or self._finished:
                self._closed = True
                return
            self._closed = True
            if not self._advancing:
                if self._link is not None:
                    self._link.close()
            elif self._watched is not None:
                # A reader in another thread waits on the descriptor, so only it may close that: cutting wakes it.
                self._watched.cut()

    def _open(self) -> Flow[None]:
        if self._budget is not None:
            return
        self._budget = self._make_budget()
        self._link, head = yield from self._begin(self._budget, self._watch)
        self.assembler.request_id = head.header("x-request-id")
        media_type = head.header("content-type") or ""
        if not media_type.lower().startswith("text/event-stream"):
            raise ProtocolError(
                f"The reply is {media_type or 'of no type'}, not an event stream.", code="invalid_reply"
            )

    def _receive(self) -> Flow[None]:
        """Read on until something is ready, or to the end."""
        assert self._link is not None
        assert self._budget is not None
        event = yield from next_event(self._link, self._budget)
        if event is Mark.END:
            raise ConnectionLost("The stream ended before its [DONE].", code="stream_truncated")
        if isinstance(event, bytes):
            for sent in self._parser.feed(event):
                try:
                    self._ready.extend(self.assembler.feed(sent.data))
                except ClientError as error:
                    # What came before the error is the caller's first.
                    self._ready.append(error)
                    return

    def _finish(self) -> Flow[None]:
        """Read the rest of the HTTP reply, for the connection's sake alone."""
        assert self._link is not None
        link, ended = self._link, False
        try:
            while not ended:
                event = link.wire.next_event()
                ended = event is Mark.END
                if (
                    event is Mark.NEED_DATA
                    and not link.receive()
                    and not (yield WaitSocket(link.sock, False, _DRAIN_S))
                ):
                    break
        except (OSError, ClientError):
            ended = False
        with self._lock:
            self._finished = True
            self._watched = None
            if self._closed:  # meanwhile, by another thread: it has cut the connection
                ended = False
        if ended:
            self._link = None
            self._pool.give(link)
        else:
            link.close()

    def _watch(self, link: Link | None) -> None:
        with self._lock:
            self._watched = link
            if link is not None and self._closed:
                link.cut()

    def _enter(self) -> None:
        with self._lock:
            if self._advancing:
                raise RuntimeError("the stream is being read by another thread or task")
            if self._closed and not self._finished:
                raise self._closed_error()
            self._advancing = True

    def _leave(self) -> None:
        with self._lock:
            self._advancing = False
            if self._closed and not self._finished and self._link is not None:
                self._link.close()

    def _fail(self, error: BaseException) -> None:
        """After any failure, a cancelled task and Ctrl-C included: no connection is left, no piece comes any more."""
        with self._lock:
            was_closed = self._closed
            self._finished = True
            if self._link is not None:
                self._link.close()
        self._ready.clear()
        if isinstance(error, ClientError):
            if was_closed and isinstance(error, ConnectionLost):
                raise self._closed_error() from None
            error.text = error.text or self.assembler.text
            error.request_id = error.request_id or self.assembler.request_id

    def _closed_error(self) -> ConnectionLost:
        return ConnectionLost(
            "The stream was closed before its end.",
            code="stream_closed",
            request_id=self.assembler.request_id,
            text=self.assembler.text,
        )
