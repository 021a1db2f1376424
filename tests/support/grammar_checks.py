"""What is independent of the grammar compiler: a validator, the formats' own definitions, and white space."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import uuid
from typing import Any

import jsonschema

_FORMATS = jsonschema.FormatChecker(formats=())


@_FORMATS.checks("date", ValueError)
def _date(value: object) -> bool:
    return not isinstance(value, str) or bool(datetime.date.fromisoformat(value))


@_FORMATS.checks("ipv4", ValueError)
def _ipv4(value: object) -> bool:
    return not isinstance(value, str) or bool(ipaddress.IPv4Address(value))


@_FORMATS.checks("ipv6", ValueError)
def _ipv6(value: object) -> bool:
    return not isinstance(value, str) or bool(ipaddress.IPv6Address(value))


@_FORMATS.checks("uuid", ValueError)
def _uuid(value: object) -> bool:
    return not isinstance(value, str) or bool(uuid.UUID(value))


@_FORMATS.checks("email")
def _email(value: object) -> bool:
    return not isinstance(value, str) or value.count("@") >= 1


@_FORMATS.checks("date-time")
def _date_time(value: object) -> bool:
    # RFC 3339, 5.6; T and Z in either case, and a leap second.
    form = r"\d{4}-[01]\d-[0-3]\d[Tt][0-2]\d:[0-5]\d:[0-6]\d(\.\d+)?([Zz]|[+-][0-2]\d:[0-5]\d)"
    return not isinstance(value, str) or bool(re.fullmatch(form, value))


def check(schema: dict[str, Any], text: str) -> None:
    """Raise unless the text is JSON that the schema allows."""
    document = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    kind(schema, format_checker=_FORMATS).validate(document)


def longest_gap(text: str) -> int:
    """Characters of the longest white space outside strings, in JSON text that may be cut off."""
    outside = re.sub(r'"(?:[^"\\]|\\.)*("|$)', "s", text, flags=re.DOTALL)
    return max((len(gap) for gap in re.findall(r"\s+", outside)), default=0)
