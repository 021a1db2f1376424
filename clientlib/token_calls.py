"""Text and tokens of the served model: the calls, as data. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence

from clientlib.exchange import Call
from clientlib.http1 import Head
from clientlib.replies import as_int, as_list, as_str, parse_object


def tokenize_call(text: str, *, special: bool) -> Call[list[int]]:
    """``POST /tokenize``. Raises TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, not {type(text).__name__}")
    body = {"prompt": text, "add_special_tokens": special, "parse_special": special}
    return Call("POST", "/tokenize", _tokens, json.dumps(body).encode())


def detokenize_call(tokens: Sequence[int]) -> Call[str]:
    """``POST /detokenize``."""
    return Call("POST", "/detokenize", _text, json.dumps({"tokens": list(tokens)}).encode())


def _tokens(head: Head, body: bytes) -> list[int]:
    return [as_int(item, "tokens[]") for item in as_list(parse_object(head, body).get("tokens"), "tokens")]


def _text(head: Head, body: bytes) -> str:
    return as_str(parse_object(head, body).get("prompt"), "prompt")
