"""Conversations: canonical messages and events, templates, text assembly. Pure, no I/O."""

from __future__ import annotations

from stretto.conversation.assembly import LOWEST_LOGPROB, GeneratedToken, TextAssembler
from stretto.conversation.constraint import Constraint, ConstraintKind
from stretto.conversation.events import (
    Done,
    Event,
    Finish,
    FinishReason,
    TextDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from stretto.conversation.limits import context_length_message
from stretto.conversation.messages import (
    ContentPart,
    Message,
    Request,
    Role,
    SamplingParams,
    TextPart,
    ToolCall,
    ToolSpec,
)
from stretto.conversation.prompt import encode_chat
from stretto.conversation.stops import StopMatcher
from stretto.conversation.template import ChatTemplate
from stretto.conversation.tokenizer import Tokenizer

__all__ = [
    "LOWEST_LOGPROB",
    "ChatTemplate",
    "Constraint",
    "ConstraintKind",
    "ContentPart",
    "Done",
    "Event",
    "Finish",
    "FinishReason",
    "GeneratedToken",
    "Message",
    "Request",
    "Role",
    "SamplingParams",
    "StopMatcher",
    "TextAssembler",
    "TextDelta",
    "TextPart",
    "TokenLogprob",
    "Tokenizer",
    "ToolCall",
    "ToolSpec",
    "TopLogprob",
    "Usage",
    "context_length_message",
    "encode_chat",
]
