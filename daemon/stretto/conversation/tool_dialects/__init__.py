"""Tool dialects: how models write that they call functions. Each is data, and a small reader that takes text as it arrives."""

from __future__ import annotations

from stretto.conversation.tool_dialects.choose import TOOL_DIALECTS, choose_tool_dialect
from stretto.conversation.tool_dialects.dialect import Syntax, ToolDialect, json_types
from stretto.conversation.tool_dialects.scanner import (
    CallArguments,
    CallOpened,
    CallPiece,
    CutOff,
    NotACall,
    Scanner,
    partial_chars,
)

__all__ = [
    "TOOL_DIALECTS",
    "CallArguments",
    "CallOpened",
    "CallPiece",
    "CutOff",
    "NotACall",
    "Scanner",
    "Syntax",
    "ToolDialect",
    "choose_tool_dialect",
    "json_types",
    "partial_chars",
]
