"""OpenAI's Chat Completions dialect: its public face."""

from __future__ import annotations

from stretto.dialects.dialect import Dialect
from stretto.dialects.openai_errors import error_body, error_object
from stretto.dialects.openai_render import ChatRenderer
from stretto.dialects.openai_request import parse_chat

CHAT = Dialect(id_prefix="chatcmpl-", parse=parse_chat, renderer=ChatRenderer)

__all__ = ["CHAT", "ChatRenderer", "error_body", "error_object", "parse_chat"]
