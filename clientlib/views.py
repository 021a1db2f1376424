"""What every kind of stream lets its user see and do, sync or async."""

from __future__ import annotations

from clientlib.replies import Reply, Usage
from clientlib.streaming import ChatStreamCore


class StreamView:
    """A stream without its iteration."""

    def __init__(self, core: ChatStreamCore) -> None:
        self._core = core

    def close(self) -> None:
        """End the stream; before its end this cancels the generation. Idempotent, and allowed from any thread or task."""
        self._core.close()

    @property
    def request_id(self) -> str | None:
        """The daemon's id of the request (what cancel() takes); None before the stream is opened."""
        return self._core.assembler.request_id

    @property
    def text(self) -> str:
        """The first choice's text so far."""
        return self._core.assembler.text

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended; None while it has not."""
        return self._core.assembler.finish_reason

    @property
    def usage(self) -> Usage | None:
        """Token counts; they come last, so None before the end."""
        return self._core.assembler.usage

    def reply(self) -> Reply:
        """All that has come so far, as a Reply."""
        return self._core.assembler.reply()
