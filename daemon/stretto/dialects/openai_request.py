"""Parsing a chat request: bytes to the canonical Request, or the one error that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stretto.conversation.messages import Request, SamplingParams, ToolChoice
from stretto.dialects.fields import read_fields
from stretto.dialects.openai_format import parse_constraint
from stretto.dialects.openai_messages import parse_messages
from stretto.errors import InvalidRequest
from stretto.schemas import shown

CHAT_SCHEMA = "openai-chat-request"
_TOOLS_REMEDY = 'Leave tools out, or send tool_choice "none"; functions are not offered to the model.'


def parse_chat(body: bytes, *, request_id: str) -> Request:
    """Read the body of ``POST /v1/chat/completions``.

    Each field by itself first (see ``read_fields``), then what fields mean together.

    Raises:
        InvalidRequest: the codes of ``read_fields`` and ``parse_messages``; ``param`` is the field's path.
    """
    fields = read_fields(CHAT_SCHEMA, body)
    _check_tools(fields)
    return Request(
        id=request_id,
        model=fields["model"],
        messages=parse_messages(fields["messages"]),
        tool_choice=ToolChoice("none" if fields.get("tool_choice") == "none" else "auto"),
        sampling=_sampling(fields),
        max_tokens=_max_tokens(fields),
        stop=_stop(fields),
        ignore_eos=_ignore_eos(fields),
        n=int(fields.get("n", 1)),
        logprobs=_logprobs(fields),
        stream=fields.get("stream", False),
        include_usage=fields.get("stream_options", {}).get("include_usage") or False,
        template_kwargs=fields.get("chat_template_kwargs", {}),
        user=fields.get("user"),
        constraint=parse_constraint(fields),
    )


def _sampling(fields: Mapping[str, Any]) -> SamplingParams:
    plain = SamplingParams()
    seed = fields.get("seed")
    return SamplingParams(
        temperature=float(fields.get("temperature", plain.temperature)),
        top_k=int(fields.get("top_k", plain.top_k)),
        top_p=float(fields.get("top_p", plain.top_p)),
        min_p=float(fields.get("min_p", plain.min_p)),
        repetition_penalty=float(fields.get("repetition_penalty", plain.repetition_penalty)),
        presence_penalty=float(fields.get("presence_penalty", plain.presence_penalty)),
        frequency_penalty=float(fields.get("frequency_penalty", plain.frequency_penalty)),
        logit_bias={int(token): float(bias) for token, bias in fields.get("logit_bias", {}).items()},
        seed=None if seed is None else int(seed),
    )


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    newer, older = fields.get("max_completion_tokens"), fields.get("max_tokens")
    if newer is not None and older is not None and newer != older:
        raise InvalidRequest(
            f"'max_completion_tokens' is {shown(newer)} and 'max_tokens' is {shown(older)}; they mean the same.",
            param="max_completion_tokens",
            remedy="Send one of them, or the same number twice.",
        )
    limit = older if newer is None else newer
    return None if limit is None else int(limit)


def _stop(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The stop strings. Empty ones, which some clients send for an empty input field, can stop nothing and are dropped."""
    stop = fields.get("stop", ())
    return tuple(filter(None, (stop,) if isinstance(stop, str) else stop))


def _ignore_eos(fields: Mapping[str, Any]) -> bool:
    ignore: bool = fields.get("ignore_eos", False)
    if ignore and _max_tokens(fields) is None:
        raise InvalidRequest(
            "'ignore_eos' is true, and nothing else would end the answer.",
            param="ignore_eos",
            remedy="Send max_tokens with it.",
        )
    if ignore and parse_constraint(fields) is not None:
        raise InvalidRequest(
            "'ignore_eos' is true, but what an answer must keep to says where it ends.",
            param="ignore_eos",
            remedy="Leave it out.",
        )
    return ignore


def _logprobs(fields: Mapping[str, Any]) -> int | None:
    alternatives = int(fields.get("top_logprobs", 0))
    if fields.get("logprobs", False):
        return alternatives
    if alternatives:
        raise InvalidRequest(
            f"'top_logprobs' is {alternatives}, but 'logprobs' is not true.",
            param="top_logprobs",
            remedy="Send logprobs: true with it.",
        )
    return None


def _check_tools(fields: Mapping[str, Any]) -> None:
    """Tools are not offered yet; a request that counts on them is refused, one that does not is served."""
    choice = fields.get("tool_choice", "auto")
    if choice == "none":
        return
    if fields.get("tools"):
        raise InvalidRequest(
            "'tools' are not supported.", code="unsupported_value", param="tools", remedy=_TOOLS_REMEDY
        )
    if choice == "auto":
        return
    if choice == "required" or isinstance(choice, dict):
        raise InvalidRequest(
            f"'tool_choice' is {shown(choice)}; calls of tools are not supported.",
            code="unsupported_value",
            param="tool_choice",
            remedy='Leave it out, or send "none".',
        )
    raise InvalidRequest(
        f'\'tool_choice\' is {shown(choice)}; it must be "none" or "auto".', param="tool_choice"
    )
