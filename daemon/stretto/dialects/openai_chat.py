"""OpenAI's Chat Completions dialect: its public face."""

from __future__ import annotations

from stretto.dialects.openai_errors import error_body, error_object
from stretto.dialects.openai_render import ChatRenderer
from stretto.dialects.openai_request import parse_chat

__all__ = ["ChatRenderer", "error_body", "error_object", "parse_chat"]
