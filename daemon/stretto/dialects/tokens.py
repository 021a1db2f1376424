"""The dialect of ``/tokenize`` and ``/detokenize``: what vLLM and llama-server understand, in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.dialects.fields import read_fields
from stretto.dialects.json_text import dumps
from stretto.errors import InvalidRequest
from stretto.schemas import shown

TOKENIZE_SCHEMA = "tokenize-request"
DETOKENIZE_SCHEMA = "detokenize-request"

_SOURCES = ("prompt", "content", "messages")
_CHAT_FIELDS = ("messages", "tools", "chat_template_kwargs")


@dataclass(frozen=True, slots=True)
class TokenizeRequest:
    """What is to be made into tokens: a text, or a conversation.

    Attributes:
        model: as the client wrote it, or None for the served one.
        text: the text, or None.
        chat: fields of a chat request without a model, or None.
        add_bos: whether a text begins with BOS where the model wants it.
        parse_special: whether control tokens that are written in a text are control tokens.
        spelled: whether each token is wanted as the vocabulary spells it.
        pieces: whether each is wanted with what it adds to the text.
    """

    model: str | None
    text: str | None
    chat: Mapping[str, Any] | None
    add_bos: bool
    parse_special: bool
    spelled: bool
    pieces: bool


@dataclass(frozen=True, slots=True)
class DetokenizeRequest:
    """Token ids to be made into text. For ``model`` see TokenizeRequest."""

    model: str | None
    ids: tuple[int, ...]


def parse_tokenize(body: bytes) -> TokenizeRequest:
    """Read the body of ``POST /tokenize``. The fields of a conversation are left to the chat dialect.

    Raises:
        InvalidRequest: the codes of ``read_fields``; ``missing_parameter`` or ``invalid_value`` unless there is one thing to tokenise;
            ``unsupported_value``.
    """
    fields = read_fields(TOKENIZE_SCHEMA, body)
    given = [name for name in _SOURCES if name in fields]
    if not given:
        raise InvalidRequest(
            "There is nothing to tokenise.",
            code="missing_parameter",
            param="prompt",
            remedy="Send 'prompt' or 'messages'.",
        )
    if len(given) > 1:
        raise InvalidRequest(
            f"'{given[0]}' and '{given[1]}' both say what to tokenise.",
            param=given[1],
            remedy="Send one of them.",
        )
    source = given[0]
    _refuse_others(fields, source)
    return TokenizeRequest(
        model=fields.get("model"),
        text=None if source == "messages" else fields[source],
        chat={name: fields[name] for name in _CHAT_FIELDS if name in fields}
        if source == "messages"
        else None,
        add_bos=fields.get("add_special", False)
        if source == "content"
        else fields.get("add_special_tokens", True),
        parse_special=fields.get("parse_special", True),
        spelled=fields.get("return_token_strs", False),
        pieces=fields.get("with_pieces", False),
    )


def _refuse_others(fields: Mapping[str, Any], source: str) -> None:
    """Refuse fields that would make no difference to this source, and values that are not served."""
    allowed = {
        "prompt": ("add_special_tokens", "parse_special"),
        "content": ("add_special", "parse_special"),
        "messages": ("tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
    }
    everywhere = (source, "model", "return_token_strs", "with_pieces")
    for name, value in fields.items():
        # Clients send defaults along with messages; one that asks for nothing does no harm.
        if name not in (*allowed[source], *everywhere) and value is not False:
            raise InvalidRequest(
                f"'{name}' makes no difference to '{source}'.", param=name, remedy="Leave it out."
            )
    for name, only in (("add_generation_prompt", True), ("continue_final_message", False)):
        if fields.get(name, only) is not only:
            raise InvalidRequest(
                f"'{name}' is {shown(fields[name])}, which is not supported.",
                code="unsupported_value",
                param=name,
                remedy="Leave it out: a conversation ends with the beginning of the answer.",
            )


def parse_detokenize(body: bytes) -> DetokenizeRequest:
    """Read the body of ``POST /detokenize``.

    Raises:
        InvalidRequest: the codes of ``read_fields``.
    """
    fields = read_fields(DETOKENIZE_SCHEMA, body)
    return DetokenizeRequest(fields.get("model"), tuple(map(int, fields["tokens"])))


def render_tokenize(
    ids: Sequence[int],
    *,
    context_tokens: int,
    spelled: Sequence[str] | None,
    pieces: Sequence[bytes] | None,
) -> bytes:
    """The reply to ``/tokenize``; ``spelled`` and ``pieces`` as they were asked for, else None."""
    tokens: Sequence[Any] = ids
    if pieces is not None:
        tokens = [
            {"id": token_id, "piece": _piece(piece)} for token_id, piece in zip(ids, pieces, strict=True)
        ]
    reply = {
        "count": len(ids),
        "max_model_len": context_tokens,
        "tokens": tokens,
        "token_strs": spelled,
    }
    return dumps(reply).encode()


def render_detokenize(text: str) -> bytes:
    """The reply to ``/detokenize``, by both names."""
    return dumps({"prompt": text, "content": text}).encode()


def _piece(data: bytes) -> str | list[int]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
