"""Listening TCP sockets, and plain words when one cannot be had."""

from __future__ import annotations

import errno
import socket

from stretto.errors import StartupError

_BACKLOG = 128


def bind_tcp(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host`` and ``port``; port 0 takes any free one.

    A name that resolves to several addresses is bound on the first, IPv4 before IPv6, so that ``localhost`` is 127.0.0.1.

    Raises:
        StartupError: code ``bind_failed``; says which address and what can be done.
    """
    if not 0 <= port <= 65535:  # getaddrinfo would quietly take it modulo 65536
        raise _failed(host, port, "a port is a number from 0 to 65535", "Choose another --port.")
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (socket.gaierror, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise _failed(
            host, port, f"the host is not known ({reason})", "Give an address, e.g. --host 127.0.0.1."
        ) from error
    family, kind, protocol, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, protocol)
    try:
        # Without it, connections of a stopped daemon in TIME_WAIT would block its restart.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise _failed(host, port, *_words(error, port)) from error
    return sock


def _words(error: OSError, port: int) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} is in use",
            "Stop the program that uses it, choose another --port, or --port 0 for any free one.",
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} needs privileges", "Choose a --port of 1024 or above."
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address", "Give one of its own addresses as --host, e.g. 127.0.0.1."
    return error.strerror or str(error), "Check --host and --port."


def _failed(host: str, port: int, reason: str, remedy: str) -> StartupError:
    return StartupError(f"Cannot listen on {host}, port {port}: {reason}.", code="bind_failed", remedy=remedy)
