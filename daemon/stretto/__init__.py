"""Stretto: one daemon that owns one model and serves it to everything on the machine."""

from stretto._version import __version__

__all__ = ["__version__"]
