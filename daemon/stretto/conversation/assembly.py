"""Text assembly: generated tokens become text, cut at the first stop string. Sans-I/O."""

from __future__ import annotations

import codecs
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from stretto.conversation.events import Finish, FinishReason, TextDelta, TokenLogprob, TopLogprob
from stretto.conversation.stops import StopMatcher
from stretto.conversation.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Stands for the logarithm of zero, which JSON cannot write."""


class GeneratedToken(Protocol):
    """A token as the engine gives it."""

    @property
    def id(self) -> int:
        """Its id."""
        ...

    @property
    def logprob(self) -> float | None:
        """Natural logarithm of its probability, if asked for."""
        ...

    @property
    def top(self) -> tuple[tuple[int, float], ...]:
        """The most likely tokens at its place (id, logprob), if asked for."""
        ...


class TextAssembler:
    """One choice's tokens in, its text out, as soon as it is certain.

    Three things hold text back, and no more than they must: a character whose bytes are spread over tokens waits for the rest of
    them; a suffix that may begin a stop string waits until it cannot; and nothing of a stop string comes out, nor anything after it.
    ``finish`` gives what is still held when the tokens end without a stop string.

    Bytes that cannot be UTF-8 become U+FFFD, one for each maximal subpart (Unicode 3.9, as Python decodes). Bytes at the very end
    that are the beginning of a character, cut off by the end of the answer, are not text and not wrong: they are dropped.

    With ``logprobs``, each token's entry comes with the delta that completes the token's text, in order; so a delta has the entries of the
    tokens that end in it. A token that only begins a character counts as part of that character. Tokens that lie wholly in the stop
    string have no entry, nor have control tokens, which are no text.
    """

    def __init__(self, tokenizer: Tokenizer, *, index: int, stop: Sequence[str], logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self._index = index
        self._logprobs = logprobs
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop) if any(stop) else None
        self._held = ""
        self._decoded_chars = 0
        # (first character, one past the last, entry)
        self._entries: deque[tuple[int, int, TokenLogprob]] = deque()
        self._stopped: str | None = None
        self._counted = 0
        self._finished = False

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None. Once it is set, further tokens are ignored."""
        return self._stopped

    @property
    def counted_tokens(self) -> int:
        """Tokens pushed so far, up to and with the one that completed a stop string."""
        return self._counted

    def push(self, tokens: Sequence[GeneratedToken]) -> list[TextDelta]:
        """Take the next tokens.

        Returns:
            One delta with what is certain now, or none.
        """
        ready: list[str] = []
        for token in tokens:
            if self._stopped is not None or self._finished:
                break
            self._counted += 1
            ready.append(self._take(token))
        return self._delta("".join(ready), everything=self._stopped is not None)

    def finish(self) -> list[TextDelta]:
        """The tokens have ended: give what is held. Nothing on a second call."""
        if self._finished:
            return []
        self._finished = True
        ready = ""
        pending = self._decoder.getstate()[0]
        if self._stopped is None and not _begins_character(pending):
            ready = self._match(self._decoded_chars, pending.decode("utf-8", "replace"))
        text, self._held = ready + self._held, ""
        return self._delta(text, everything=True)

    def close(self, reason: FinishReason) -> list[TextDelta | Finish]:
        """``finish``, and the Finish that follows from it: ``stop`` if a stop string was found, else ``reason``."""
        finish = Finish(self._index, reason if self._stopped is None else "stop", self._stopped)
        return [*self.finish(), finish]

    def _take(self, token: GeneratedToken) -> str:
        """Decode one token and look for stop strings; gives the text that became certain."""
        data = self._tokenizer.token_bytes(token.id)
        if not data:
            return ""
        start = self._decoded_chars
        text = self._decoder.decode(data)
        end = start + len(text)
        if self._logprobs and token.logprob is not None:
            # A character still to come counts: the token is part of it.
            incomplete = 1 if self._decoder.getstate()[0] else 0
            self._entries.append((start, end + incomplete, self._entry(token, token.logprob, data)))
        if not text:
            return ""
        return self._match(start, text)

    def _match(self, start: int, text: str) -> str:
        found = None if self._matcher is None else self._matcher.feed(text)
        if found is None:
            self._decoded_chars = start + len(text)
            if self._matcher is None:
                return text
            text = self._held + text
            keep = len(text) - self._matcher.held
            self._held = text[keep:]
            return text[:keep]
        read, stop = found
        text = self._held + text[:read]
        text = text[: len(text) - len(stop)]
        self._held = ""
        self._stopped = stop
        self._decoded_chars = start + read - len(stop)  # where the answer ends
        while self._entries and self._entries[-1][0] >= self._decoded_chars:
            self._entries.pop()
        return text

    def _delta(self, text: str, *, everything: bool) -> list[TextDelta]:
        certain_chars = self._decoded_chars - len(self._held)
        entries = []
        while self._entries and (everything or self._entries[0][1] <= certain_chars):
            entries.append(self._entries.popleft()[2])
        if not text and not entries:
            return []
        return [TextDelta(self._index, text, tuple(entries))]

    def _entry(self, token: GeneratedToken, logprob: float, data: bytes) -> TokenLogprob:
        top = tuple(
            TopLogprob(self._text(id_, alternative), _finite(value), alternative)
            for id_, value in token.top
            for alternative in (self._tokenizer.token_bytes(id_),)
        )
        return TokenLogprob(self._text(token.id, data), _finite(logprob), data, top)

    def _text(self, token_id: int, data: bytes) -> str:
        return data.decode("utf-8", "replace") if data else self._tokenizer.token_text(token_id)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else LOWEST_LOGPROB


def _begins_character(data: bytes) -> bool:
    """Whether more bytes could make a character of these. Python's decoder also waits after the beginning of a surrogate."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
