"""What is written down of a request as it goes."""

from __future__ import annotations

from typing import Protocol


class RequestLog(Protocol):
    """What the pipeline tells of a request as it goes; counts and times, never content."""

    def accepted(self, request_id: str, *, stream: bool, choices: int) -> None: ...
    def queued(self, request_id: str, *, prompt_tokens: int, max_tokens: int) -> None: ...
    def prefilling(self, request_id: str, *, prompt_tokens: int, queued_s: float) -> None: ...
    def generating(
        self, request_id: str, *, prompt_tokens: int, cached_tokens: int, prefill_s: float
    ) -> None: ...
    def completed(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
        finish_reason: str,
        queued_s: float,
        prefill_s: float,
        decode_s: float,
        cache_miss: str | None = None,
    ) -> None: ...
    def cancelled(self, request_id: str, *, phase: str, completion_tokens: int, after_s: float) -> None: ...
    def failed(self, request_id: str, *, phase: str, code: str, after_s: float) -> None: ...
