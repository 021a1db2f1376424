"""A client of the daemon whose socket the settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.settings import Settings

if TYPE_CHECKING:
    from clientlib import Client


def open_client(settings: Settings) -> Client:
    """Make a client; connecting is left to the first call. clientlib is imported here, so that ``--help`` need not wait."""
    from clientlib import Client

    return Client(settings.socket)
