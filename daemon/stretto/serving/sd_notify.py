"""Telling the service manager how we are (the sd_notify protocol), and learning how often it wants to hear it."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

logger = logging.getLogger(__name__)

_PATIENCE_S = 1.0


class Notifier:
    """Sends state to the service manager; does nothing where there is none.

    A lost message is logged and never raised: a daemon must not fail because its supervisor does not listen.

    Args:
        environ: NOTIFY_SOCKET (a path, or ``@name`` for the abstract namespace), WATCHDOG_USEC, WATCHDOG_PID.

    Attributes:
        watchdog_interval_s: how often to call ``watchdog`` (half of what the manager allows), or None when it does not ask.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self.watchdog_interval_s = _watchdog_interval_s(environ) if self._address is not None else None

    @property
    def active(self) -> bool:
        """Whether a service manager listens."""
        return self._address is not None

    def ready(self, status: str | None = None) -> None:
        """Start-up (or a reload) is complete: sockets are bound, requests can be served."""
        self._send("READY=1", f"MAINPID={os.getpid()}", *_status(status), patience_s=_PATIENCE_S)

    def reloading(self) -> None:
        """A reload begins; ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str | None = None) -> None:
        """Shutdown begins."""
        self._send("STOPPING=1", *_status(status), patience_s=_PATIENCE_S)

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send(*_status(text))

    def watchdog(self) -> None:
        """We are alive. Call it from proof of progress only, never from a bare timer."""
        self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Start-up or shutdown takes at least so much longer."""
        self._send(f"EXTEND_TIMEOUT_USEC={max(1, round(seconds * 1e6))}")

    def _send(self, *lines: str, patience_s: float = 0.0) -> None:
        """Send, and wait so long for a manager whose queue is full: without READY it would end us for not starting."""
        if self._address is None:
            return
        kind = socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)
        try:
            with socket.socket(socket.AF_UNIX, kind) as sock:
                sock.settimeout(patience_s)
                sock.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            logger.warning("The service manager did not take %s: %s", lines[0].partition("=")[0], error)


def _address(named: str) -> str | None:
    if named.startswith("@") and len(named) > 1:
        return "\0" + named[1:]
    return named if named.startswith("/") else None


def _watchdog_interval_s(environ: Mapping[str, str]) -> float | None:
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        return None
    return int(text) / 2e6


def _status(text: str | None) -> list[str]:
    return [] if text is None else ["STATUS=" + " ".join(text.split())]
