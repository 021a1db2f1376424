"""One connection: a non-blocking socket and its HTTP state. Nothing here ever waits."""

from __future__ import annotations

import contextlib
import os
import select
import socket

from clientlib.http1 import Wire

_READ_BYTES = 65536
# A program may have given SIGPIPE back its deadly default; macOS has no such flag and sets it on the socket.
_SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)


class Link:
    """An open connection. Whoever holds it closes it, or gives it to the pool; dropped, it closes itself quietly."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if not _SEND_FLAGS and hasattr(socket, "SO_NOSIGPIPE"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_NOSIGPIPE, 1)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.wire = Wire()
        self.idle_since_s = 0.0
        self.reusable = True
        self._pid = os.getpid()

    def send(self, data: memoryview) -> int:
        """Bytes that the kernel took; 0 when it can take none now. Raises OSError."""
        try:
            return self.sock.send(data, _SEND_FLAGS)
        except BlockingIOError:
            return 0

    def receive(self) -> bool:
        """Read what is there into the wire (the end of the stream too); False when there is nothing now. Raises OSError."""
        try:
            data = self.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        self.wire.receive(data)
        return True

    def is_stale(self) -> bool:
        """Whether an idle connection can no longer be used: readable means that the server closed it, or sent nonsense."""
        poller = select.poll()
        poller.register(self.sock, select.POLLIN)
        return bool(poller.poll(0))

    def cut(self) -> None:
        """End the connection for both sides at once, which cancels what the daemon does for it; keeps the descriptor.

        A forked child may hold the same connection, and then closing our descriptor alone would tell the daemon nothing.
        For the same reason a child must not do this to its parent's connection.
        """
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut and close. Idempotent."""
        if self.sock.fileno() != -1:
            self.cut()
            self.sock.close()

    def __del__(self) -> None:
        # An idle pooled connection is a cache entry, and a dropped stream means "no more": neither deserves a ResourceWarning.
        with contextlib.suppress(Exception):
            self.close()
