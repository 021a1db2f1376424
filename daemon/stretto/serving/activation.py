"""Sockets handed over by a service manager (the sd_listen_fds protocol)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from stretto.errors import StartupError

_FIRST_FD = 3
_NAMELESS = "unknown"


def adopt_listen_fds(
    environ: Mapping[str, str], *, first_fd: int = _FIRST_FD
) -> dict[str, list[socket.socket]]:
    """Listening sockets passed to this process, by the names their units gave them.

    Empty when there are none, or when they are meant for another process. Each is made non-inheritable. The environment is
    left as it is: a child's own LISTEN_PID check keeps it from using what it does not have.

    Raises:
        StartupError: code ``bind_failed``; the variables make no sense, or a descriptor is no listening stream socket.
    """
    if environ.get("LISTEN_PID") != str(os.getpid()) or "LISTEN_FDS" not in environ:
        return {}
    text = environ["LISTEN_FDS"]
    if not (text.isascii() and text.isdigit()):
        raise _failed(f"LISTEN_FDS is {text!r}; it must be a count")
    count = int(text)
    names = environ.get("LISTEN_FDNAMES", "").split(":") if environ.get("LISTEN_FDNAMES") else []
    if names and len(names) != count:
        raise _failed(f"LISTEN_FDS counts {count} sockets, but LISTEN_FDNAMES names {len(names)}")
    adopted: dict[str, list[socket.socket]] = {}
    for offset in range(count):
        name = names[offset] if names else _NAMELESS
        adopted.setdefault(name, []).append(_adopt(first_fd + offset))
    return adopted


def _adopt(fd: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise _failed(f"descriptor {fd} is no socket ({error.strerror})") from error
    os.set_inheritable(fd, False)
    try:
        listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError:
        listens = 0
    if sock.type != socket.SOCK_STREAM or not listens:
        sock.detach()
        raise _failed(f"descriptor {fd} is not a listening stream socket")
    return sock


def _failed(reason: str) -> StartupError:
    return StartupError(
        f"The sockets passed by the service manager cannot be used: {reason}.",
        code="bind_failed",
        remedy="Check the socket unit (Accept=no, ListenStream=).",
    )
