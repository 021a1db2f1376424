"""What a chat request says about the form of its answer: ``response_format`` and the ``guided_…`` extras."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stretto.conversation.constraint import Constraint
from stretto.dialects.json_body import load_json
from stretto.errors import InvalidRequest

_EXTRAS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


def parse_constraint(fields: Mapping[str, Any]) -> Constraint | None:
    """The constraint of a request whose fields have the right types; None when the answer is free text.

    ``strict`` makes no difference: a schema is always kept to, or refused.

    Raises:
        InvalidRequest: ``missing_parameter`` without the schema; ``invalid_value`` when there is more than one constraint.
    """
    wanted = [name for name in _EXTRAS if name in fields]
    form = fields.get("response_format", {"type": "text"})
    if form["type"] != "text":
        wanted.insert(0, "response_format")
    if len(wanted) > 1:
        raise InvalidRequest(
            f"'{wanted[0]}' and '{wanted[1]}' both say what the answer must be.",
            param=wanted[1],
            remedy="Send one of them.",
        )
    if not wanted:
        return None
    name = wanted[0]
    if name == "guided_json":
        return Constraint("json_schema", _schema_text(fields[name]), name)
    if name == "guided_regex":
        return Constraint("regex", fields[name], name)
    if name == "guided_choice":
        return Constraint("choice", json.dumps(fields[name], ensure_ascii=False), name)
    if name == "guided_grammar":
        return Constraint("lark", fields[name], name)
    if form["type"] == "json_schema":
        schema = _schema_text(form["json_schema"]["schema"])
        return Constraint("json_schema", schema, "response_format.json_schema.schema")
    if form.get("schema") is not None:
        return Constraint("json_schema", _schema_text(form["schema"]), "response_format.schema")
    return Constraint("json_object", "", "response_format")


def _schema_text(schema: Mapping[str, Any] | str) -> str:
    """A schema's JSON text.

    Raises:
        InvalidRequest: ``invalid_schema``; it was sent as a text that is not the JSON of an object.
    """
    if not isinstance(schema, str):
        # The order of properties is part of a grammar, and JSON text keeps it.
        return json.dumps(schema, ensure_ascii=False)
    try:
        read = load_json(schema.encode(), what="'guided_json'")
    except InvalidRequest as error:
        raise InvalidRequest(error.message, code="invalid_schema", param="guided_json") from error
    if not isinstance(read, dict):
        raise InvalidRequest(
            "'guided_json' is not the JSON text of an object.", code="invalid_schema", param="guided_json"
        )
    return schema
