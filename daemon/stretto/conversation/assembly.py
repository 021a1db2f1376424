"""Text assembly: generated tokens become events: text, cut at the first stop string, reasoning, calls. Sans-I/O."""

from __future__ import annotations

import bisect
import codecs
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from stretto.conversation.channels import ChannelReader, Piece, Thought, Words
from stretto.conversation.events import (
    Event,
    Finish,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStart,
)
from stretto.conversation.stops import StopMatcher
from stretto.conversation.token_entries import GeneratedToken, token_entry
from stretto.conversation.tokenizer import Tokenizer
from stretto.conversation.tool_dialects import CallOpened


def new_call_id() -> str:
    """An id for a call that nobody else has."""
    return f"call_{secrets.token_hex(12)}"


class TextAssembler:
    """One choice's tokens in, its events out, as soon as they are certain.

    What holds text back, and no more than it must: a character whose bytes are spread over tokens waits for the rest of them; what may
    begin a mark of a channel waits until it cannot (see ``ChannelReader``); so does a suffix that may begin a stop string. Nothing of a
    stop string comes out, nor anything after it. Stop strings are looked for in the text alone, not in reasoning and calls.
    ``finish`` gives what is still held when the tokens end without a stop string.

    Bytes that cannot be UTF-8 become U+FFFD, one for each maximal subpart (Unicode 3.9, as Python decodes). Bytes at the very end
    that are the beginning of a character, cut off by the end of the answer, are not text and not wrong: they are dropped.

    With ``logprobs``, each token's entry comes with the delta that completes the token's text, in order; so a delta has the entries of the
    tokens that end in it. A token that only begins a character counts as part of that character. Tokens that lie wholly in the stop
    string, in reasoning or in calls have no entry; nor have control tokens, which are no text, unless they are asked for.

    Args:
        tokenizer: the model's.
        index: of the choice.
        stop: strings that end the text.
        logprobs, controls: see above.
        channels: tells reasoning and calls from text; None when all is text.
        marks: control tokens that ``channels`` looks for, with their texts.
        new_id: makes the ids of calls.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        index: int,
        stop: Sequence[str],
        logprobs: bool,
        controls: bool = False,
        channels: ChannelReader | None = None,
        marks: Mapping[int, str] | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._tokenizer = tokenizer
        self._index = index
        self._logprobs = logprobs
        self._controls = controls
        self._channels = channels
        self._marks = {token_id: text.encode() for token_id, text in (marks or {}).items()}
        self._new_id = new_id
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stop) if any(stop) else None
        # Places are counted in decoded characters, whatever channel they are in.
        self._decoded = 0
        self._ends: list[int] = []  # of each token
        self._entries: deque[tuple[int, int, TokenLogprob]] = (
            deque()
        )  # first character, one past the last, entry
        self._text_end = 0  # of the text so far, with what is held
        self._ready = ""  # text for the next delta
        self._held = ""  # text that may begin a stop string
        self._events: list[Event] = []
        self._calls = 0
        self._stopped: str | None = None
        self._stop_end = 0
        self._finished = False

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None. Once it is set, further tokens are ignored."""
        return self._stopped

    @property
    def counted_tokens(self) -> int:
        """Tokens pushed so far, up to and with the one that completed a stop string."""
        if self._stopped is None:
            return len(self._ends)
        return bisect.bisect_left(self._ends, self._stop_end) + 1

    @property
    def reasoning_tokens(self) -> int:
        """Those of them that belong to the reasoning, its marks included."""
        if self._channels is None:
            return 0
        return sum(map(self._channels.is_reasoning, [0, *self._ends][: self.counted_tokens]))

    def push(self, tokens: Sequence[GeneratedToken]) -> list[Event]:
        """Take the next tokens; gives what is certain now, neighbouring pieces of a kind joined."""
        for token in tokens:
            if self._stopped is not None or self._finished:
                break
            self._decode(token)
        self._end_delta(self._text_end - len(self._held))
        return self._take_events()

    def end(self, token: GeneratedToken) -> None:
        """Take the token that ended the answer. It is no text and not counted; it has an entry where control tokens have."""
        if self._controls and self._logprobs and token.logprob is not None:
            self._entries.append((self._decoded, self._decoded, token_entry(self._tokenizer, token, b"")))

    def finish(self) -> list[Event]:
        """The tokens have ended: give what is held. Nothing on a second call."""
        if self._finished:
            return []
        self._finished = True
        pending = self._decoder.getstate()[0]
        if self._stopped is None and not _begins_character(pending):
            self._read(pending.decode("utf-8", "replace"))
        if self._channels is not None and self._stopped is None:
            self._assort(self._channels.finish())
        # The last token may have begun a character that never came.
        ends_in_text = self._text_end == self._decoded and self._stopped is None
        self._end_text(self._decoded + 1 if ends_in_text else self._text_end)
        self._entries.clear()
        return self._take_events()

    def close(self, reason: FinishReason) -> list[Event]:
        """``finish``, and the Finish that follows from it: ``stop`` if a stop string was found, else ``reason``; but where there are
        calls, what would be ``stop`` is ``tool_calls``."""
        events = self.finish()
        if self._stopped is not None:
            reason = "stop"
        if reason == "stop" and self._calls:
            reason = "tool_calls"
        return [*events, Finish(self._index, reason, self._stopped)]

    def _decode(self, token: GeneratedToken) -> None:
        data = self._marks.get(token.id) or self._tokenizer.token_bytes(token.id)
        start = self._decoded
        text = self._decoder.decode(data) if data else ""
        end = start + len(text)
        self._ends.append(end)
        if (data or self._controls) and self._logprobs and token.logprob is not None:
            # A character still to come counts: the token is part of it.
            incomplete = 1 if self._decoder.getstate()[0] else 0
            self._entries.append((start, end + incomplete, token_entry(self._tokenizer, token, data)))
        self._read(text)

    def _read(self, text: str) -> None:
        if not text:
            return
        start, self._decoded = self._decoded, self._decoded + len(text)
        self._assort([Words(start, text)] if self._channels is None else self._channels.feed(text))

    def _assort(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if self._stopped is not None:
                return
            if isinstance(piece, Words):
                self._match(piece)
                continue
            self._end_text(self._text_end)
            if isinstance(piece, Thought):
                self._add(ReasoningDelta(self._index, piece.text))
            elif isinstance(piece, CallOpened):
                self._events.append(ToolCallStart(self._index, self._calls, self._new_id(), piece.name))
                self._calls += 1
            else:
                self._add(ToolCallDelta(self._index, self._calls - 1, piece.text))

    def _add(self, event: ReasoningDelta | ToolCallDelta) -> None:
        """Append an event, or join it to the last one of its kind."""
        last = self._events[-1] if self._events else None
        if isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            self._events[-1] = ReasoningDelta(event.index, last.text + event.text)
        elif isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta):
            self._events[-1] = ToolCallDelta(event.index, event.call, last.arguments + event.arguments)
        else:
            self._events.append(event)

    def _match(self, words: Words) -> None:
        """Look for stop strings in the next text."""
        if words.start != self._text_end:
            self._end_text(self._text_end)
            while self._entries and self._entries[0][1] <= words.start:
                self._entries.popleft()
        found = None if self._matcher is None else self._matcher.feed(words.text)
        if found is None:
            self._text_end = words.start + len(words.text)
            text = self._held + words.text
            keep = len(text) - (0 if self._matcher is None else self._matcher.held)
            self._ready += text[:keep]
            self._held = text[keep:]
            return
        read, stop = found
        text = self._held + words.text[:read]
        self._ready += text[: len(text) - len(stop)]
        self._held = ""
        self._stopped = stop
        self._stop_end = words.start + read
        self._text_end = self._stop_end - len(stop)
        while self._entries and self._entries[-1][0] >= self._text_end:
            self._entries.pop()

    def _end_text(self, until: int) -> None:
        """The text ends here, or something else comes between: no stop string reaches further."""
        self._ready += self._held
        self._held = ""
        if self._matcher is not None:
            self._matcher.reset()
        self._end_delta(until, whole=True)

    def _end_delta(self, certain: int, *, whole: bool = False) -> None:
        """A delta of the text that is ready, with the entries of the tokens that end in it; ``whole``: or that end beyond it."""
        entries = []
        while self._entries and (self._entries[0][1] <= certain or (whole and self._entries[0][0] < certain)):
            entries.append(self._entries.popleft()[2])
        if self._ready or entries:
            self._events.append(TextDelta(self._index, self._ready, tuple(entries)))
            self._ready = ""

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _begins_character(data: bytes) -> bool:
    """Whether more bytes could make a character of these. Python's decoder also waits after the beginning of a surrogate."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
