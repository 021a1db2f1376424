"""From a request to the token ids of its prompt."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stretto.conversation.continuation import render_open_ended
from stretto.conversation.messages import Request
from stretto.conversation.template import ChatTemplate, message_dict, tool_dict
from stretto.conversation.tokenizer import Tokenizer
from stretto.errors import InvalidRequest

_PRIVATE_USE = range(0xE000, 0xF900)
_FIXED_KEYS = frozenset({"role"})


def encode_chat(template: ChatTemplate, tokenizer: Tokenizer, request: Request) -> list[int]:
    """Render a request's conversation and tokenise it.

    Control tokens are the template's alone to write. Where a message, a tool or a template variable has one in its text
    (``<|im_end|>`` in a question about chat formats, or in an attempt to forge a turn), it stays text: each is replaced by a
    private-use character that occurs nowhere else before the template sees it, and put back after, in a stretch that is tokenised as
    ordinary text. A stretch reaches from one control token of the template to the next. When there is nothing of the kind, the
    whole prompt is tokenised in one piece, exactly as the reference implementation does.

    BOS comes exactly once where the model wants it, whether or not the template writes it too. A request that continues its last
    message gets a prompt that ends with that message's text.

    Raises:
        InvalidRequest: ``template_error``, see ``ChatTemplate.render`` and ``render_open_ended``; ``invalid_message`` when no
            private-use character is left.
    """
    ids = _write(template, tokenizer, request).encode()
    if tokenizer.add_bos and tokenizer.bos_id is not None:
        while ids and ids[0] == tokenizer.bos_id:
            del ids[0]
        ids.insert(0, tokenizer.bos_id)
    if not ids:
        raise InvalidRequest(
            "The model's chat template renders this conversation to nothing.",
            code="template_error",
            param="messages",
        )
    return ids


def encode_rest(
    template: ChatTemplate, tokenizer: Tokenizer, request: Request, mark: str, end_texts: Sequence[str]
) -> list[int] | None:
    """What comes after one turn of a conversation: the tokens from the first end token on that the template writes after the last ``mark``.

    Args:
        template, tokenizer, request: see ``encode_chat``.
        mark: a character that stands near the end of the turn's content, and nowhere else.
        end_texts: the end tokens that count.

    Returns:
        Tokens that begin with one of the end tokens; None when the template wrote no mark, or no such token after it.
    """
    written = _write(template, tokenizer, request)
    ends = [found + len(form) for form in (mark, _escape(mark)) if (found := written.text.rfind(form)) >= 0]
    if not ends:
        return None
    places = [place for text in end_texts if (place := written.text.find(text, max(ends))) >= 0]
    return written.encode(min(places)) if places else None


def conversation_strings(request: Request) -> Iterator[str]:
    """All texts that a template sees of a request."""
    return _strings(_inputs(request))


def unused_character(taken: str) -> str | None:
    """A private-use character that does not occur in a text, or None when there is none."""
    return next((character for character in map(chr, _PRIVATE_USE) if character not in taken), None)


class _Written:
    """A rendered conversation in which stand-ins hide the control tokens that its messages have as text."""

    def __init__(
        self, text: str, tokenizer: Tokenizer, control: re.Pattern[str], hidden: Mapping[str, str]
    ) -> None:
        self.text = text
        self._tokenizer = tokenizer
        self._control = control
        self._hidden = hidden

    def encode(self, start: int = 0) -> list[int]:
        """Tokens of the text from a place on, which is not within a stretch that was hidden."""
        text = self.text[start:]
        if not self._hidden:
            return self._tokenizer.encode(text, allow_special=True)
        pattern = re.compile("|".join(map(re.escape, self._hidden)))
        ids: list[int] = []
        # The template's own text, gathered so that it is tokenised in as few pieces as can be.
        plain: list[str] = []
        for piece in _pieces(self._control, text):
            if pattern.search(piece) is None:
                plain.append(piece)
                continue
            if plain:
                ids += self._tokenizer.encode("".join(plain), allow_special=True)
                plain.clear()
            restored = pattern.sub(lambda match: self._hidden[match.group()], piece)
            ids += self._tokenizer.encode(restored, allow_special=False)
        if plain:
            ids += self._tokenizer.encode("".join(plain), allow_special=True)
        return ids


def _write(template: ChatTemplate, tokenizer: Tokenizer, request: Request) -> _Written:
    control = _control_pattern(tokenizer.special_texts)
    found = {match for text in _strings(_inputs(request)) for match in control.findall(text)}
    if not found:
        return _Written(_render(template, request, lambda text: text, ""), tokenizer, control, {})
    stand_in = _stand_ins(sorted(found), "".join(_strings(_inputs(request))) + template.source)

    def hide(text: str) -> str:
        return control.sub(lambda match: stand_in[match.group()], text)

    rendered = _render(template, request, hide, "".join(stand_in.values()))
    hidden = {character: text for text, character in stand_in.items()}
    # A template may write JSON in ASCII; then the private-use character arrives as its escape.
    hidden.update({_escape(character): text for text, character in stand_in.items()})
    return _Written(rendered, tokenizer, control, hidden)


def _render(template: ChatTemplate, request: Request, change: Callable[[str], str], used: str) -> str:
    """The prompt's text, of values whose strings are changed first; ``used`` are characters that ``change`` brings in."""
    tools = [_mapped(tool_dict(tool), change) for tool in _offered(request)]
    extra = _mapped(dict(request.template_kwargs), change)

    def render(messages: Sequence[Mapping[str, Any]]) -> str:
        return template.render_values(
            messages, tools, add_generation_prompt=not request.continues, extra=extra
        )

    messages = [_mapped(message_dict(message), change) for message in request.messages]
    if not request.continues:
        return render(messages)
    return render_open_ended(render, messages, "".join(_strings(_inputs(request))) + template.source + used)


def _offered(request: Request) -> Sequence[Any]:
    return () if request.tool_choice.mode == "none" else request.tools


def _inputs(request: Request) -> Iterator[Any]:
    yield from map(message_dict, request.messages)
    yield from map(tool_dict, _offered(request))
    yield request.template_kwargs


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple, Iterator)):
        for item in value:
            yield from _strings(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(key): item if key in _FIXED_KEYS else _mapped(item, change) for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_mapped(item, change) for item in value]
    return value


def _pieces(pattern: re.Pattern[str], text: str) -> Iterator[str]:
    """The text cut at each match: what is between matches, and the matches; empty pieces left out."""
    position = 0
    for match in pattern.finditer(text):
        if match.start() > position:
            yield text[position : match.start()]
        yield match.group()
        position = match.end()
    if position < len(text):
        yield text[position:]


def _stand_ins(texts: Sequence[str], taken: str) -> dict[str, str]:
    taken_characters = set(taken)
    free = (
        character
        for character in map(chr, _PRIVATE_USE)
        if character not in taken_characters and _escape(character) not in taken
    )
    chosen = dict(zip(texts, free, strict=False))
    if len(chosen) < len(texts):
        raise InvalidRequest(
            "The messages hold control tokens of the model, and so many private-use characters (U+E000 to U+F8FF) that none "
            "is left to tell them apart.",
            code="invalid_message",
            param="messages",
            remedy="Leave out either of them.",
        )
    return chosen


def _escape(character: str) -> str:
    return f"\\u{ord(character):04x}"


@functools.lru_cache(maxsize=8)
def _control_pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any control token; of several that begin at one place, the longest."""
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")
