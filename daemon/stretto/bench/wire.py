"""One streamed chat request as a stopwatch sees it, against any OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from stretto.errors import StrettoError

Chat = Sequence[Mapping[str, str]]


class BenchError(StrettoError):
    """A server did not do what was asked, so there is nothing to compare (``bench_failed``)."""

    code = "bench_failed"


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer.

    Attributes:
        sent_s: when the request went out; all times by the one monotonic clock.
        arrivals_s: when each piece of text came, in order; a piece may hold several tokens.
        ended_s: when the stream had ended.
        prompt_tokens, completion_tokens, cached_tokens: as the server counted them; ``cached_tokens`` is None if it does not say.
        text: the answer.
    """

    sent_s: float
    arrivals_s: tuple[float, ...]
    ended_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    text: str

    @property
    def ttft_s(self) -> float:
        """Time to the first piece of text."""
        return self.arrivals_s[0] - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between pieces."""
        return [later - earlier for earlier, later in zip(self.arrivals_s, self.arrivals_s[1:], strict=False)]

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens after the first piece, by the time they took."""
        span_s = self.arrivals_s[-1] - self.arrivals_s[0]
        return (self.completion_tokens - 1) / span_s if span_s > 0 else 0.0


class Wire:
    """Asks one server.

    Args:
        http: its base URL is the server's, without ``/v1``.
        model: the id to ask for.
        clock: monotonic seconds.
        restart: stops the server and starts it again; None for one that runs by itself.
    """

    def __init__(
        self,
        http: httpx2.AsyncClient,
        model: str,
        clock: Callable[[], float],
        restart: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._http = http
        self._model = model
        self._restart = restart
        self.clock = clock

    async def restart(self) -> None:
        """Stop the server, start it again, and wait until it answers. Raises BenchError, for one that was not started here too."""
        if self._restart is None:
            raise BenchError(f"{self._http.base_url} was not started here, so it cannot be started again.")
        await self._restart()

    async def chat(
        self,
        messages: Chat,
        *,
        max_tokens: int,
        on_first: Callable[[], None] = lambda: None,
        arrivals: list[float] | None = None,
    ) -> Sample:
        """Send a greedy request whose answer has just ``max_tokens`` tokens, and read it to its end.

        ``on_first`` is called when the first piece of text has come; ``arrivals`` gets the time of each piece at once, for a caller
        that cancels before the end.

        Raises:
            BenchError: the server refused, failed, sent no text, or did not count.
        """
        body = {
            "model": self._model,
            "messages": list(messages),
            "temperature": 0,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        arrivals = [] if arrivals is None else arrivals
        pieces: list[str] = []
        usage: Mapping[str, Any] = {}
        failure: object = None
        sent_s = self.clock()
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    shown = (await response.aread())[:300].decode("utf-8", "replace")
                    raise BenchError(
                        f"{self._http.base_url} answered {response.status_code} to a chat request: {shown}"
                    )
                async for event in _events(response):  # to the end, whatever comes
                    failure = event.get("error", failure)
                    usage = event.get("usage") or usage
                    for choice in event.get("choices", ()):
                        delta = choice.get("delta", {})
                        text = (delta.get("content") or "") + (delta.get("reasoning_content") or "")
                        if text:
                            arrivals.append(self.clock())
                            pieces.append(text)
                            if len(arrivals) == 1:
                                on_first()
        except httpx2.HTTPError as error:
            raise BenchError(
                f"{self._http.base_url} could not be asked: {str(error) or type(error).__name__}"
            ) from error
        if failure is not None:
            raise BenchError(f"{self._http.base_url} failed in a stream: {str(failure)[:300]}")
        if not arrivals or not usage:
            missing = "no text" if not arrivals else "no usage"
            raise BenchError(f"{self._http.base_url} sent {missing} in a stream.")
        details = usage.get("prompt_tokens_details") or {}
        return Sample(
            sent_s,
            tuple(arrivals),
            self.clock(),
            int(usage["prompt_tokens"]),
            int(usage["completion_tokens"]),
            details.get("cached_tokens"),
            "".join(pieces),
        )


async def model_of(http: httpx2.AsyncClient) -> str:
    """The id of the first model that a server lists.

    Raises:
        BenchError: it cannot be reached, or lists none.
    """
    try:
        response = await http.get("/v1/models")
        return str(response.raise_for_status().json()["data"][0]["id"])
    except (httpx2.HTTPError, LookupError, ValueError, TypeError) as error:
        raise BenchError(
            f"{http.base_url}/v1/models gives no model: {str(error) or type(error).__name__}.",
            remedy="Is the server running, and is this its base URL, without /v1?",
        ) from error


async def _events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event but the closing ``[DONE]``."""
    async for line in response.aiter_lines():
        if line.startswith("data:"):
            data = line[5:].strip()
            if data != "[DONE]":
                yield json.loads(data)
        elif line.startswith("error:"):
            yield {"error": line[6:]}
