"""The client behind the module-level functions."""

from __future__ import annotations

import atexit
from pathlib import Path

from clientlib.client import Client
from clientlib.paths import default_socket_path


class DefaultClients:
    """One Client for each default socket path that was ever in force, which is one, unless the environment changes.

    This holder is the package's only state. It needs no lock and nothing at a fork: ``dict.setdefault`` is atomic, a Client that
    loses that race has opened nothing yet, and a Client's pool itself tells threads and processes apart.
    """

    def __init__(self) -> None:
        self._clients: dict[Path, Client] = {}

    def get(self) -> Client:
        """The client of the socket that the environment names now."""
        path = default_socket_path()
        client = self._clients.get(path)
        if client is None:
            if not self._clients:
                atexit.register(self.close)
            client = self._clients.setdefault(path, Client(path))
        return client

    def close(self) -> None:
        """Close the idle connections of all of them."""
        for client in list(self._clients.values()):
            client.close()


DEFAULT = DefaultClients()
