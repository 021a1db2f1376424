"""Whatever is sent, the answer is a Request or an InvalidRequest; and what is huge is refused before it costs anything."""

from __future__ import annotations

import json
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.conversation import Request
from stretto.dialects.anthropic import error_reply, parse_count, parse_messages
from stretto.dialects.fields import field_table
from stretto.errors import InvalidRequest
from support.anthropic_requests import CALLING, TOOL, USER, body, result
from support.dialect_fuzz import ANYTHING, mutated

FIELDS = sorted(field_table("anthropic-messages-request").known)
GOOD_MESSAGES = [
    USER,
    CALLING,
    {"role": "user", "content": [result([{"type": "text", "text": "x"}], is_error=True), {"type": "text", "text": "y"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "z", "signature": ""}]},
]  # fmt: skip
BODIES = st.one_of(
    ANYTHING,
    st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=8),
    st.builds(
        lambda messages, tools, more: {"model": "m", "max_tokens": 9, "messages": messages, "tools": tools, **more},
        mutated(GOOD_MESSAGES),
        st.just([]) | mutated([TOOL]),
        st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=2),
    ),
).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40)  # fmt: skip


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(BODIES, st.booleans())
def test_every_body_is_parsed_or_refused(data: bytes, count: bool) -> None:
    refused: InvalidRequest | None = None
    request: Request | None = None
    try:
        request = (parse_count if count else parse_messages)(data, request_id="msg_1")
    except InvalidRequest as error:
        refused = error
    if refused is None:
        assert isinstance(request, Request)
        assert request.messages
    else:
        status, reply = error_reply(refused, "msg_1")
        assert status == refused.status == 400
        assert json.loads(reply)["error"]["message"]


def nested(levels: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b'{"messages":' * 100_000,
        body(system="x", tools=[{**TOOL, "input_schema": nested(80)}]),
        body(messages=[{"role": "user", "content": [{"type": "text", "text": ""}] * 150_000}]),
        b'{"model":"m","max_tokens":1' + b"0" * 5000 + b"}",
    ],
)
def test_deep_and_huge_bodies_are_refused_on_a_small_stack(data: bytes) -> None:
    found: list[BaseException] = []

    def work() -> None:
        try:
            parse_messages(data, request_id="msg_1")
        except BaseException as error:
            found.append(error)

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    (error,) = found
    assert isinstance(error, InvalidRequest)
    assert error.code in {"invalid_json", "invalid_request_body"}
