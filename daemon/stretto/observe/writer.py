"""Log lines on their own thread: a reader that stops reading stderr must never stop the event loop or the engine."""

from __future__ import annotations

import errno
import logging
import os
import queue
import select
import threading
import time

from stretto.observe.line import Form, Line, Scalar, clean, describe_exception, short_path

OWN_LOGGER = "stretto"
# A pipe that polls writable takes this much without blocking, and keeps it in one piece (POSIX PIPE_BUF on Linux).
_CHUNK_BYTES = 4096
_POLL_MS = 200
_LEVELS = ((logging.ERROR, "error"), (logging.WARNING, "warning"), (logging.INFO, "info"))


def level_name(number: int) -> str:
    """The word for a level number of ``logging``."""
    return next((word for floor, word in _LEVELS if number >= floor), "debug")


def line_of(record: logging.LogRecord) -> Line:
    """A record as a line that holds no content.

    Our own loggers say what may be said. Of other libraries' records, whose messages may quote requests, only the logger, the
    place and the kind of exception are kept.
    """
    error = record.exc_info[1] if record.exc_info else None
    fields: dict[str, Scalar] = {}
    if record.name == OWN_LOGGER or record.name.startswith(OWN_LOGGER + "."):
        event = getattr(record, "event", None)
        fields.update(getattr(record, "fields", {}))
        if error is not None:
            fields.update(describe_exception(error))
        if isinstance(event, str):
            return Line(
                record.created, level_name(record.levelno), event, fields, getattr(record, "text", "")
            )
        return Line(
            record.created, level_name(record.levelno), record.name, fields, clean(record.getMessage())
        )
    fields["logger"] = record.name
    fields["place"] = f"{short_path(record.pathname)}:{record.lineno}"
    if error is not None:
        fields.update(describe_exception(error))
    return Line(record.created, level_name(record.levelno), "library", fields)


class LogWriter(logging.Handler):
    """A handler that hands lines to a thread of its own, over a bounded queue; what does not fit is counted and reported.

    Args:
        form: how a line is written.
        fd: where to; never closed here.
        capacity: lines that may wait.
        close_timeout_s: how long ``stop`` waits for a reader before it gives up what is left.
    """

    def __init__(
        self, form: Form, *, fd: int = 2, capacity: int = 4096, close_timeout_s: float = 2.0
    ) -> None:
        super().__init__()
        self._form = form
        self._fd = fd
        self._queue: queue.Queue[Line | None] = queue.Queue(capacity)
        self._close_timeout_s = close_timeout_s
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stretto-log", daemon=True)
        self._written = 0
        self._dropped = 0  # changed under the handler's lock only
        self._unwritten = 0  # changed by the thread only
        self._reported = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; called under the handler's lock, never blocks."""
        try:
            self._queue.put_nowait(line_of(record))
        except queue.Full:
            self._dropped += 1
        except Exception:  # a broken log call must not break its caller, nor print what it holds
            self._dropped += 1

    def handleError(self, record: logging.LogRecord) -> None:
        """The standard one prints the record to stderr, arguments and all."""
        self._dropped += 1

    def stats(self) -> dict[str, int]:
        """Lines written, dropped and waiting."""
        return {
            "written": self._written,
            "dropped": self._dropped + self._unwritten,
            "waiting": self._queue.qsize(),
        }

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is queued and end the thread; gives up after ``close_timeout_s`` if nobody reads."""
        deadline = time.monotonic() + self._close_timeout_s
        try:
            self._queue.put(None, timeout=self._close_timeout_s)
        except queue.Full:
            self._give_up.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._give_up.set()
        self._thread.join(self._close_timeout_s)

    def _run(self) -> None:
        while not self._give_up.is_set():
            line = self._queue.get()
            if line is not None:
                self._write_line(line)
            dropped = self._dropped + self._unwritten
            if dropped > self._reported:
                lost, self._reported = dropped - self._reported, dropped
                self._write_line(Line(time.time(), "warning", "log_dropped", {"lines": lost}))
            if line is None:
                return

    def _write_line(self, line: Line) -> None:
        try:
            data = self._form(line).encode("utf-8", "backslashreplace")
        except (TypeError, ValueError):
            self._unwritten += 1
            return
        if self._write(data):
            self._written += 1
        else:
            self._unwritten += 1

    def _write(self, data: bytes) -> bool:
        poller = select.poll()
        poller.register(self._fd, select.POLLOUT)
        while data:
            if not poller.poll(_POLL_MS):
                if self._give_up.is_set():
                    return False
                continue
            try:
                data = data[os.write(self._fd, data[:_CHUNK_BYTES]) :]
            except BlockingIOError:
                continue
            except OSError as error:
                if error.errno != errno.EINTR:
                    return False
        return True
