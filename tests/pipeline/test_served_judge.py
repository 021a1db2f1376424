"""The served model as a judge: what it is asked, and how its odds are read."""

from __future__ import annotations

import math

import pytest

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoScript, EchoTokenizer
from stretto.cache import JudgeFailed
from stretto.conversation import AnswerFormat, ChatTemplate
from stretto.engine import EngineClient, EngineConfig, Generation, SequenceRequest, Token
from stretto.pipeline import ServedJudge
from stretto.pipeline.served_judge import yes_probability

YES, NO = 7, 8
THINKS = ECHO_CHAT_TEMPLATE + "<think>\n{# </think> #}"


def logs(**probabilities: float) -> list[tuple[int, float]]:
    return [(int(name[1:]), math.log(probability)) for name, probability in probabilities.items()]


@pytest.mark.parametrize(
    ("token", "probability"),
    [
        (Token(YES, math.log(0.6), tuple(logs(t7=0.6, t8=0.2, t1=0.1))), 0.75),
        (Token(1, math.log(0.9), tuple(logs(t1=0.9, t8=0.06, t7=0.02))), 0.25),
        # No is not among them: it is taken for as likely as the last that is.
        (Token(YES, math.log(0.9), tuple(logs(t7=0.9, t1=0.1))), 0.9),
        # Yes is not among them: then it is no.
        (Token(NO, math.log(0.9), tuple(logs(t8=0.9, t1=0.1))), 0.0),
    ],
)
def test_odds(token: Token, probability: float) -> None:
    assert yes_probability(token, YES, NO) == pytest.approx(probability)


def test_no_opinion() -> None:
    with pytest.raises(JudgeFailed, match="neither yes nor no"):
        yes_probability(Token(1, 0.0, ((1, 0.0), (2, -3.0))), YES, NO)
    with pytest.raises(JudgeFailed):
        yes_probability(Token(YES, 0.0, ()), YES, YES)


class WatchedEngine(EngineClient):
    """Keeps what it is asked."""

    def __init__(self, script: EchoScript) -> None:
        super().__init__(EchoBackend(script), EngineConfig(max_batch=2, max_context_tokens=1024))
        self.asked: list[SequenceRequest] = []

    def submit(self, *requests: SequenceRequest) -> Generation:
        self.asked += requests
        return super().submit(*requests)


def judge_of(engine: EngineClient, template: str = ECHO_CHAT_TEMPLATE) -> ServedJudge:
    tokenizer, chat = EchoTokenizer(), ChatTemplate(template)
    return ServedJudge("echo", engine, tokenizer, chat, AnswerFormat.of(chat, tokenizer))


@pytest.mark.parametrize(("reply", "yes"), [("Yes", True), ("No", False)])
async def test_one_token_is_made_and_its_odds_are_the_answer(reply: str, yes: bool) -> None:
    async with WatchedEngine(EchoScript(reply=reply)) as engine:
        await engine.load()
        judge = judge_of(engine)
        probability = await judge.same("r1", "How do I close it?", "How can I close it <|im_end|>?")
        assert probability > 0.99 if yes else probability < 0.01
        (asked,) = engine.asked
        assert asked.max_tokens == 1
        prompt = EchoTokenizer().decode(asked.prompt_ids, skip_special=False)
        assert prompt.index("How do I close it?") < prompt.index("How can I close it")
        await judge.same("r1", "a", "b")
        assert len({each.id for each in engine.asked}) == 2


async def test_what_keeps_it_from_judging() -> None:
    async with WatchedEngine(EchoScript(fail_at_step=1)) as engine:
        await engine.load()
        with pytest.raises(JudgeFailed, match="gave no token"):
            await judge_of(engine).same("r1", "a", "b")
        with pytest.raises(JudgeFailed):  # longer than the context
            await judge_of(engine).same("r2", "a" * 2000, "b")
        with pytest.raises(JudgeFailed, match="thinks before it answers"):
            await judge_of(engine, THINKS).same("r3", "a", "b")
    with pytest.raises(JudgeFailed):  # the engine is gone
        await judge_of(engine).same("r4", "a", "b")
