"""Bodies of calls that no dialect owns, checked against their schema."""

from __future__ import annotations

from starlette.types import Receive, Scope

from stretto.api.reading import require_json
from stretto.dialects.json_body import load_json
from stretto.errors import InvalidRequest
from stretto.schemas import find_violation
from stretto.serving import read_body


async def read_checked(scope: Scope, receive: Receive, schema: str) -> dict[str, object]:
    """The body as an object that fits the schema. No body at all counts as ``{}``.

    Raises:
        InvalidRequest: ``unsupported_media_type``, those of ``load_json``, ``unknown_parameter``, or ``invalid_value`` naming the
            field.
    """
    body = await read_body(receive)
    document: object = {}
    if body.strip():
        require_json(scope)
        document = load_json(body)
    violation = find_violation(schema, document)
    if violation is not None:
        code = "unknown_parameter" if violation.keyword == "additionalProperties" else "invalid_value"
        raise InvalidRequest(violation.sentence, code=code, param=violation.path or None)
    assert isinstance(document, dict)
    return document
