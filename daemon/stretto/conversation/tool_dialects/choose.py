"""Which dialect a model's calls are in."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stretto.conversation.tool_dialects.deepseek import DEEPSEEK, DEEPSEEK_V31
from stretto.conversation.tool_dialects.dialect import ToolDialect
from stretto.conversation.tool_dialects.gemma4 import GEMMA4
from stretto.conversation.tool_dialects.hermes import GENERIC, HERMES
from stretto.conversation.tool_dialects.llama3 import LLAMA3
from stretto.conversation.tool_dialects.mistral import MISTRAL, MISTRAL_ARGS
from stretto.conversation.tool_dialects.qwen3_coder import QWEN3_CODER

# Where a template has the signs of several, the first counts.
_ORDER = (QWEN3_CODER, GEMMA4, DEEPSEEK, DEEPSEEK_V31, MISTRAL_ARGS, MISTRAL, HERMES, LLAMA3)

TOOL_DIALECTS: Mapping[str, ToolDialect] = {dialect.name: dialect for dialect in (*_ORDER, GENERIC)}
"""By the name that the setting knows them by."""


def choose_tool_dialect(source: str, reads: Collection[str]) -> ToolDialect:
    """The dialect of a chat template; the generic one where it offers no tools, or in a form that is not known.

    Args:
        source: the template's text.
        reads: the variables that it reads.
    """
    if "tools" in reads:
        for dialect in _ORDER:
            if all(sign in source for sign in dialect.signs):
                return dialect
    return GENERIC
