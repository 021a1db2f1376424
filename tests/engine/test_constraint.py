"""A constraint has the first word on what may be drawn; the engine ends a sequence whose constraint cannot go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from stretto.backends.echo import EchoBackend, EchoScript, EchoTokenizer
from stretto.conversation import SamplingParams
from stretto.engine import EngineClient, Phase, SequenceRequest
from stretto.engine.sampler import SamplerState, sample
from stretto.errors import EngineError

NO_PROMPT = np.zeros(0, dtype=np.int32)
END = 258


class PanicException(BaseException):
    """As panics of Rust arrive in Python: by this name, and as no Exception."""


class Faulty:
    """A constraint with a bug: it raises at its ``place``-th token, when asked or when told, or allows what is no token."""

    def __init__(self, fault: BaseException | None, place: int, *, told: bool) -> None:
        self._fault, self._left, self._told = fault, place, told

    def allowed(self) -> npt.NDArray[np.intp]:
        if self._left == 1 and not self._told:
            if self._fault is None:
                return np.array([1 << 20], dtype=np.intp)
            raise self._fault
        return np.array([120], dtype=np.intp)

    def accept(self, token_id: int) -> None:
        if self._left == 1 and self._fault is not None:
            raise self._fault
        self._left -= 1


class Script:
    """Allows a set of tokens at each step; fails when there is none left."""

    def __init__(self, steps: Sequence[Sequence[int]]) -> None:
        self._steps = list(steps)
        self.drawn: list[int] = []

    def allowed(self) -> npt.NDArray[np.intp]:
        if len(self.drawn) == len(self._steps):
            raise EngineError("The constraint cannot go on.", code="constraint_failed")
        return np.array(self._steps[len(self.drawn)], dtype=np.intp)

    def accept(self, token_id: int) -> None:
        assert token_id in self._steps[len(self.drawn)]
        self.drawn.append(token_id)


def draw(
    row: npt.NDArray[np.float32], params: SamplingParams, allowed: Sequence[int], times: int
) -> list[int]:
    state = SamplerState(params, NO_PROMPT, row.size, Script([allowed] * times))
    tokens = [sample(row[None], [state], [None])[0] for _ in range(times)]
    return [token.id for token in tokens if token is not None]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 2.0},
        {"top_k": 3},
        {"top_k": 1000},
        {"top_p": 0.3},
        {"min_p": 0.9},
        {"top_k": 5, "top_p": 0.5, "min_p": 0.1},
        {"logit_bias": {7: 100.0}},
        {"frequency_penalty": 2.0, "presence_penalty": 2.0, "repetition_penalty": 5.0},
    ],
)
def test_only_allowed_tokens_are_drawn(params: dict[str, Any]) -> None:
    row = np.random.default_rng(1).normal(0, 3, 5000).astype(np.float32)
    row[7] = 50.0
    allowed = [3, 400, 4999]
    assert set(draw(row, SamplingParams(**params, seed=1), allowed, 200)) <= set(allowed)


def test_greedy_takes_the_best_of_the_allowed() -> None:
    row = np.array([5.0, 9.0, 7.0, 7.0, 1.0], dtype=np.float32)
    assert draw(row, SamplingParams(temperature=0), [0, 2, 3, 4], 1) == [2]


def test_the_distribution_is_that_of_the_allowed_alone() -> None:
    row = np.log(np.array([0.5, 0.1, 0.2, 0.2], dtype=np.float32))
    counts = Counter(draw(row, SamplingParams(seed=3), [1, 2], 6000))
    assert counts[1] / 6000 == pytest.approx(1 / 3, abs=0.03)
    # Nucleus and min-p look at the allowed ones too: the 0.5 that is not allowed takes no share of them.
    assert set(draw(row, SamplingParams(top_p=0.6, seed=3), [1, 2], 200)) == {2}
    assert set(draw(row, SamplingParams(min_p=0.45, seed=3), [1, 2], 200)) == {1, 2}


def test_logprobs_are_still_those_of_the_model() -> None:
    row = np.log(np.array([0.5, 0.125, 0.25, 0.125], dtype=np.float32))
    state = SamplerState(SamplingParams(temperature=0), NO_PROMPT, 4, Script([[1]]))
    token = sample(row[None], [state], [2])[0]
    assert token is not None
    assert token.id == 1
    assert token.logprob == pytest.approx(np.log(0.125), abs=1e-5)
    assert [index for index, _ in token.top] == [0, 2]


def test_rows_without_a_constraint_are_drawn_as_ever() -> None:
    rows = np.random.default_rng(2).normal(0, 1, (2, 300)).astype(np.float32)
    greedy = SamplingParams(temperature=0)
    states = [SamplerState(greedy, NO_PROMPT, 300), SamplerState(greedy, NO_PROMPT, 300, Script([[5, 6]]))]
    free, bound = sample(rows, states, [None, None])
    assert free is not None
    assert bound is not None
    assert free.id == rows[0].argmax()
    assert bound.id == 5 + rows[1, 5:7].argmax()


async def test_a_constraint_decides_the_answer_and_its_end() -> None:
    tokenizer = EchoTokenizer()
    prompt = tokenizer.encode(
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", allow_special=True
    )
    async with EngineClient(EchoBackend(EchoScript())) as client:
        await client.load()
        asked = [
            SequenceRequest(name, prompt, SamplingParams(), 9, tokenizer.end_ids, constraint=Script(steps))
            for name, steps in [("a", [[120], [121, 122], [END]]), ("b", [[120], [119]])]
        ]
        free = SequenceRequest("c", prompt, SamplingParams(temperature=0), 9, tokenizer.end_ids)
        tokens: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        generation = client.submit(*asked, free)
        async for update in generation:
            tokens[update.id].extend(token.id for token in update.tokens)
        assert tokens["a"][0] == 120
        assert tokens["a"][1] in (121, 122)
        assert tokens["a"][2:] == [END]
        assert generation.outcomes["a"].reason == "stop"
        # One that cannot go on fails by itself.
        assert tokens["b"] == [120, 119]
        failed = generation.outcomes["b"]
        assert failed.phase is Phase.FAILED
        assert failed.error is not None
        assert failed.error.code == "constraint_failed"
        assert bytes(tokens["c"][:-1]) == b"hello"
        assert client.stats().state == "ready"


FAULTS = {
    "asked": (ValueError("secret words"), False),
    "told": (KeyError("secret words"), True),
    "panic": (PanicException("secret words"), False),
    "panic when told": (PanicException("secret words"), True),
    "no token": (None, False),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("place", [1, 3])
async def test_a_constraint_that_breaks_ends_its_own_sequence_alone(
    name: str, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    fault, told = FAULTS[name]
    tokenizer = EchoTokenizer()
    prompt = tokenizer.encode(
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", allow_special=True
    )
    async with EngineClient(EchoBackend(EchoScript())) as client:
        await client.load()
        bad = SequenceRequest(
            "bad", prompt, SamplingParams(), 9, tokenizer.end_ids, constraint=Faulty(fault, place, told=told)
        )
        good = SequenceRequest(
            "good", prompt, SamplingParams(), 9, tokenizer.end_ids, constraint=Script([[120]] * 5 + [[END]])
        )
        free = SequenceRequest("free", prompt, SamplingParams(temperature=0), 9, tokenizer.end_ids)
        tokens: dict[str, list[int]] = {"bad": [], "good": [], "free": []}
        generation = client.submit(bad, good, free)
        async for update in generation:
            tokens[update.id].extend(token.id for token in update.tokens)
        assert tokens["bad"] == [120] * (place - 1)
        failed = generation.outcomes["bad"]
        assert failed.phase is Phase.FAILED
        assert failed.error is not None
        assert (failed.error.code, failed.error.status) == ("constraint_failed", 500)
        assert not failed.error.retryable
        assert tokens["good"] == [*[120] * 5, END]
        assert bytes(tokens["free"][:-1]) == b"hello"
        assert client.stats().failed_steps == 0
    assert "secret words" not in caplog.text + str(failed.error)
    assert "test_constraint.py" in caplog.text or fault is None


def test_a_fault_of_the_sampler_itself_is_no_sequence_s_own() -> None:
    row = np.zeros(5, dtype=np.float32)
    state = SamplerState(SamplingParams(logit_bias={9: 1.0}), NO_PROMPT, 5)
    with pytest.raises(IndexError):
        sample(row[None], [state], [None])
