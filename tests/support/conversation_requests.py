"""Chat requests for tests of the OpenAI dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stretto.conversation import Request
from stretto.dialects.openai_chat import parse_chat
from stretto.errors import InvalidRequest

USER: dict[str, Any] = {"role": "user", "content": "Hi"}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
CALLING: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [CALL]}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def parse(**fields: Any) -> Request:
    return parse_chat(body(**fields), request_id="chatcmpl-1")


def refusal(data: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(data, request_id="chatcmpl-1")
    assert caught.value.status == 400
    return caught.value
