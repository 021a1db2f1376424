"""What is measured: each work asks one server once and gives its figures."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Literal

import trio

from stretto.bench.prompts import Prompts
from stretto.bench.wire import BenchError, Sample, Wire

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a work: its name, its unit, and which way is better."""

    name: str
    unit: str
    better: Better


Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """What one run of a work gave: values by figure, and the token counts that servers must agree in."""

    values: Values
    prompt_tokens: tuple[int, ...]
    completion_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work.

    Attributes:
        name: as it is asked for.
        figures: what it measures.
        run: does it once; the name makes its prompts differ from those of every other run.
        context_tokens: the longest prompt and answer together.
        same_prompts: whether every server gets the same token counts; not so where a server's own answers are sent back to it.
        restarts: whether it stops the servers and starts them again, so that they must have been started here.
    """

    name: str
    figures: tuple[Figure, ...]
    run: Callable[[Wire, Prompts, str], Awaitable[Trial]]
    context_tokens: int
    same_prompts: bool = True
    restarts: bool = False


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def worst_gap_s(arrivals_s: Sequence[float], since_s: float, until_s: float) -> float:
    """The longest silence of a stream that touches a span of time; one that still lasts at its end counts up to there."""
    ends = [*arrivals_s, *([until_s] if not arrivals_s or arrivals_s[-1] < until_s else [])]
    pairs = itertools.pairwise(ends)
    return max(
        (later - earlier for earlier, later in pairs if later > since_s and earlier < until_s), default=0.0
    )


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _trial(values: Values, samples: Sequence[Sample], *, asked: int | None = None) -> Trial:
    if asked is not None:
        short = [sample.completion_tokens for sample in samples if sample.completion_tokens != asked]
        if short:
            raise BenchError(
                f"An answer had {short[0]} tokens where {asked} were asked for with ignore_eos.",
                remedy="The server must honour ignore_eos and max_tokens, or its figures mean something else.",
            )
    return Trial(
        values,
        tuple(sample.prompt_tokens for sample in samples),
        tuple(sample.completion_tokens for sample in samples),
    )


def _decode(name: str, prompt_tokens: int, new_tokens: int) -> Work:
    async def run(wire: Wire, prompts: Prompts, seed: str) -> Trial:
        sample = await wire.chat(_user(prompts.text(seed, prompt_tokens)), max_tokens=new_tokens)
        return _trial({"decode": sample.decode_tokens_per_s}, [sample], asked=new_tokens)

    return Work(name, (Figure("decode", "tokens/s", "higher"),), run, prompt_tokens + new_tokens)


def _prefill(tokens: int) -> Work:
    async def run(wire: Wire, prompts: Prompts, seed: str) -> Trial:
        sample = await wire.chat(_user(prompts.text(seed, tokens)), max_tokens=1)
        return _trial(
            {"prefill": sample.prompt_tokens / sample.ttft_s, "ttft": sample.ttft_s}, [sample], asked=1
        )

    figures = (Figure("prefill", "tokens/s", "higher"), Figure("ttft", "s", "lower"))
    return Work(f"prefill-{tokens}", figures, run, tokens + 1)


def _streams(count: int, *, prompt_tokens: int = 70, new_tokens: int = 96) -> Work:
    async def run(wire: Wire, prompts: Prompts, seed: str) -> Trial:
        samples: list[Sample] = []

        async def one(number: int) -> None:
            text = prompts.text(f"{seed}/{number}", prompt_tokens)
            samples.append(await wire.chat(_user(text), max_tokens=new_tokens))

        began_s = wire.clock()
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, number)
        total = sum(sample.completion_tokens for sample in samples)
        values = {
            "all": total / (wire.clock() - began_s),
            "ttft p50": median(sample.ttft_s for sample in samples),
        }
        samples.sort(key=lambda sample: sample.prompt_tokens)
        return _trial(values, samples, asked=new_tokens)

    figures = (Figure("all", "tokens/s", "higher"), Figure("ttft p50", "s", "lower"))
    return Work(f"streams-{count}", figures, run, prompt_tokens + new_tokens)


def _turns(conversations: int, turns: int, *, question_tokens: int = 130, new_tokens: int = 64) -> Work:
    async def run(wire: Wire, prompts: Prompts, seed: str) -> Trial:
        histories: list[list[dict[str, str]]] = [[] for _ in range(conversations)]
        samples: list[Sample] = []
        later: list[Sample] = []
        for turn in range(turns):
            for number, history in enumerate(histories):
                question = prompts.text(f"{seed}/{number}/{turn}", question_tokens)
                history.append({"role": "user", "content": question})
                sample = await wire.chat(history, max_tokens=new_tokens)
                history.append({"role": "assistant", "content": sample.text})
                samples.append(sample)
                if turn:
                    later.append(sample)
        values = {
            "later ttft p50": median(sample.ttft_s for sample in later),
            "later ttft p90": percentile([sample.ttft_s for sample in later], 0.9),
        }
        return _trial(values, samples)

    figures = (Figure("later ttft p50", "s", "lower"), Figure("later ttft p90", "s", "lower"))
    longest = turns * (question_tokens + new_tokens + 20)
    return Work("turns", figures, run, longest, same_prompts=False)


def _stall(streams: int, *, long_tokens: int = 4800, new_tokens: int = 600) -> Work:
    async def run(wire: Wire, prompts: Prompts, seed: str) -> Trial:
        """The streams run until the long prompt has its answer; then they are left, as a client leaves."""
        started = trio.Semaphore(0)
        arrivals: dict[int, list[float]] = {number: [] for number in range(streams)}

        async with trio.open_nursery() as nursery:
            for number in range(streams):
                nursery.start_soon(
                    partial(
                        wire.chat,
                        _user(prompts.text(f"{seed}/{number}", 70)),
                        max_tokens=new_tokens,
                        on_first=started.release,
                        arrivals=arrivals[number],
                    )
                )
            for _ in range(streams):
                await started.acquire()
            sample = await wire.chat(_user(prompts.text(f"{seed}/long", long_tokens)), max_tokens=8)
            nursery.cancel_scope.cancel()
        worst_s = max(worst_gap_s(times, sample.sent_s, sample.arrivals_s[0]) for times in arrivals.values())
        return _trial({"worst itl": worst_s, "long ttft": sample.ttft_s}, [sample], asked=8)

    figures = (Figure("worst itl", "s", "lower"), Figure("long ttft", "s", "lower"))
    return Work("stall", figures, run, long_tokens + 8)


def _restart(history_tokens: int, *, question_tokens: int = 40, new_tokens: int = 16) -> Work:
    async def run(wire: Wire, prompts: Prompts, seed: str) -> Trial:
        history = _user(prompts.text(f"{seed}/history", history_tokens))
        answer = await wire.chat(history, max_tokens=new_tokens)
        history.append({"role": "assistant", "content": answer.text})
        history += _user(prompts.text(f"{seed}/question", question_tokens))
        await wire.restart()
        sample = await wire.chat(history, max_tokens=new_tokens)
        return _trial({"first ttft": sample.ttft_s}, [answer, sample], asked=new_tokens)

    return Work(
        "restart",
        (Figure("first ttft", "s", "lower"),),
        run,
        history_tokens + question_tokens + 2 * new_tokens + 40,
        same_prompts=False,
        restarts=True,
    )


def _mixed(requests: int, rate_per_s: float) -> Work:
    async def run(wire: Wire, prompts: Prompts, seed: str) -> Trial:
        """Poisson arrivals: short questions, now and then a long document. The draw is the same for every server."""
        chance = random.Random(seed)
        samples: list[tuple[int, Sample]] = []

        async def one(number: int, prompt_tokens: int, new_tokens: int) -> None:
            text = prompts.text(f"{seed}/{number}", prompt_tokens)
            samples.append((number, await wire.chat(_user(text), max_tokens=new_tokens)))

        began_s = wire.clock()
        async with trio.open_nursery() as nursery:
            for number in range(requests):
                long = chance.random() < 0.2
                nursery.start_soon(
                    one, number, 1000 if long else chance.randrange(60, 200), chance.randrange(16, 96)
                )
                await trio.sleep(chance.expovariate(rate_per_s))
        in_order = [sample for _, sample in sorted(samples, key=lambda pair: pair[0])]
        ttfts = [sample.ttft_s for sample in in_order]
        gaps = [gap for sample in in_order for gap in sample.gaps_s]
        values = {
            "ttft p50": percentile(ttfts, 0.5),
            "ttft p90": percentile(ttfts, 0.9),
            "itl p50": percentile(gaps, 0.5),
            "itl p99": percentile(gaps, 0.99),
            "all": sum(sample.completion_tokens for sample in in_order) / (wire.clock() - began_s),
        }
        return _trial(values, in_order)

    figures = (
        Figure("ttft p50", "s", "lower"),
        Figure("ttft p90", "s", "lower"),
        Figure("itl p50", "s", "lower"),
        Figure("itl p99", "s", "lower"),
        Figure("all", "tokens/s", "higher"),
    )
    return Work("mixed", figures, run, 1100)


WORKS: tuple[Work, ...] = (
    _decode("decode", 64, 128),
    _decode("decode-1000", 1000, 64),
    _streams(8),
    _streams(16),
    _prefill(512),
    _prefill(2048),
    _turns(12, 10),
    _stall(4),
    _mixed(24, 1.5),
    _restart(4000),
)
"""Every work, in the order in which it runs and is reported."""
