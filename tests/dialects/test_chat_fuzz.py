"""Whatever is sent, the answer is a Request or an InvalidRequest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.conversation import Request
from stretto.dialects.fields import field_table
from stretto.dialects.openai_chat import error_body, parse_chat
from stretto.errors import InvalidRequest
from support.conversation_requests import CALL, CALLING, USER
from support.dialect_fuzz import ANYTHING, mutated

GOOD_MESSAGES = [
    USER,
    CALLING,
    {"role": "tool", "tool_call_id": CALL["id"], "content": [{"type": "text", "text": "x"}]},
]
BODIES = st.one_of(
    ANYTHING,
    st.dictionaries(st.sampled_from(sorted(field_table("openai-chat-request").known)), ANYTHING, max_size=8),
    st.builds(
        lambda messages, more: {"model": "m", "messages": messages, **more},
        mutated(GOOD_MESSAGES),
        st.dictionaries(st.sampled_from(sorted(field_table("openai-chat-request").known)), ANYTHING, max_size=2),
    ),
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(BODIES)
def test_any_json_is_parsed_or_refused(document: Any) -> None:
    try:
        parsed = parse_chat(json.dumps(document).encode(), request_id="chatcmpl-1")
    except InvalidRequest as error:
        parsed = None
        refused = json.loads(error_body(error))["error"]
    if parsed is not None:
        assert isinstance(parsed, Request)
        assert parsed.messages
    else:
        assert refused["type"] == "invalid_request_error"
        assert refused["code"]
        assert len(refused["message"]) < 1000


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=80))
def test_any_few_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_chat(data, request_id="chatcmpl-1")
    assert json.loads(error_body(caught.value))["error"]["code"] in {
        "invalid_json",
        "invalid_request_body",
        "missing_parameter",
        "unknown_parameter",
    }
