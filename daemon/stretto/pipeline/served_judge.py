"""The served model as the cache's judge: it is asked yes or no, and nothing is generated but the one token whose odds are read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import trio

from stretto.cache import JudgeFailed
from stretto.conversation import AnswerFormat, ChatTemplate, Tokenizer, encode_chat
from stretto.conversation.messages import Message, Reasoning, Request, SamplingParams, TextPart
from stretto.engine import EngineClient, SequenceRequest, Token
from stretto.errors import StrettoError

_YES, _NO = "Yes", "No"
_ALTERNATIVES = 64
"""Most likely tokens that are looked through for the two; where one is not even among these, its odds are at most the last one's."""

_INSTRUCTIONS = (
    "You compare two questions. Say Yes if they ask for exactly the same thing, so that one answer is right for both. "
    "Say No if they differ in anything that matters: a name, a number, a time, a place, an opposite, a negation."
)


class ServedJudge:
    """See ``stretto.cache.Judge``.

    The instructions come first and are always the same, so the prefix cache has them after the first time.

    Args:
        name: of the model, for the status.
        engine: loaded and running.
        tokenizer, template, form: the model's own.
        render_threads: prompts rendered at once, off the loop.
    """

    def __init__(
        self,
        name: str,
        engine: EngineClient,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        form: AnswerFormat,
        *,
        render_threads: int = 2,
    ) -> None:
        self.name = name
        self._engine = engine
        self._tokenizer = tokenizer
        self._template = template
        self._form = form
        self._limiter = trio.CapacityLimiter(render_threads)
        self._tags = tuple(self._tag(text) for text in (_YES, _NO))
        self._calls = 0

    async def same(self, request_id: str, cached: str, asked: str) -> float:
        """See ``stretto.cache.Judge``."""
        try:
            prompt_ids = await trio.to_thread.run_sync(self._prompt, cached, asked, limiter=self._limiter)
            return await self._probability(request_id, prompt_ids)
        except StrettoError as error:  # it does not fit, or the engine is lost
            raise JudgeFailed(error.code) from error

    def _prompt(self, cached: str, asked: str) -> list[int]:
        question = (
            f"First question: {cached}\n\nSecond question: {asked}\n\n"
            f"Do both ask for exactly the same thing? Answer {_YES} or {_NO}."
        )
        request = Request(
            id="judge",
            model=self.name,
            messages=(
                Message("system", (TextPart(_INSTRUCTIONS),)),
                Message("user", (TextPart(question),)),
            ),
            reasoning=Reasoning(enabled=False),
        )
        ids = encode_chat(self._template, self._tokenizer, self._form.prepared(request))
        if self._form.thinking_after(ids, self._tokenizer) == "open":
            raise JudgeFailed("the model thinks before it answers")
        return ids

    async def _probability(self, request_id: str, prompt_ids: Sequence[int]) -> float:
        self._calls += 1
        generation = self._engine.submit(
            SequenceRequest(
                id=f"{request_id}-judge-{self._calls}",
                prompt_ids=prompt_ids,
                sampling=SamplingParams(temperature=0.0),
                max_tokens=1,
                logprobs=_ALTERNATIVES,
            )
        )
        tokens: list[Token] = []
        with generation:
            async for update in generation:
                tokens += update.tokens
        outcome = generation.outcome
        if not tokens or outcome is None or outcome.error is not None:
            raise JudgeFailed("the engine gave no token")
        return yes_probability(tokens[0], *self._tags)

    def _tag(self, text: str) -> int:
        ids = self._tokenizer.encode(text, allow_special=False)
        if not ids:
            raise ValueError(f"the vocabulary has no token for {text!r}")
        return ids[0]


def yes_probability(token: Token, yes_id: int, no_id: int) -> float:
    """How likely yes is, of yes and no.

    Args:
        token: chosen with alternatives.
        yes_id, no_id: tokens that the two begin with.

    Raises:
        JudgeFailed: the model has something else in mind than either.
    """
    found = dict(token.top)
    if token.logprob is not None:
        found[token.id] = token.logprob
    if yes_id == no_id or (yes_id not in found and no_id not in found):
        raise JudgeFailed("the model says neither yes nor no")
    least = min(found.values())
    # What is not among the alternatives is taken for as likely as the last of them: at worst a yes is doubted.
    return 1.0 / (1.0 + math.exp(found.get(no_id, least) - found.get(yes_id, least - 100.0)))
