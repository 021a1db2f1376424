"""The command line."""

from stretto.cli.root import main

__all__ = ["main"]
