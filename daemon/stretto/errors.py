"""Errors that reach a caller: types with a stable code, an HTTP status and a remedy.

Everything that can be refused is refused by raising one of these. Dialects translate them into their own envelope;
clientlib rebuilds them from that envelope. A code, once published, never changes its meaning.
"""

from __future__ import annotations

_FINAL_CODES = frozenset({"grammar_stuck", "grammar_too_complex", "constraint_failed"})
"""Failures of ours that would happen again."""


class StrettoError(Exception):
    """Base of every error that a caller may see.

    Attributes:
        code: stable machine-readable name, e.g. ``context_length_exceeded``.
        status: HTTP status that carries it.
        message: one or two sentences for a person; names the field, the value and what is allowed.
        param: the request field (dotted path) at fault, or None.
        remedy: what the caller can do about it, or None when the message says it.
        retry_after_s: seconds after which a retry makes sense, or None.
    """

    code: str = "internal_error"
    status: int = 500

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int | None = None,
        param: str | None = None,
        remedy: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.remedy = remedy
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status

    @property
    def retryable(self) -> bool:
        """Whether the same request, sent again a little later, may well be answered."""
        return self.retry_after_s is not None or (self.status >= 500 and self.code not in _FINAL_CODES)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}" if self.remedy else self.message


class InvalidRequest(StrettoError):
    """The request is at fault: 400 unless told otherwise.

    Codes in use: ``invalid_json``, ``invalid_request_body``, ``unknown_parameter``, ``unsupported_value``,
    ``invalid_value``, ``missing_parameter``, ``invalid_message``, ``unsupported_content``, ``template_error``.
    """

    code = "invalid_value"
    status = 400


class ContextLengthExceeded(InvalidRequest):
    """Prompt plus answer cannot fit the context that is really allocated. Nothing is ever cut to fit.

    Attributes:
        limit_tokens: what the context holds.
        prompt_tokens: what the prompt has.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        limit_tokens: int,
        prompt_tokens: int,
        param: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, param=param, remedy=remedy)
        self.limit_tokens = limit_tokens
        self.prompt_tokens = prompt_tokens


class AuthenticationError(StrettoError):
    """No key, or a wrong one."""

    code = "invalid_api_key"
    status = 401


class InsufficientCredits(StrettoError):
    """The caller's key cannot pay what the request may cost."""

    code = "insufficient_credits"
    status = 402


class Forbidden(StrettoError):
    """The caller may not do this (foreign Host header, foreign user on the socket)."""

    code = "forbidden"
    status = 403


class NotFound(StrettoError):
    """No such route, model or request (``not_found``, ``model_not_found``, ``request_not_found``)."""

    code = "not_found"
    status = 404


class QueueFull(StrettoError):
    """As many requests are waiting as the queue limit allows."""

    code = "queue_full"
    status = 429


class Unavailable(StrettoError):
    """The daemon is draining, or the engine is lost (``draining``, ``engine_unavailable``)."""

    code = "engine_unavailable"
    status = 503


class EngineError(StrettoError):
    """A step failed; the sequences in it end with this, the daemon lives on (``engine_error``, ``out_of_memory``)."""

    code = "engine_error"
    status = 500


class StoreError(StrettoError):
    """The store (the file of memories, cached answers and credits) cannot do this now; nothing of it was done.

    Codes in use: ``store_full`` (507), ``store_readonly``, ``store_busy`` (503), ``store_damaged``, ``store_io_error``,
    ``store_closed`` (503).
    """

    code = "store_io_error"
    status = 500


class StartupError(StrettoError):
    """The daemon cannot start: printed as one line, exit status 1.

    Codes in use: ``model_not_found``, ``model_invalid``, ``model_unsupported``, ``already_running``, ``bind_failed``,
    ``out_of_memory``, ``backend_unavailable``, ``download_failed``, ``checksum_mismatch``, ``store_damaged``, ``store_newer``,
    ``store_foreign``, ``store_not_found``, ``store_unusable``.
    """

    code = "startup_failed"
    status = 500


class SettingsError(StrettoError):
    """A setting is wrong: printed with the field, the value and what is allowed; exit status 2, before any load."""

    code = "invalid_setting"
    status = 400


class RequestCancelled(StrettoError):
    """The request was ended from outside (``DELETE /admin/requests/{id}``, or the daemon stopped).

    499 is deliberate: clients retry 409, 429 and 5xx by themselves, and a cancelled request must not come back.
    """

    code = "request_cancelled"
    status = 499
