"""Prompts that no template renders: to token ids, and back to the text with which an answer begins when it echoes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.conversation.events import Echo, TokenLogprob
from stretto.conversation.infill import infill_of
from stretto.conversation.messages import RawPrompt
from stretto.conversation.token_entries import GeneratedToken, token_entry
from stretto.conversation.tokenizer import Tokenizer
from stretto.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A raw prompt as tokens.

    Attributes:
        ids: at least one.
        added_bos: whether the first of them is a BOS that the prompt did not have.
        end_ids: every token that ends its answer.
    """

    ids: Sequence[int]
    added_bos: bool
    end_ids: frozenset[int]


def encode_raw(tokenizer: Tokenizer, prompt: RawPrompt) -> EncodedPrompt:
    """Tokenise a raw prompt.

    A text is in the model's own form: what it has of control tokens are control tokens. A text with a suffix is a piece of a document,
    and so is the suffix: there they are plain text. A text begins with BOS, once, where the model wants it; token ids are taken as they
    are.

    Raises:
        InvalidRequest: ``invalid_value``: there is no token, or one outside the vocabulary; ``unsupported_value``: a suffix, and the
            vocabulary has no tokens for filling in the middle.
    """
    end_ids = tokenizer.end_ids
    if prompt.ids is not None:
        ids = list(prompt.ids)
        _check_range(ids, tokenizer.vocab_size)
    else:
        ids = tokenizer.encode(prompt.text or "", allow_special=prompt.suffix is None)
    if prompt.suffix is not None:
        infill = infill_of(tokenizer)
        if infill is None:
            raise InvalidRequest(
                "This model's vocabulary has no tokens for filling in the middle, so it cannot be given a 'suffix'.",
                code="unsupported_value",
                param="suffix",
                remedy="Leave it out, or serve a model that was made for it, such as a coder model.",
            )
        ids = infill.encode(ids, tokenizer.encode(prompt.suffix, allow_special=False))
        end_ids |= infill.end_ids
    added = prompt.add_bos and prompt.ids is None and needs_bos(tokenizer, ids)
    if added and tokenizer.bos_id is not None:
        ids.insert(0, tokenizer.bos_id)
    if not ids:
        raise InvalidRequest(
            "'prompt' is empty, and this model has no token with which every text begins.",
            param="prompt",
            remedy="Send some text.",
        )
    return EncodedPrompt(ids, added, end_ids)


class PromptEcho:
    """Makes the Echo of one choice, as soon as it can be made: at once, or when the log-probabilities of all the prompt are there.

    Args:
        tokenizer: the model's.
        index: of the choice.
        prompt, encoded: what is echoed.
        logprobs: whether log-probabilities were asked for.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, index: int, prompt: RawPrompt, encoded: EncodedPrompt, logprobs: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._index = index
        self._prompt = prompt
        self._encoded = encoded
        self._logprobs = logprobs
        self._tokens: list[GeneratedToken] = []
        self._done = False

    def push(self, tokens: Sequence[GeneratedToken]) -> list[Echo]:
        """Take the prompt's next tokens; gives the Echo, once."""
        self._tokens += tokens
        if self._done or (self._logprobs and len(self._tokens) < len(self._encoded.ids)):
            return []
        self._done = True
        pieces = self._pieces()
        text = self._prompt.text
        if text is None:
            text = b"".join(pieces).decode("utf-8", "replace")
        return [Echo(self._index, text, self._entries(pieces) if self._logprobs else ())]

    def _pieces(self) -> list[bytes]:
        """What each token adds to the text."""
        tokenizer = self._tokenizer
        pieces = [
            tokenizer.token_bytes(token_id) or tokenizer.token_text(token_id).encode()
            for token_id in self._encoded.ids
        ]
        if self._encoded.added_bos:
            pieces[0] = b""
        # Some vocabularies put a space before a text; the text as it was sent has none.
        if self._prompt.text is not None and b"".join(pieces) == b" " + self._prompt.text.encode():
            first = next(index for index, piece in enumerate(pieces) if piece)
            pieces[first] = pieces[first][1:]
        return pieces

    def _entries(self, pieces: Sequence[bytes]) -> tuple[TokenLogprob, ...]:
        return tuple(
            token_entry(self._tokenizer, token, piece)
            for token, piece in zip(self._tokens, pieces, strict=True)
        )


def needs_bos(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Whether a text lacks the BOS that the model wants before it."""
    return tokenizer.add_bos and tokenizer.bos_id is not None and list(ids[:1]) != [tokenizer.bos_id]


def _check_range(ids: Sequence[int], vocab_size: int) -> None:
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(
                f"'prompt' has the token id {token_id} at place {position}; the vocabulary is 0 to {vocab_size - 1}.",
                param="prompt",
            )
