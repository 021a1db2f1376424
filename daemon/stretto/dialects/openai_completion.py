"""OpenAI's Completions dialect (prompts that no template renders): its public face, and its parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stretto.conversation.messages import RawPrompt, Request
from stretto.dialects.dialect import Dialect
from stretto.dialects.fields import read_fields
from stretto.dialects.openai_completion_render import CompletionRenderer
from stretto.dialects.openai_format import parse_constraint
from stretto.dialects.openai_sampling import (
    parse_ignore_eos,
    parse_include_usage,
    parse_priority,
    parse_stop,
)
from stretto.dialects.sampling import parse_sampling
from stretto.errors import InvalidRequest
from stretto.schemas import shown

COMPLETION_SCHEMA = "openai-completion-request"

DEFAULT_MAX_TOKENS = 16
"""As OpenAI documents it. A raw prompt has no turn whose end would end the answer, so there must be some limit."""


def parse_completion(body: bytes, *, request_id: str) -> Request:
    """Read the body of ``POST /v1/completions``.

    Each field by itself first (see ``read_fields``), then what fields mean together.

    Raises:
        InvalidRequest: the codes of ``read_fields``, ``parse_constraint`` and ``parse_ignore_eos``; ``param`` is the field's path.
    """
    fields = read_fields(COMPLETION_SCHEMA, body)
    max_tokens = int(fields.get("max_tokens", DEFAULT_MAX_TOKENS))
    constraint = parse_constraint(fields)
    logprobs = fields.get("logprobs")
    return Request(
        id=request_id,
        model=fields["model"],
        messages=(),
        prompts=_prompts(fields),
        sampling=parse_sampling(fields),
        max_tokens=max_tokens,
        lower_max_tokens="max_tokens" not in fields,
        stop=parse_stop(fields),
        ignore_eos=parse_ignore_eos(fields, max_tokens=max_tokens, constraint=constraint),
        n=int(fields.get("n", 1)),
        best_of=_best_of(fields),
        logprobs=None if logprobs is None else int(logprobs),
        stream=fields.get("stream", False),
        include_usage=parse_include_usage(fields),
        user=fields.get("user"),
        priority=parse_priority(fields),
        constraint=constraint,
    )


def _prompts(fields: Mapping[str, Any]) -> tuple[RawPrompt, ...]:
    suffix = fields.get("suffix") or None
    echo = fields.get("echo", False)
    add_bos = fields.get("add_special_tokens", True)
    if suffix is not None and echo:
        raise InvalidRequest(
            "'suffix' and 'echo' do not go together: the answer stands between prompt and suffix.",
            param="echo",
            remedy="Leave one of them out.",
        )
    return tuple(
        RawPrompt(text, ids, suffix=suffix, echo=echo, add_bos=add_bos)
        for text, ids in _texts_and_ids(fields["prompt"])
    )


def _texts_and_ids(
    prompt: str | Sequence[Any],
) -> Sequence[tuple[str | None, tuple[int, ...] | None]]:
    if isinstance(prompt, str):
        return [(prompt, None)]
    kinds = {_kind(entry) for entry in prompt}
    if len(kinds) > 1:
        first = _kind(prompt[0])
        index = next(index for index, entry in enumerate(prompt) if _kind(entry) != first)
        raise InvalidRequest(
            f"'prompt[{index}]' is {shown(prompt[index])}, and 'prompt[0]' is {shown(prompt[0])}; the entries must be of one kind: "
            "texts, token ids, or lists of token ids.",
            param=f"prompt[{index}]",
        )
    if kinds == {"text"}:
        return [(text, None) for text in prompt]
    if kinds == {"ids"}:
        return [(None, tuple(map(int, ids))) for ids in prompt]
    return [(None, tuple(map(int, prompt)))]


def _kind(entry: object) -> str:
    return "text" if isinstance(entry, str) else "ids" if isinstance(entry, list) else "id"


def _best_of(fields: Mapping[str, Any]) -> int | None:
    n, best_of = int(fields.get("n", 1)), fields.get("best_of")
    if best_of is None or best_of == n:
        return None
    if best_of < n:
        raise InvalidRequest(
            f"'best_of' is {shown(best_of)} and 'n' is {n}; of so many answers so many cannot be given.",
            param="best_of",
            remedy="Send a best_of that is at least n.",
        )
    if fields.get("stream"):
        raise InvalidRequest(
            f"'best_of' is {shown(best_of)}; which answers are the best is known only when all have ended.",
            param="best_of",
            remedy="Leave it out, or do not stream.",
        )
    return int(best_of)


COMPLETION = Dialect(id_prefix="cmpl-", parse=parse_completion, renderer=CompletionRenderer)
