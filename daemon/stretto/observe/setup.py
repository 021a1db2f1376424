"""Start and stop the log."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from stretto.observe.line import FORMS
from stretto.observe.writer import OWN_LOGGER, LogWriter


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How the daemon logs.

    Attributes:
        format: ``auto``, ``human``, ``json`` or ``journal``; auto is ``journal`` when ``fd`` goes to journald, else ``human``.
        level: least severity of our own lines; other libraries' are shown from ``warning`` up.
        fd: file descriptor that is written to.
        capacity: lines that may wait for a slow reader before more are dropped (and counted).
        close_timeout_s: how long the end waits for a slow reader.
    """

    format: str = "auto"
    level: str = "info"
    fd: int = 2
    capacity: int = 4096
    close_timeout_s: float = 2.0

    def __post_init__(self) -> None:
        if self.format not in ("auto", *FORMS):
            raise ValueError(f"log format must be auto, {', '.join(FORMS)}; it is {self.format!r}")
        if self.level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"log level must be debug, info, warning or error; it is {self.level!r}")


def goes_to_journal(fd: int, environ: Mapping[str, str]) -> bool:
    """Whether ``fd`` is the stream that systemd connected to journald (``JOURNAL_STREAM`` names its device and inode)."""
    device, _, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return device == str(status.st_dev) and inode == str(status.st_ino)


@contextmanager
def setup_logging(config: LogConfig) -> Iterator[LogWriter]:
    """Send everything that is logged to ``config.fd`` through a thread, until the block ends; yields the writer for its stats."""
    form = config.format
    if form == "auto":
        form = "journal" if goes_to_journal(config.fd, os.environ) else "human"
    writer = LogWriter(
        FORMS[form], fd=config.fd, capacity=config.capacity, close_timeout_s=config.close_timeout_s
    )
    root, own = logging.getLogger(), logging.getLogger(OWN_LOGGER)
    former = own.level
    writer.start()
    root.addHandler(writer)
    own.setLevel(config.level.upper())
    logging.captureWarnings(True)
    try:
        yield writer
    finally:
        logging.captureWarnings(False)
        own.setLevel(former)
        root.removeHandler(writer)
        writer.stop()
        writer.close()
