"""Which error a reply means, and that errors travel."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

import clientlib
from clientlib.errors import error_from_frame, error_from_reply


def envelope(**members: object) -> bytes:
    return json.dumps({"error": {"message": "No.", **members}}).encode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "unsupported_value", clientlib.InvalidRequest),
        (400, "context_length_exceeded", clientlib.ContextLengthExceeded),
        (401, "invalid_api_key", clientlib.AuthenticationError),
        (402, "insufficient_credits", clientlib.InsufficientCredits),
        (403, "forbidden", clientlib.Forbidden),
        (404, "model_not_found", clientlib.NotFound),
        (405, "method_not_allowed", clientlib.InvalidRequest),
        (413, "request_too_large", clientlib.InvalidRequest),
        (429, "queue_full", clientlib.QueueFull),
        (429, "tokens_per_minute", clientlib.RateLimited),
        (500, "engine_error", clientlib.ServerError),
        (502, None, clientlib.ServerError),
        (503, "draining", clientlib.Unavailable),
    ],
)
def test_status_and_code_choose_the_type(
    status: int, code: str | None, kind: type[clientlib.ClientError]
) -> None:
    error = error_from_reply(
        status, envelope(code=code, param="top_k", remedy="Do this."), retry_after="2", request_id="r"
    )
    assert type(error) is kind
    assert error.code == (code or kind.code)
    assert (error.status, error.param, error.retry_after_s, error.request_id) == (status, "top_k", 2.0, "r")
    assert str(error) == "No. Do this."


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"error": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_reply_without_envelope_is_told_by_its_status(body: bytes) -> None:
    error = error_from_reply(500, body)
    assert type(error) is clientlib.ServerError
    assert error.code == "http_500"
    assert "HTTP 500" in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize("status", [204, 301, 304])
def test_a_status_that_no_call_has_is_a_protocol_error(status: int) -> None:
    assert type(error_from_reply(status, b"")) is clientlib.ProtocolError


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("1.5", 1.5), ("0", 0), ("-3", 0), ("soon", None), ("nan", None), ("inf", 86400), (None, None)],
)
def test_retry_after(header: str | None, seconds: float | None) -> None:
    assert error_from_reply(429, b"", retry_after=header).retry_after_s == seconds


def test_retry_after_as_a_date() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    seconds = error_from_reply(503, b"", retry_after=soon).retry_after_s
    assert seconds is not None
    assert 3500 < seconds <= 3600


@pytest.mark.parametrize(
    ("frame", "kind", "status"),
    [
        ({"type": "server_error", "code": "engine_error"}, clientlib.ServerError, 500),
        ({"type": "server_error", "code": "draining"}, clientlib.Unavailable, 503),
        ({"type": "invalid_request_error", "code": "invalid_value"}, clientlib.InvalidRequest, 400),
        ({"type": "rate_limit_error", "code": "queue_full"}, clientlib.QueueFull, 429),
        ({"type": "strange", "code": 7}, clientlib.ServerError, 500),
        ({}, clientlib.ServerError, 500),
    ],
)
def test_error_frames(frame: dict[str, object], kind: type[clientlib.ClientError], status: int) -> None:
    error = error_from_frame(frame, request_id="r", text="so far")
    assert type(error) is kind
    assert (error.status, error.text, error.request_id) == (status, "so far", "r")


def test_errors_cross_processes() -> None:
    lost = clientlib.ConnectionLost("Cut.", request_sent=False, text="half", request_id="r")
    absent = clientlib.DaemonNotRunning("None.", address="/a", remedy="Start it.")
    late = clientlib.Timeout("Late.", phase="idle")
    copies = [pickle.loads(pickle.dumps(error)) for error in (lost, absent, late)]
    assert [(type(copy), copy.args, vars(copy)) for copy in copies] == [
        (type(error), error.args, vars(error)) for error in (lost, absent, late)
    ]


def test_every_error_is_a_client_error_and_public() -> None:
    kinds = [value for name in clientlib.__all__ if isinstance(value := getattr(clientlib, name), type)]
    errors = [kind for kind in kinds if issubclass(kind, Exception)]
    assert len(errors) == 17
    assert all(issubclass(kind, clientlib.ClientError) for kind in errors)
