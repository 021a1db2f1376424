"""The lines of a request's life and of the daemon's: counts, times and codes, never content."""

from __future__ import annotations

import logging
import re

from stretto.observe.line import Fields, Scalar

_WORD = re.compile(r"[A-Za-z0-9_.:+-]{1,128}")


def word(text: str) -> str:
    """An id or a code as it is; anything else might be content and becomes ``?``."""
    return text if _WORD.fullmatch(text) else "?"


def rate_per_s(tokens: int, seconds: float) -> float | None:
    """Tokens a second, or None when there is nothing to divide."""
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def emit(logger: logging.Logger, level: int, event: str, fields: Fields, text: str = "") -> None:
    """Log one structured line."""
    if logger.isEnabledFor(level):
        logger.log(level, event, extra={"event": event, "fields": fields, "text": text})


class LifecycleLog:
    """One line for each phase of a request.

    ``completed``, ``replayed``, ``cancelled`` and ``failed`` are the last of a request. Times are seconds. Ids, phases, codes and finish
    reasons are words; whatever is not shaped like one is not written.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger if logger is not None else logging.getLogger("stretto.requests")

    def accepted(self, request_id: str, *, stream: bool, choices: int, priority: str = "normal") -> None:
        """Parsed, and past the doorman. ``priority`` is written where it is not the usual one."""
        self._emit(
            logging.INFO,
            "accepted",
            request_id,
            stream=stream,
            choices=choices,
            priority=None if priority == "normal" else word(priority),
        )

    def queued(self, request_id: str, *, prompt_tokens: int, max_tokens: int) -> None:
        """Tokenised, fits the context, handed to the engine."""
        self._emit(logging.INFO, "queued", request_id, prompt_tokens=prompt_tokens, max_tokens=max_tokens)

    def prefilling(self, request_id: str, *, prompt_tokens: int, queued_s: float) -> None:
        """The engine takes in the prompt."""
        self._emit(logging.INFO, "prefilling", request_id, prompt_tokens=prompt_tokens, queued_s=queued_s)

    def generating(
        self, request_id: str, *, prompt_tokens: int, cached_tokens: int, prefill_s: float
    ) -> None:
        """The first token is there."""
        self._emit(
            logging.INFO,
            "generating",
            request_id,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            prefill_s=prefill_s,
        )

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
    ) -> None:
        """Answered. The first token comes out of the prefill, so decoding made one less than the answer has.

        ``cache_miss`` is where the prompt was not known any more and why, e.g. ``96:diverged``.
        """
        self._emit(
            logging.INFO,
            "completed",
            request_id,
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=completion_tokens,
            finish=word(finish_reason),
            queued_s=queued_s,
            prefill_s=prefill_s,
            decode_s=decode_s,
            prefill_tokens_per_s=rate_per_s(prompt_tokens - cached_tokens, prefill_s),
            decode_tokens_per_s=rate_per_s(completion_tokens - 1, decode_s),
            cache_miss=None if cache_miss is None else word(cache_miss),
        )

    def replayed(
        self, request_id: str, *, match: str, prompt_tokens: int, completion_tokens: int, after_s: float
    ) -> None:
        """Answered from the cache; ``match`` says how the answer was found, and the tokens are those that it once cost."""
        self._emit(
            logging.INFO,
            "replayed",
            request_id,
            match=word(match),
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            after_s=after_s,
        )

    def embedded(self, request_id: str, *, texts: int, prompt_tokens: int, after_s: float) -> None:
        """Vectors were computed; the one line of a request for them."""
        self._emit(
            logging.INFO, "embedded", request_id, texts=texts, prompt_tokens=prompt_tokens, after_s=after_s
        )

    def reranked(self, request_id: str, *, documents: int, prompt_tokens: int, after_s: float) -> None:
        """Documents were scored; the one line of a request for that."""
        self._emit(
            logging.INFO,
            "reranked",
            request_id,
            documents=documents,
            prompt_tokens=prompt_tokens,
            after_s=after_s,
        )

    def cancelled(self, request_id: str, *, phase: str, completion_tokens: int, after_s: float) -> None:
        """The client has gone, or someone ended it."""
        self._emit(
            logging.INFO,
            "cancelled",
            request_id,
            phase=word(phase),
            completion_tokens=completion_tokens,
            after_s=after_s,
        )

    def failed(self, request_id: str, *, phase: str, code: str, after_s: float) -> None:
        """Refused or broken; ``code`` is the error's stable code, its message goes to the client alone."""
        self._emit(logging.WARNING, "failed", request_id, phase=word(phase), code=word(code), after_s=after_s)

    def _emit(self, level: int, event: str, request_id: str, **fields: Scalar | None) -> None:
        shown: dict[str, Scalar] = {"id": word(request_id)}
        shown.update((name, value) for name, value in fields.items() if value is not None)
        emit(self._logger, level, event, shown)


class DaemonLog:
    """The daemon's own lines. Their values come from the settings and the machine, never from a client."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger if logger is not None else logging.getLogger("stretto.daemon")
        self._loading: tuple[str, int] | None = None

    def starting(self, **facts: Scalar) -> None:
        """Settings are good, nothing is loaded yet."""
        emit(self._logger, logging.INFO, "starting", facts)

    def loading(self, phase: str, fraction: float) -> None:
        """Progress of the load: a line for each new phase, and for each quarter of one. Any thread, any number of calls."""
        mark = (phase, int(max(0.0, min(1.0, fraction)) * 4))
        if mark != self._loading:
            self._loading = mark
            emit(self._logger, logging.INFO, "loading", {"phase": phase, "percent": mark[1] * 25})

    def ready(self, **facts: Scalar) -> None:
        """Bound and able to answer."""
        emit(self._logger, logging.INFO, "ready", facts)

    def draining(self, reason: str, **facts: Scalar) -> None:
        """No new work from now on."""
        emit(self._logger, logging.INFO, "draining", {"reason": reason, **facts})

    def stopped(self, **facts: Scalar) -> None:
        """The last line."""
        emit(self._logger, logging.INFO, "stopped", facts)

    def warning(self, text: str, **facts: Scalar) -> None:
        """Something that a person should know; a whole sentence."""
        emit(self._logger, logging.WARNING, "warning", facts, text)

    def error(self, text: str, **facts: Scalar) -> None:
        """Something that went wrong for the daemon as a whole; a whole sentence."""
        emit(self._logger, logging.ERROR, "error", facts, text)
