"""The raw prompts of one request on their way through the engine."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.conversation import PromptEcho, TextAssembler, Tokenizer, encode_raw
from stretto.conversation.messages import Request
from stretto.engine import SequenceRequest, TokenConstraint
from stretto.pipeline.answer import sequence_id


class RawPrompts:
    """Tokenised prompts, each answered ``request.drawn`` times: the first prompt's answers, then the next one's.

    To make it takes its time: it belongs into a worker thread.

    Args:
        tokenizer: the model's own.
        request: one that has raw prompts.

    Raises:
        InvalidRequest: see ``encode_raw``.
    """

    def __init__(self, tokenizer: Tokenizer, request: Request) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._encoded = [encode_raw(tokenizer, prompt) for prompt in request.prompts]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each prompt."""
        return tuple(len(encoded.ids) for encoded in self._encoded)

    def sequence(
        self, index: int, *, max_tokens: Sequence[int], constraint: TokenConstraint | None
    ) -> SequenceRequest:
        """The ``index``-th sequence; ``max_tokens`` are those of each prompt."""
        request = self._request
        place, number = divmod(index, request.drawn)
        encoded = self._encoded[place]
        # Which of several answers is the best is told by their log-probabilities.
        logprobs = 0 if request.logprobs is None and request.drawn > request.n else request.logprobs
        return SequenceRequest(
            id=sequence_id(request.id, index),
            prompt_ids=encoded.ids,
            sampling=request.sampling_of(number),
            max_tokens=max_tokens[place],
            end_token_ids=frozenset() if request.ignore_eos else encoded.end_ids,
            logprobs=logprobs,
            extra_key=request.caller.tenant.encode(),
            constraint=constraint,
            prompt_logprobs=request.logprobs if request.prompts[place].echo else None,
            priority=request.priority,
        )

    def assembler(self, index: int) -> TextAssembler:
        """What makes text of the ``index``-th sequence. All of its tokens have entries: the dialect counts on it."""
        return TextAssembler(
            self._tokenizer,
            index=index,
            stop=self._request.stop,
            logprobs=self._request.logprobs is not None,
            controls=True,
        )

    def echo(self, index: int) -> PromptEcho | None:
        """What begins the ``index``-th answer, if it begins with its prompt."""
        place = index // self._request.drawn
        prompt = self._request.prompts[place]
        if not prompt.echo:
            return None
        return PromptEcho(
            self._tokenizer,
            index=index,
            prompt=prompt,
            encoded=self._encoded[place],
            logprobs=self._request.logprobs is not None,
        )
