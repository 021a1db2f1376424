"""The echo backend: deterministic, no tensor library, with faults and delays on demand."""

from __future__ import annotations

from stretto.backends.echo.backend import EchoBackend, probe
from stretto.backends.echo.script import EchoScript
from stretto.backends.echo.tokenizer import ECHO_CHAT_TEMPLATE, EchoTokenizer

__all__ = ["ECHO_CHAT_TEMPLATE", "EchoBackend", "EchoScript", "EchoTokenizer", "probe"]
