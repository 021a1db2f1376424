"""What a request wants its answer to keep to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConstraintKind = Literal["json_object", "json_schema", "regex", "choice", "lark"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A rule for the whole text of an answer.

    Attributes:
        kind: ``json_object`` (any JSON object), ``json_schema`` (a JSON value that a schema allows), ``regex`` (text that a regular
            expression matches from end to end), ``choice`` (one of some texts), ``lark`` (text of a context-free grammar).
        text: the JSON text of the schema, the expression, the JSON text of the list of texts, or the grammar; empty for ``json_object``.
        param: the request's field that holds it, for errors.
    """

    kind: ConstraintKind
    text: str
    param: str
