"""Server-sent events, incrementally (WHATWG HTML, section 9.2.6 "Interpreting an event stream"). No I/O."""

from __future__ import annotations

import re
from typing import NamedTuple

from clientlib.errors import ProtocolError

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An event (or a line) beyond this is not one of ours; refusing it bounds memory."""


class ServerSentEvent(NamedTuple):
    """One event. ``data`` is its data lines joined by newlines; ``event`` is its type, ``message`` unless named."""

    data: str
    event: str = "message"


class SseParser:
    """Bytes in, events out, wherever the bytes are cut. What a stream's end leaves unfinished is no event."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._at_start = True
        self._skip_newline = False
        self._data: list[str] = []
        self._data_bytes = 0
        self._event = ""

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """The events that ``data`` completes.

        Raises:
            ProtocolError: an event of more than MAX_EVENT_BYTES.
        """
        if self._skip_newline and data:
            # The carriage return that ended the last line was the first half of CRLF.
            self._skip_newline = False
            data = data.removeprefix(b"\n")
        self._buffer += data
        if self._at_start and not self._strip_bom():
            return []
        events: list[ServerSentEvent] = []
        begin = 0
        for match in _LINE_END.finditer(self._buffer, self._scanned):
            line = bytes(self._buffer[begin : match.start()])
            begin = match.end()
            self._skip_newline = begin == len(self._buffer) and match.group() == b"\r"
            event = self._line(line)
            if event is not None:
                events.append(event)
        del self._buffer[:begin]
        self._scanned = len(self._buffer)
        if self._scanned + self._data_bytes > MAX_EVENT_BYTES:
            raise ProtocolError(f"The stream holds an event of more than {MAX_EVENT_BYTES} bytes.")
        return events

    def _strip_bom(self) -> bool:
        """Drop a byte order mark at the very start; False while too little is there to tell."""
        if len(self._buffer) < len(_BOM) and _BOM.startswith(self._buffer):
            return False
        if self._buffer.startswith(_BOM):
            del self._buffer[: len(_BOM)]
        self._at_start = False
        return True

    def _line(self, line: bytes) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            text = value.removeprefix(b" ").decode("utf-8", "replace")
            self._data.append(text)
            self._data_bytes += len(line) + 1  # empty lines take memory too
        elif name == b"event":
            self._event = value.removeprefix(b" ").decode("utf-8", "replace")
        # Comments (an empty name), id, retry and unknown fields mean nothing to an answer's stream.
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, event = self._data, self._event
        self._data, self._data_bytes, self._event = [], 0, ""
        return ServerSentEvent("\n".join(data), event or "message") if data else None
