"""Messages requests for tests of the Anthropic dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stretto.conversation import Request
from stretto.dialects.anthropic import parse_messages
from stretto.errors import InvalidRequest

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
USE: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"b": 1, "a": "é"}}
CALLING: dict[str, Any] = {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, USE]}
TOOL: dict[str, Any] = {"name": "f", "description": "Does.", "input_schema": {"type": "object"}}


def result(content: Any = "done", call: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call, "content": content, **more}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 64, "messages": [USER], **fields}).encode()


def parse(**fields: Any) -> Request:
    return parse_messages(body(**fields), request_id="msg_1")


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert caught.value.status == 400
    return caught.value
