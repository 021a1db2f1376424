"""An answer as it is written, kept for readers that come late."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

import trio

from stretto.serving import Header


class Recording:
    """The head and the pieces of one reply: one writer, any number of readers, each from the beginning.

    Holds at most ``most_bytes`` and one piece. A longer reply is not kept from its beginning on (``whole``), so that nobody can join any
    more; then the writer waits for the slowest reader.

    Args:
        most_bytes: see above.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._headers: Sequence[Header] | None = None
        self._failure: Exception | None = None
        self._pieces: list[bytes] = []
        self._first = 0
        self._places: dict[object, int] = {}
        self._changed = trio.Event()
        self.last_words: Callable[[Exception], bytes] | None = None
        """Makes the last frames for a reader whose stream is cut short."""
        self.size_bytes = 0
        self.whole = True
        self.ended = False

    def begin(
        self, headers: Sequence[Header], last_words: Callable[[Exception], bytes] | None = None
    ) -> None:
        """The head is known. From here on there is a reply, whatever happens to it."""
        self._headers = headers
        self.last_words = last_words
        self._tell()

    async def write(self, piece: bytes) -> None:
        """The next piece; waits while there is no room for more."""
        self._pieces.append(piece)
        self.size_bytes += len(piece)
        self._tell()
        if self.size_bytes > self._most_bytes:
            self.whole = False
            self._forget()
        while self.size_bytes > self._most_bytes:
            await self._changed.wait()
            self._forget()

    def end(self, failure: Exception | None = None) -> None:
        """There is no more. A failure is what readers of the head are told; it counts only before ``begin``."""
        self._failure = failure
        self.ended = True
        self._tell()

    async def head(self) -> Sequence[Header]:
        """The header fields, once there are any.

        Raises:
            Exception: what the writer failed with before there was a reply.
        """
        while self._headers is None:
            if self.ended:
                raise self._failure or RuntimeError("a reply has ended before it began")
            await self._changed.wait()
        return self._headers

    async def read(self) -> AsyncGenerator[bytes, None]:
        """All pieces from the beginning; those that are at hand together come as one. Begin it only while ``whole``."""
        reader = object()
        place = self._places[reader] = self._first
        try:
            while True:
                ready = self._pieces[place - self._first :]
                if ready:
                    place = self._places[reader] = place + len(ready)
                    self._tell()
                    yield b"".join(ready)
                elif self.ended:
                    return
                else:
                    await self._changed.wait()
        finally:
            del self._places[reader]
            self._tell()

    def _forget(self) -> None:
        """Drop what every reader has; without readers nothing, since one of them may just be about to begin."""
        read = min(self._places.values(), default=self._first) - self._first
        self.size_bytes -= sum(map(len, self._pieces[:read]))
        del self._pieces[:read]
        self._first += read

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
