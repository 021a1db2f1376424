"""The control plane on the Unix socket."""

from stretto.control.app import control_app

__all__ = ["control_app"]
