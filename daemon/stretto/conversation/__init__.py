"""Conversations: canonical messages and events, templates, text assembly. Pure, no I/O."""

from __future__ import annotations

from stretto.conversation.answer_format import AnswerFormat, Thinking, callable_tools, offered_tools
from stretto.conversation.assembly import TextAssembler
from stretto.conversation.caller import DEFAULT_SESSION, CacheMode, Caller, MemoryMode
from stretto.conversation.constraint import Constraint, ConstraintKind
from stretto.conversation.events import (
    Done,
    Echo,
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
    TopLogprob,
    Usage,
)
from stretto.conversation.limits import context_length_message
from stretto.conversation.messages import (
    ContentPart,
    Message,
    RawPrompt,
    Reasoning,
    Request,
    Role,
    SamplingParams,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from stretto.conversation.priority import PRIORITIES, Priority
from stretto.conversation.prompt import conversation_strings, encode_chat, encode_rest, unused_character
from stretto.conversation.raw_prompt import EncodedPrompt, PromptEcho, encode_raw, needs_bos
from stretto.conversation.stops import StopMatcher
from stretto.conversation.template import ChatTemplate
from stretto.conversation.token_entries import LOWEST_LOGPROB, GeneratedToken
from stretto.conversation.tokenizer import Tokenizer
from stretto.conversation.turns import History, RecentTurns
from stretto.conversation.volatile import without_volatile_lines

__all__ = [
    "DEFAULT_SESSION",
    "LOWEST_LOGPROB",
    "PRIORITIES",
    "AnswerFormat",
    "CacheMode",
    "Caller",
    "ChatTemplate",
    "Constraint",
    "ConstraintKind",
    "ContentPart",
    "Done",
    "Echo",
    "EncodedPrompt",
    "Event",
    "Finish",
    "FinishReason",
    "GeneratedToken",
    "History",
    "MemoryMode",
    "Message",
    "Priority",
    "PromptEcho",
    "RawPrompt",
    "Reasoning",
    "ReasoningDelta",
    "RecentTurns",
    "Request",
    "Role",
    "SamplingParams",
    "StopMatcher",
    "TextAssembler",
    "TextDelta",
    "TextPart",
    "Thinking",
    "TokenLogprob",
    "Tokenizer",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallStart",
    "ToolChoice",
    "ToolSpec",
    "TopLogprob",
    "Usage",
    "callable_tools",
    "context_length_message",
    "conversation_strings",
    "encode_chat",
    "encode_raw",
    "encode_rest",
    "needs_bos",
    "offered_tools",
    "unused_character",
    "without_volatile_lines",
]
