"""A chat at the terminal as data: what was said, and what a typed line means. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

_FENCE = '"""'

HELP = '''/reset         forget the conversation; the system message stays
/system TEXT   set the system message and start over; without TEXT, show it
/help          this
/exit          leave (so does Ctrl-D)
Ctrl-C         stop the answer; at the prompt, drop the line
A \\ at the end of a line continues it; """ begins and ends text of several lines.
A line that begins with // is sent with one / less.'''


@dataclass(frozen=True, slots=True)
class Say:
    """Something for the model."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A line that began with ``/``."""

    name: str
    argument: str


class LineReader:
    """Puts typed lines together: a trailing backslash continues, triple quotes hold several lines."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._fenced = False

    @property
    def pending(self) -> bool:
        """Whether a line has begun that is not complete."""
        return self._fenced or bool(self._lines)

    def feed(self, line: str) -> str | None:
        """Take a line without its line feed; the whole text when it is complete."""
        if not self.pending and line.lstrip().startswith(_FENCE):
            self._fenced = True
            line = line.lstrip()[len(_FENCE) :]
            if not line.strip():
                return None
        if self._fenced:
            if not line.rstrip().endswith(_FENCE):
                self._lines.append(line)
                return None
            last = line.rstrip()[: -len(_FENCE)]
            if last.strip():
                self._lines.append(last)
            return self._take()
        if line.endswith("\\"):
            self._lines.append(line[:-1])
            return None
        self._lines.append(line)
        return self._take()

    def end(self) -> str | None:
        """The input has ended: what is there counts as complete."""
        return self._take() if self.pending else None

    def reset(self) -> None:
        """Drop what is not complete."""
        self._take()

    def _take(self) -> str:
        text = "\n".join(self._lines)
        self._lines, self._fenced = [], False
        return text


def read_entry(text: str) -> Say | Command | None:
    """What a complete entry means; None for nothing but blanks."""
    if not text.strip():
        return None
    if text.startswith("//"):
        return Say(text[1:])
    if text.startswith("/") and "\n" not in text:
        name, _, argument = text[1:].partition(" ")
        return Command(name, argument.strip())
    return Say(text)


@dataclass(slots=True)
class Conversation:
    """Whose turn said what. A question whose answer did not come is taken back."""

    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def messages(self) -> list[dict[str, str]]:
        """All of it, as a request has it."""
        first = [] if self.system is None else [{"role": "system", "content": self.system}]
        return first + list(self.turns)

    def ask(self, text: str) -> list[dict[str, str]]:
        """Add a question; the messages to send."""
        self.turns.append({"role": "user", "content": text})
        return self.messages()

    def answered(self, text: str) -> None:
        """Add the answer, or as much of it as came; an empty one takes the question back."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.turns.pop()

    def reset(self) -> None:
        """Forget all but the system message."""
        self.turns.clear()

    def set_system(self, text: str) -> None:
        """Another system message means another conversation."""
        self.system = text
        self.reset()
