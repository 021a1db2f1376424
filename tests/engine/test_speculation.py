"""Answers that get on by drafts are the ones that would have come without; over the echo backend, which finds every stale block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.backends.base import Chunk, Float32Array
from stretto.backends.echo import EchoBackend, EchoScript
from stretto.conversation.messages import SamplingParams
from stretto.engine import EngineConfig, Outcome, Phase, SequenceRequest, Token
from stretto.errors import EngineError
from support.engine_echo import TOKENIZER, chat_ids, dialogue_ids
from support.engine_harness import GREEDY, Bench, check_blocks, request

ON = EngineConfig(speculation=True, block_tokens=5, kv_cache_bytes=64_000)
OFF = replace(ON, speculation=False)
TEXTS = [
    "hello",
    "",
    "zwölf Boxkämpfer 🥊",
    "x" * 300,
    "a b c " * 20,
    "\n\n",
    "the last of them, " * 4,
    "y" * 77,
]


def run(bench: Bench, *asked: SequenceRequest) -> Bench:
    """Run these to their ends, looking at the blocks now and then."""
    for one in asked:
        bench.submit(one)
    while bench.stepper.scheduler.busy:
        bench.step()
        if bench.stepper.steps % 7 == 0:
            check_blocks(bench)
    check_blocks(bench)
    return bench


def ends(bench: Bench) -> dict[str, tuple[list[Token], Phase, str | None, int]]:
    """All that must not depend on drafts."""
    found = {}
    for name, heard in bench.heard.items():
        outcome: Outcome = heard.outcome
        found[name] = heard.tokens, outcome.phase, outcome.reason, outcome.completion_tokens
    return found


@pytest.mark.parametrize(
    "script", [EchoScript(), EchoScript(layer_groups=3), EchoScript(layer_groups=2, window_tokens=20)]
)
@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_a_batch_answers_as_without(script: EchoScript, chunk: int) -> None:
    asked = [request(str(number), text) for number, text in enumerate(TEXTS)]
    with_drafts = run(Bench(script, replace(ON, prefill_chunk_tokens=chunk)), *asked)
    assert ends(with_drafts) == ends(run(Bench(script, replace(OFF, prefill_chunk_tokens=chunk)), *asked))
    assert with_drafts.blocks_used == 0
    stepper = with_drafts.stepper
    assert stepper.accepted_tokens > 200 if chunk > 1 else stepper.accepted_tokens == 0


def test_a_copied_answer_takes_a_fraction_of_the_steps() -> None:
    text = "Every word of this has been said before, and is said again now. " * 6
    drafted, plain = run(Bench(None, ON), request("s", text)), run(Bench(None, OFF), request("s", text))
    assert ends(drafted) == ends(plain)
    assert drafted.stepper.steps * 8 < plain.stepper.steps
    last = drafted.heard["s"].updates[-1]
    assert last.accepted_tokens == drafted.stepper.accepted_tokens > 0.9 * len(text)
    # Every token that was computed either is in the answer or was rejected.
    assert sum(len(update.tokens) for update in drafted.heard["s"].updates) == len(text) + 1


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(alphabet="ab ", max_size=60),
    max_tokens=st.integers(1, 70),
    peak=st.sampled_from([20.0, 3.0, 1.0]),
    sampling=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_p=st.sampled_from([1.0, 0.9]),
        top_k=st.sampled_from([0, 5]),
        frequency_penalty=st.sampled_from([0.0, 0.4]),
        repetition_penalty=st.sampled_from([1.0, 1.2]),
        seed=st.integers(0, 5),
    ),
)
def test_a_seed_draws_the_same(text: str, max_tokens: int, peak: float, sampling: SamplingParams) -> None:
    asked = request("s", text, max_tokens=max_tokens, sampling=sampling, logprobs=2)
    script = EchoScript(peak=peak, repeat=3)
    assert ends(run(Bench(script, ON), asked)) == ends(run(Bench(script, OFF), asked))


def test_the_answer_ends_at_max_tokens_and_no_block_beyond_is_asked_for() -> None:
    for most in range(1, 40):
        bench = run(
            Bench(None, replace(ON, max_context_tokens=100, kv_cache_bytes=800)),
            request("s", "abc" * 10, max_tokens=most),
        )
        outcome = bench.heard["s"].outcome
        assert outcome.completion_tokens == min(most, 31)
        assert outcome.reason == ("length" if most < 31 else "stop")


def test_what_was_drafted_wrongly_is_in_no_block_that_others_are_given() -> None:
    """The answer leaves its own pattern; who sends it back finds its true text in the cache."""
    bench = Bench(EchoScript(reply="abcabcabcabcabcabcabcabX" * 3), ON)
    run(bench, request("first", "question"))
    said = bench.heard["first"].text
    assert bench.stepper.rejected_tokens > 0
    follow = dialogue_ids([("question", said)], "and then?")
    run(bench, request("second", prompt_ids=follow))
    assert bench.heard["second"].text == said  # echo reads each position of its prompt from the blocks
    assert bench.heard["second"].outcome.cached_tokens >= len(chat_ids("question")) + len(said) - 6


def test_predicted_text_is_drafted_from() -> None:
    script = EchoScript(reply="def area(width, height):\n    return width * height\n")
    asked = request("s", "Rename it.")
    plain = run(Bench(script, ON), asked)
    predicted = replace(
        asked,
        predicted_ids=TOKENIZER.encode(
            "def size(width, height):\n    return width * height\n", allow_special=False
        ),
    )
    helped = run(Bench(script, ON), predicted)
    assert ends(helped) == ends(plain)
    assert helped.stepper.accepted_tokens > 2 * plain.stepper.accepted_tokens
    assert helped.stepper.steps < plain.stepper.steps


@dataclass
class Spelled:
    """A constraint that allows one text, then breaks."""

    text: str
    said: int = 0

    def allowed(self) -> npt.NDArray[np.intp]:
        if self.said == len(self.text):
            raise EngineError("The constraint cannot go on.", code="constraint_failed")
        return np.array([ord(self.text[self.said])], dtype=np.intp)

    def accept(self, token_id: int) -> None:
        assert token_id == ord(self.text[self.said])
        self.said += 1


@pytest.mark.parametrize("length", range(40, 60))
def test_a_constraint_that_fails_in_a_draft_ends_the_sequence_with_all_before_it(length: int) -> None:
    text = ("abcdefgh" * 10)[:length]
    bench = Bench(None, ON)
    sequence = bench.submit(request("s", "x"))
    sequence.sampler._constraint = Spelled(text)
    sequence.sampler.constrained = True
    sequence.sampler.plain = False
    bench.run()
    heard = bench.heard["s"]
    assert heard.text == text
    assert heard.outcome.phase is Phase.FAILED
    assert heard.outcome.error is not None
    assert heard.outcome.error.code == "constraint_failed"
    assert bench.stepper.accepted_tokens > 0


def test_logits_that_are_not_finite_behind_a_draft_fail_the_sequence_with_nothing_wrong_said() -> None:
    for step in range(2, 6):
        bench = Bench(EchoScript(nan_at_step=step), ON)
        bench.submit(request("s", "abcd" * 20))
        bench.run()
        heard = bench.heard["s"]
        assert heard.outcome.phase is Phase.FAILED
        assert ("abcd" * 20).startswith(heard.text)


def test_prompts_that_are_read_have_the_step_to_themselves() -> None:
    bench = Bench(None, replace(ON, prefill_chunk_tokens=16))
    bench.submit(request("one", "abc" * 60))
    for _ in range(20):
        bench.step()
    accepted = bench.stepper.accepted_tokens
    bench.submit(request("two", "z" * 200))
    told = []
    while bench.stepper.scheduler.reading() or bench.stepper.scheduler.queued:
        told += [len(update.tokens) for update in bench.step() if update.id == "one"]
    assert set(told) == {1}
    assert bench.stepper.accepted_tokens == accepted
    bench.run()
    assert (bench.heard["one"].text, bench.heard["two"].text) == ("abc" * 60, "z" * 200)


def test_rows_that_cost_as_much_as_steps_are_not_spent_on_guesses() -> None:
    """With a step that takes as long as it has tokens, drafts bring nothing: they are soon left alone."""
    bench = Bench(EchoScript(decode_delay_s=0.01), ON)
    bench.submit(request("s", "abcd" * 100))
    for _ in range(60):
        bench.step()
    tried = bench.stepper.accepted_tokens + bench.stepper.rejected_tokens
    bench.run()
    assert bench.stepper.accepted_tokens + bench.stepper.rejected_tokens <= tried + 10
    assert bench.heard["s"].text == "abcd" * 100


def test_sampled_and_greedy_answers_share_a_step() -> None:
    asked = [
        request("greedy", "one two three " * 5, sampling=GREEDY),
        request("drawn", "four five six " * 5, sampling=SamplingParams(seed=4), logprobs=1),
    ]
    assert ends(run(Bench(EchoScript(peak=9.0), ON), *asked)) == ends(
        run(Bench(EchoScript(peak=9.0), OFF), *asked)
    )


class Blind(EchoBackend):
    """Knows nothing of what follows a draft's last token."""

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        logits = super().forward(batch)
        ends = np.cumsum([chunk.logit_rows for chunk in batch])
        for chunk, end in zip(batch, ends, strict=True):
            if chunk.logit_rows > 1:
                logits[end - 1] = np.nan
        return logits


def test_what_follows_a_right_draft_is_asked_again_where_it_is_not_finite() -> None:
    bench = Bench(None, ON)
    bench.stepper._backend = blind = Blind(wait=bench.clock.wait)
    blind.load(lambda phase, fraction: None)
    blind.allocate(bench.facts.kv)
    bench.submit(request("s", "abcd" * 20))
    bench.run()
    assert bench.heard["s"].text == "abcd" * 20
    assert bench.stepper.accepted_tokens > 40
