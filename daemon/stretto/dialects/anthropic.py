"""Anthropic's Messages dialect: its public face."""

from __future__ import annotations

from stretto.dialects.anthropic_errors import error_object, error_reply
from stretto.dialects.anthropic_render import PING, MessagesRenderer
from stretto.dialects.anthropic_request import parse_count, parse_messages
from stretto.dialects.dialect import Dialect

MESSAGES = Dialect(id_prefix="msg_", parse=parse_messages, renderer=MessagesRenderer, ping=PING)

__all__ = ["MESSAGES", "MessagesRenderer", "error_object", "error_reply", "parse_count", "parse_messages"]
