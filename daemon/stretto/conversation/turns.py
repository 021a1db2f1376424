"""The model's own recent turns, token by token, for when a client sends them back.

Clients send back what they made of an answer: arguments in another order, without the reasoning, other white space. A template would write that
differently from what the model said, and nothing after it would be known to the prefix cache. Where a turn is equal in meaning
to one that is kept here, what the model really said stands in the prompt in its place.
"""

from __future__ import annotations

import hashlib
import json
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stretto.conversation.answer_format import offered_tools
from stretto.conversation.messages import Message, Request
from stretto.conversation.template import tool_dict

_MOST_TURNS = 512
_MOST_TOKENS = 4_000_000


@dataclass(frozen=True, slots=True)
class History:
    """A conversation's beginnings: for each number of messages, what those mean together, as a key."""

    keys: tuple[bytes, ...]

    @classmethod
    def of(cls, request: Request, messages: Sequence[Message], variables: Mapping[str, Any]) -> History:
        """The keys of a request.

        Args:
            request: whose tools and tenant count too.
            messages: of the request, as the template is to see them.
            variables: of the template.
        """
        tools = [tool_dict(tool) for tool in offered_tools(request)]
        keys = [_digest(b"", [request.caller.tenant, tools, dict(variables)])]
        calls: dict[str, int] = {}
        for message in messages:
            keys.append(_digest(keys[-1], _meaning(message, calls)))
        return cls(tuple(keys))

    def answered(self, text: str, calls: Iterable[tuple[str, str]]) -> bytes:
        """The key of the whole conversation and an answer to it."""
        return _digest(self.keys[-1], _answer(text, calls, None))


class RecentTurns:
    """Keeps the last turns, up to a number of tokens; any thread may use it.

    Args:
        most_turns, most_tokens: what is kept at most.
    """

    def __init__(self, *, most_turns: int = _MOST_TURNS, most_tokens: int = _MOST_TOKENS) -> None:
        self._most_turns = most_turns
        self._most_tokens = most_tokens
        self._turns: OrderedDict[bytes, array[int]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()
        self._replayed = 0

    def keep(self, key: bytes, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> None:
        """Keep a prompt and the answer to it, without its end token; what alone is too long is not kept."""
        ids = array("i", prompt_ids)
        ids.extend(answer_ids)
        if len(ids) > self._most_tokens:
            return
        with self._lock:
            before = self._turns.pop(key, None)
            self._tokens += len(ids) - (0 if before is None else len(before))
            self._turns[key] = ids
            while len(self._turns) > self._most_turns or self._tokens > self._most_tokens:
                self._tokens -= len(self._turns.popitem(last=False)[1])

    def latest(self, history: History, messages: Sequence[Message]) -> tuple[int, Sequence[int]] | None:
        """The last message that is a turn kept here, in a conversation that began as it did then; its index, and all tokens up to its
        end."""
        with self._lock:
            for index in range(len(messages) - 1, -1, -1):
                if messages[index].role != "assistant":
                    continue
                turn = self._turns.get(history.keys[index + 1])
                if turn is not None:
                    self._turns.move_to_end(history.keys[index + 1])
                    return index, turn
        return None

    def replayed(self) -> None:
        """Count a prompt in which a turn stands as it was said."""
        with self._lock:
            self._replayed += 1

    def stats(self) -> dict[str, object]:
        """Counts, for ``status``."""
        with self._lock:
            return {"turns": len(self._turns), "tokens": self._tokens, "replayed_total": self._replayed}


def _meaning(message: Message, calls: dict[str, int]) -> list[Any]:
    """What a message means, whatever its form; ``calls`` numbers the calls so far by their ids, which clients may change."""
    if message.role == "assistant":
        for call in message.tool_calls:
            calls[call.id] = len(calls)
        return _answer(
            message.text, [(call.name, call.arguments) for call in message.tool_calls], message.name
        )
    answers = None if message.tool_call_id is None else calls.get(message.tool_call_id, -1)
    return [message.role, message.text, message.name, answers]


def _answer(text: str, calls: Iterable[tuple[str, str]], name: str | None) -> list[Any]:
    return ["assistant", text.strip(), name, [[called, _canonical(arguments)] for called, arguments in calls]]


def _canonical(arguments: str) -> Any:
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments.strip()


def _digest(before: bytes, value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(before + text.encode()).digest()
