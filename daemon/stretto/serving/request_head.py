"""What a request's head must satisfy before an application sees it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.serving.limits import Limits
from stretto.serving.replies import Header, Refusal


def judge_head(
    *, method: bytes, target: bytes, http_version: bytes, headers: Iterable[Header], limits: Limits
) -> Refusal | None:
    """Why this head is refused, or None. Names of ``headers`` are in lower case; the parser has checked their syntax.

    A message with both Transfer-Encoding and Content-Length, or with Transfer-Encoding under HTTP/1.0, is how requests
    are smuggled past a proxy (RFC 9112, 6.1 and 6.3); no honest client sends either.
    """
    size_bytes = len(method) + len(target) + len(b"  HTTP/1.1\r\n\r\n")
    declared: bytes | None = None
    chunked = False
    for name, value in headers:
        size_bytes += len(name) + len(value) + len(b": \r\n")
        if name == b"content-length":
            declared = value
        elif name == b"transfer-encoding":
            chunked = True
    if size_bytes > limits.header_bytes:
        return too_large_head(limits)
    if http_version not in (b"1.1", b"1.0"):
        shown = http_version.decode("ascii", "replace")
        return Refusal(505, "http_version_not_supported", f"HTTP/{shown} is not spoken here; use HTTP/1.1.")
    if method == b"CONNECT":
        return Refusal(501, "method_not_implemented", "CONNECT is not implemented: this is not a proxy.")
    if chunked and (declared is not None or http_version == b"1.0"):
        return Refusal(
            400, "ambiguous_framing", "Transfer-Encoding is refused together with Content-Length or HTTP/1.0."
        )
    if declared is not None and int(declared) > limits.body_bytes:
        return too_large_body(limits)
    return None


def too_large_head(limits: Limits) -> Refusal:
    """431, with the limit."""
    return Refusal(
        431,
        "request_header_too_large",
        f"The request line and header fields are larger than {limits.header_bytes} bytes.",
    )


def too_large_body(limits: Limits) -> Refusal:
    """413, with the limit."""
    return Refusal(
        413, "request_too_large", f"The request body is larger than {limits.body_bytes} bytes, the limit."
    )


def too_slow(what: str, waited_s: float) -> Refusal:
    """408, with what was waited for."""
    return Refusal(408, "request_timeout", f"The {what} did not arrive within {waited_s:g} seconds.")


def malformed(status: int, reason: str) -> Refusal:
    """400 (or what the parser hints at) with the parser's reason."""
    return Refusal(status, "malformed_request", f"This is not a valid HTTP/1.1 request: {reason}.")
