"""Text and tokens of the served model, for callers who count them or look at them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import trio

from stretto.conversation import Tokenizer, needs_bos
from stretto.conversation.messages import Request
from stretto.errors import InvalidRequest

_AT_ONCE = 1
"""Beside the threads that render prompts, so that no answer waits for a caller who counts tokens."""


class Tokens:
    """Everything that takes its time happens in a worker thread.

    Args:
        tokenizer: the model's own.
        prompt_ids: renders and tokenises a conversation.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Callable[[Request], Awaitable[Sequence[int]]]
    ) -> None:
        self._tokenizer = tokenizer
        self._prompt_ids = prompt_ids
        self._limiter = trio.CapacityLimiter(_AT_ONCE)
        self._encoded = 0
        self._decoded = 0

    async def of_text(self, text: str, *, add_bos: bool, allow_special: bool) -> list[int]:
        """Tokens of a text; with ``add_bos`` it begins with BOS where the model wants it."""
        self._encoded += 1
        encode = partial(self._tokenizer.encode, text, allow_special=allow_special)
        ids = await trio.to_thread.run_sync(encode, limiter=self._limiter)
        if add_bos and self._tokenizer.bos_id is not None and needs_bos(self._tokenizer, ids):
            ids.insert(0, self._tokenizer.bos_id)
        return ids

    async def of_request(self, request: Request) -> Sequence[int]:
        """Tokens of the prompt that a request for an answer would have.

        Raises:
            InvalidRequest: as for an answer.
        """
        self._encoded += 1
        return await self._prompt_ids(request)

    async def text_of(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens as they are written.

        Raises:
            InvalidRequest: an id is outside the vocabulary.
        """
        size = self._tokenizer.vocab_size
        place = next((place for place, token_id in enumerate(ids) if not 0 <= token_id < size), None)
        if place is not None:
            raise InvalidRequest(
                f"'tokens[{place}]' is {ids[place]}; the vocabulary is 0 to {size - 1}.",
                param=f"tokens[{place}]",
            )
        self._decoded += 1
        decode = partial(self._tokenizer.decode, ids, skip_special=False)
        return await trio.to_thread.run_sync(decode, limiter=self._limiter)

    async def spelled(self, ids: Sequence[int]) -> list[str]:
        """Each token as the vocabulary spells it."""
        return await trio.to_thread.run_sync(
            lambda: list(map(self._tokenizer.token_text, ids)), limiter=self._limiter
        )

    async def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """What each token adds to a text; a control token as it is written."""

        def pieces() -> list[bytes]:
            tokenizer = self._tokenizer
            return [
                tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode() for token_id in ids
            ]

        return await trio.to_thread.run_sync(pieces, limiter=self._limiter)

    def stats(self) -> dict[str, object]:
        """How often it was asked."""
        return {"encoded": self._encoded, "decoded": self._decoded}
