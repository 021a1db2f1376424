"""Chat templates: a conversation becomes the text that the model was trained to continue."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import meta

from stretto.conversation._budget import Budget, TemplateLimit
from stretto.conversation._sandbox import BUDGET_KEY, ChatEnvironment, TemplateRefusal
from stretto.conversation.messages import Message, ToolSpec
from stretto.errors import InvalidRequest, StartupError

_MAX_SOURCE_CHARS = 1_000_000
_MAX_WORDS_CHARS = 500
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


class ChatTemplate:
    """A model's Jinja chat template, compiled once; ``render`` may be called from any thread.

    Renders as ``transformers.apply_chat_template`` does (same whitespace rules, extensions, ``tojson`` and globals), with bounds on time
    and size, and with only those filters and methods that chat templates use.

    Args:
        source: the template's text.
        bos_token, eos_token: texts of these tokens, which templates write.
        time_limit_s: most processor time a rendering may take; what other processes take of the machine does not count.
        max_chars: longest prompt, and largest value on the way there.
        now: the local time, for templates that tell the model the date.
        clock: seconds that its thread has computed, for the time limit.

    Attributes:
        source: the template's text.
        reads: names of the variables that it reads, e.g. ``tools`` or ``enable_thinking``.

    Raises:
        StartupError: ``model_invalid``; the text is not a template, or one that cannot be compiled.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        time_limit_s: float = 2.0,
        max_chars: int = 4_000_000,
        now: Callable[[], datetime] = datetime.now,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        if len(source) > _MAX_SOURCE_CHARS:
            raise StartupError(
                f"The model's chat template has {len(source)} characters; at most {_MAX_SOURCE_CHARS} are allowed.",
                code="model_invalid",
            )
        self.source = source
        self._bos_token = bos_token
        self._eos_token = eos_token
        self._time_limit_s = time_limit_s
        self._max_chars = max_chars
        self._clock = clock
        try:
            environment = ChatEnvironment(max_chars=max_chars, now=now)
            self.reads: frozenset[str] = frozenset(meta.find_undeclared_variables(environment.parse(source)))
            self._template = environment.compile_chat(source)
        except Exception as error:  # foreign code may raise anything
            raise StartupError(
                f"The model's chat template cannot be compiled: {_clip(str(error))}", code="model_invalid"
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        add_generation_prompt: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt for a conversation.

        Args:
            messages: see ``message_dict`` for what a template sees of one.
            tools: functions to offer; the template sees None when there are none.
            add_generation_prompt: end with the beginning of the assistant's turn.
            extra: further variables, JSON values, e.g. ``enable_thinking``.

        Raises:
            InvalidRequest: ``template_error``; the template refuses the conversation (in its own words), fails on it, or goes over
                a limit. ``invalid_value`` when ``extra`` names a variable that is not the caller's to set.
        """
        extra = extra or {}
        return self.render_values(
            [message_dict(message) for message in messages],
            [tool_dict(tool) for tool in tools],
            add_generation_prompt=add_generation_prompt,
            extra=extra,
        )

    def render_values(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        extra: Mapping[str, Any],
    ) -> str:
        """``render`` for messages and tools that are already what a template sees."""
        for name in sorted(_RESERVED.intersection(extra)):
            raise InvalidRequest(
                f"chat_template_kwargs may not set '{name}': it follows from the request's other fields.",
                param=f"chat_template_kwargs.{name}",
            )
        budget = Budget(self._time_limit_s, self._max_chars, self._clock)
        values = {
            "bos_token": self._bos_token,
            "eos_token": self._eos_token,
            **extra,
            "messages": list(messages),
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            BUDGET_KEY: budget,
        }
        pieces, size = [], 0
        try:
            for piece in self._template.generate(values):
                size += len(piece)
                if size > self._max_chars:
                    raise TemplateLimit(f"the prompt has more than {self._max_chars} characters")
                pieces.append(piece)
        except TemplateRefusal as refusal:
            raise _template_error(f"refuses this conversation: {_clip(str(refusal))}") from refusal
        except TemplateLimit as limit:
            raise _template_error(f"was stopped: {limit}.") from limit
        except Exception as error:  # foreign code may raise anything
            raise _template_error(
                f"failed on this conversation: {type(error).__name__}: {_clip(str(error))}"
            ) from error
        return "".join(pieces)


def message_dict(message: Message) -> dict[str, Any]:
    """What a template sees of a message.

    ``role`` and ``content`` (a string, also when it is empty) always; ``name``, ``tool_call_id``, ``tool_calls`` and the reasoning only
    when there are any. A call's arguments are an object where the JSON text is one, since templates write them with ``tojson`` or
    go through their items. The reasoning goes by both names that templates read.
    """
    seen: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.name is not None:
        seen["name"] = message.name
    if message.tool_call_id is not None:
        seen["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        seen["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.reasoning is not None:
        seen["reasoning_content"] = message.reasoning
        seen["thinking"] = message.reasoning
    return seen


def tool_dict(tool: ToolSpec) -> dict[str, Any]:
    """What a template sees of a function: the wire's own form, as models were trained on it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = dict(tool.parameters)
    return {"type": "function", "function": function}


def _arguments(text: str) -> Any:
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _template_error(what: str) -> InvalidRequest:
    return InvalidRequest(f"The model's chat template {what}", code="template_error", param="messages")


def _clip(text: str) -> str:
    return text if len(text) <= _MAX_WORDS_CHARS else text[: _MAX_WORDS_CHARS - 1] + "…"
