"""What a tool dialect is: how a model writes that it calls functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stretto.conversation.messages import ToolSpec
from stretto.conversation.tool_dialects.scanner import Scanner, Steps

ArgumentsForm = Literal["json", "xml", "gemma"]

ReadCalls = Callable[[Scanner, Mapping[str, ToolSpec]], Steps[None]]
"""Reads calls from an opener on, and returns after the last one's end; raises NotACall where there is none."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """How calls are written, in the form that models were trained on: ``first``, calls with ``between`` in the middle, ``last``.

    A call is ``before``, the name, ``middle``, the arguments and ``after``.

    Attributes:
        arguments: ``json``; ``xml``: a tag for each argument, strings as they are; ``gemma``: bare names, strings between marks.
    """

    before: str
    middle: str
    after: str
    between: str = ""
    first: str = ""
    last: str = ""
    arguments: ArgumentsForm = "json"

    @property
    def texts(self) -> tuple[str, ...]:
        """All the fixed texts."""
        return self.first, self.before, self.middle, self.after, self.between, self.last


@dataclass(frozen=True, slots=True)
class ToolDialect:
    """How a family of models writes calls.

    Attributes:
        name: what the setting calls it.
        signs: texts of which a template for this dialect has all.
        openers: texts with which calls may begin, anywhere in an answer.
        variants: other ways to write calls, which a model may choose by itself.
        leading: texts with which calls may begin only where nothing was said before.
        syntax: how calls are written when the daemon decides it.
        read: see ReadCalls; more lenient than ``syntax``.
        described: whether the daemon tells the model of its functions, because its template does not.
        id_chars: the length of a call's id in the prompt, where a template insists on one.
    marks: texts of control tokens that calls may hold, beside those of ``openers`` and ``syntax``.
    """

    name: str
    signs: tuple[str, ...]
    openers: tuple[str, ...]
    syntax: Syntax
    read: ReadCalls
    leading: tuple[str, ...] = ()
    variants: tuple[Syntax, ...] = ()
    described: bool = False
    id_chars: int | None = None
    marks: tuple[str, ...] = ()

    def leading_triggers(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The texts with which an answer that begins with one calls one of these functions, without white space: ``leading`` alone may
        begin other text."""
        forms = [form.first + form.before for form in (self.syntax, *self.variants)]
        return tuple(
            "".join(f"{beginning}{name}{self.syntax.middle[:1]}".split())
            for beginning in forms
            if beginning.startswith(self.leading)
            for name in names
        )

    def write(self, name: str, arguments: str) -> str:
        """A call as the model would write it alone; for JSON dialects.

        Args:
            name: the function's.
            arguments: JSON text.
        """
        syntax = self.syntax
        return syntax.before + name + syntax.middle + arguments + syntax.after


def json_types(schema: Any, root: Mapping[str, Any]) -> frozenset[str] | None:
    """The JSON types that a schema allows, as far as it names them; None when it does not say."""
    for _ in range(8):
        if not isinstance(schema, Mapping):
            return None
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        schema = found
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(filter(lambda name: isinstance(name, str), kind))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(map(_type_of, values))
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if isinstance(branches, list) and branches:
            types = [json_types(branch, root) for branch in branches]
            return None if None in types else frozenset().union(*filter(None, types))
    branches = schema.get("allOf")
    if isinstance(branches, list):
        known = [kinds for branch in branches if (kinds := json_types(branch, root)) is not None]
        return frozenset.intersection(*known) if known else None
    return None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}.get(
        type(value), "object"
    )


def compact(value: Any) -> str:
    """JSON text in the form that templates write."""
    return json.dumps(value, ensure_ascii=False)
