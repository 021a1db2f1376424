"""Pieces of grammars in llguidance's dialect of Lark. What clients send stands in literals and schemas only, never in names of rules."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

WHITE_SPACE = r" ?|\n {0,12}"
"""White space between the parts of JSON: a space, or a line break with some indentation. Unbounded, a model may go on with it for ever."""

_GAP = r"/[ \n\t]{0,32}/"
_JSON_GAP = re.compile(r'(?<=\{)(?=")|(?<!\s)(?=\})')
"""Where JSON may have white space and usually has none: within braces."""


class LarkWriter:
    """Collects the rules of a grammar.

    Args:
        marks: control tokens that the grammar may ask for, with their texts.
    """

    def __init__(self, marks: Mapping[int, str]) -> None:
        self._marks = {text: token_id for token_id, text in marks.items()}
        ordered = sorted(self._marks, key=len, reverse=True)
        self._pattern = re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None
        self._rules: list[str] = []

    def rule(self, body: str, *, attributes: str = "") -> str:
        """A new rule; gives its name."""
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def rewrite(self, name: str, body: str) -> None:
        """Give a rule that was made already its body."""
        self._rules[int(name[1:])] = f"{name}: {body}"

    def source(self, start: str) -> str:
        """The whole grammar, which begins with the body ``start``."""
        return "\n".join([f"start: {start}", *self._rules])

    def text(self, text: str, *, loose: bool = False) -> str:
        """A fixed text; the control tokens in it as such. ``loose``: its white space may be another, or none."""
        pieces = [text] if self._pattern is None else self._pattern.split(text)
        written = []
        for piece in filter(None, pieces):
            if piece in self._marks:
                written.append(f"<[{self._marks[piece]}]>")
            elif loose:
                words = re.split(r"(\s+)", _JSON_GAP.sub(" ", piece))
                written += [_GAP if word.isspace() else json.dumps(word) for word in words if word]
            else:
                written.append(json.dumps(piece))
        return " ".join(written) or '""'

    def is_mark(self, text: str) -> bool:
        """Whether a text is one control token."""
        return text in self._marks

    def schema(self, schema: Mapping[str, Any]) -> str:
        """JSON that a schema allows."""
        return self.rule(f"%json {json_options(schema)}")

    def text_before(self, end: str, *, least: int = 0, most: int | None = None) -> str:
        """Any text, and the end it has: the first place where ``end`` stands."""
        bounds = f"{{{least},{most}}}" if most is not None else f"{{{least},}}" if least else "*"
        if self.is_mark(end):
            return f"/(?s:.{bounds})/ {self.text(end)}"
        return self.rule(f"/(?s:.{bounds})/", attributes=f"[suffix={json.dumps(end)}]")


def json_options(schema: Mapping[str, Any]) -> str:
    """A schema's JSON text, with the compiler's options in it."""
    options = {"whitespace_pattern": WHITE_SPACE, "lenient": False, "coerce_one_of": False}
    return json.dumps({**schema, "x-guidance": options})


def alternatives(bodies: list[str]) -> str:
    """One of several."""
    return bodies[0] if len(bodies) == 1 else f"({' | '.join(bodies)})"
