"""HTTP/1.1 as bytes in and out, over one connection's life. No I/O: h11 does the work, this gives it our words."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import h11

from clientlib.errors import ConnectionLost, ProtocolError


class HttpRequest(NamedTuple):
    """A whole request. ``headers`` without Host, Content-Length and Content-Type, which follow from the rest."""

    method: str
    target: str
    host: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None


class Head(NamedTuple):
    """Status and headers of a reply; header names in lower case."""

    status: int
    headers: tuple[tuple[str, str], ...]

    def header(self, name: str) -> str | None:
        """The first header of that (lower-case) name."""
        return next((value for key, value in self.headers if key == name), None)


class Mark(Enum):
    """What next_event() says when it has neither head nor body bytes."""

    NEED_DATA = "need data"
    END = "end of reply"


class Wire:
    """One connection's HTTP state: requests to bytes, bytes to reply events, one exchange after the other."""

    def __init__(self) -> None:
        self._h11 = h11.Connection(h11.CLIENT)
        self._eof = False
        self.reply_begun = False

    def start(self, request: HttpRequest) -> bytes:
        """The bytes of ``request``. Begins an exchange."""
        headers = [("Host", request.host), *request.headers]
        body = request.body
        if body is not None:
            headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        elif request.method not in ("GET", "HEAD", "DELETE"):
            headers.append(("Content-Length", "0"))
        self.reply_begun = False
        out = (
            self._h11.send(h11.Request(method=request.method, target=request.target, headers=headers)) or b""
        )
        if body:
            out += self._h11.send(h11.Data(data=body)) or b""
        return out + (self._h11.send(h11.EndOfMessage()) or b"")

    def receive(self, data: bytes) -> None:
        """Feed what was read; b"" says that the peer will send no more."""
        if data:
            self.reply_begun = True
        else:
            self._eof = True
        try:
            self._h11.receive_data(data)
        except RuntimeError:  # h11's word for bytes after the end
            raise ProtocolError("The server sent more bytes after it had closed the connection.") from None

    def next_event(self) -> Head | bytes | Mark:
        """The next piece of the reply: its head, body bytes, its end, or the wish for more data.

        Raises:
            ConnectionLost: the peer closed before the reply was whole.
            ProtocolError: this is not HTTP/1.1.
        """
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                if self._eof:
                    raise ConnectionLost("The connection closed before the reply was complete.") from error
                raise ProtocolError(f"The server does not speak HTTP/1.1 properly: {error}.") from error
            if event is h11.NEED_DATA:
                return Mark.NEED_DATA
            if isinstance(event, h11.Response):
                headers = tuple(
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in event.headers
                )
                return Head(event.status_code, headers)
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return Mark.END
            if isinstance(event, h11.ConnectionClosed):
                raise ConnectionLost("The connection closed before a reply came.")
            if event is h11.PAUSED:
                raise ProtocolError("The server switched to another protocol.")
            # What is left are informational replies (1xx): the real one follows.

    def recycle(self) -> bool:
        """Make ready for the next exchange; False when this connection cannot carry one."""
        if self._eof:
            return False
        data, _ = self._h11.trailing_data
        if data:
            return False  # bytes that nobody asked for: the two sides no longer agree on where they are
        try:
            self._h11.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        return True
