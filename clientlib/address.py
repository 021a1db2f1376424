"""Where a client connects: a Unix socket, or a URL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit


class UnixAddress(NamedTuple):
    """A Unix socket. ``Host`` is ``localhost``: the daemon's guard against DNS rebinding knows that name."""

    path: Path

    @property
    def host_header(self) -> str:
        """The ``Host`` header's value."""
        return "localhost"

    @property
    def prefix(self) -> str:
        """What stands before every target."""
        return ""

    def __str__(self) -> str:
        return str(self.path)


class TcpAddress(NamedTuple):
    """A TCP server that speaks plain HTTP. ``prefix`` stands before every target ('' or '/some/path')."""

    host: str
    port: int
    prefix: str = ""

    @property
    def host_header(self) -> str:
        """The ``Host`` header's value: name and port, an IPv6 address in brackets."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"{name}:{self.port}"

    def __str__(self) -> str:
        return f"http://{self.host_header}{self.prefix}"


Address = UnixAddress | TcpAddress


def unix_address(path: str | os.PathLike[str]) -> UnixAddress:
    """The address of a socket's path; ``~`` is expanded."""
    return UnixAddress(Path(path).expanduser())


def parse_base_url(url: str) -> TcpAddress:
    """``http://host:port[/prefix]`` as an address. A final ``/v1`` is dropped, since every target brings its own.

    Raises:
        ValueError: not such a URL; ``https`` needs a proxy that ends TLS, which clientlib does not speak.
    """
    parts = urlsplit(url)
    if parts.scheme != "http":
        raise ValueError(
            f"base_url {url!r}: only http:// is spoken here; reach a TLS endpoint through a local proxy"
        )
    if parts.username is not None or parts.password is not None:
        raise ValueError("base_url: it may hold no user or password; give the key as api_key")
    if parts.query or parts.fragment:
        raise ValueError(f"base_url {url!r}: it may hold no query and no fragment")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"base_url {url!r}: the port must be a number up to 65535") from None
    if not parts.hostname:
        raise ValueError(f"base_url {url!r}: the host is missing; write http://127.0.0.1:8080")
    prefix = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return TcpAddress(parts.hostname, 80 if port is None else port, prefix)
