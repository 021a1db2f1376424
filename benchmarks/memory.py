"""What session memory costs when a session is large: python benchmarks/memory.py [--entries 100000]

Fills one session with exchanges of made-up words, distributed as words are in English (Zipf), and measures how fast they are recorded, how
large the file is, and how long a recall takes. Last, what a recall adds to a request: the echo backend answers the same question
with memory and without. Prints JSON.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import trio

from stretto.backends.echo import ECHO_CHAT_TEMPLATE, EchoBackend, EchoScript, EchoTokenizer
from stretto.conversation import Caller, ChatTemplate, MemoryMode, Message, Request, TextPart
from stretto.engine import EngineClient, EngineConfig
from stretto.memory import SCHEMA, SessionMemory
from stretto.memory.common_words import COMMON_WORDS
from stretto.observe import LifecycleLog
from stretto.pipeline import Admission, Pipeline, ServedModel
from stretto.store import Store

VOCABULARY = 60_000
WRITERS = 64


class Speaker:
    """Draws sentences: the commonest words are English ones that mean nothing, the others are made up."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        common = sorted(word for word in COMMON_WORDS if word.isascii())
        self._random.shuffle(common)
        syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]
        made = (
            "".join(parts) for length in (2, 3, 4) for parts in itertools.product(syllables, repeat=length)
        )
        rest = [word for word in itertools.islice(made, 3 * VOCABULARY) if word not in COMMON_WORDS]
        self._random.shuffle(rest)
        self._words = [*common[:150], *rest[: VOCABULARY - 150]]
        weights = itertools.accumulate(1 / (rank + 2.7) for rank in range(len(self._words)))
        self._cumulative = list(weights)

    def say(self, fewest: int, most: int) -> str:
        total = self._cumulative[-1]
        return " ".join(
            self._words[bisect.bisect(self._cumulative, self._random.random() * total)]
            for _ in range(self._random.randint(fewest, most))
        )


def percentiles(times_s: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(times_s, n=100, method="inclusive")
    return {f"p{cut}_ms": round(1000 * cuts[cut - 1], 3) for cut in (50, 90, 99)} | {
        "max_ms": round(1000 * max(times_s), 3)
    }


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


async def fill(memory: SessionMemory, speaker: Speaker, count: int) -> float:
    """Seconds that ``WRITERS`` tasks need for so many exchanges."""
    texts = [(speaker.say(5, 40), speaker.say(20, 150)) for _ in range(count)]
    left = iter(texts)

    async def record() -> None:
        for said, answered in left:
            await memory.record("", "default", said, answered)

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            nursery.start_soon(record)
    return time.perf_counter() - started


async def ask(pipeline: Pipeline, number: int, text: str, mode: MemoryMode) -> tuple[float, int]:
    """Seconds to the first event of an answer, and the tokens of its prompt."""
    request = Request(
        f"{mode}-{number}", "echo", (Message("user", (TextPart(text),)),), caller=Caller(memory=mode)
    )
    started = time.perf_counter()
    async with pipeline.answer(request) as answer:
        await anext(answer)
        first_s = time.perf_counter() - started
        async for _ in answer:
            pass
    return first_s, answer.prompt_tokens


async def compare(memory: SessionMemory, speaker: Speaker, requests: int) -> dict[str, object]:
    """The same questions with memory and without, in turns; the echo model reads at no cost, so what is left is the daemon's."""
    backend = EchoBackend(EchoScript(reply="yes", context_tokens=32_768))
    async with EngineClient(backend, EngineConfig(prefix_cache=False)) as engine:
        facts = await engine.load()
        pipeline = Pipeline(
            model=ServedModel("echo", (), 0, facts.max_context_tokens, "echo", "echo", "cpu", "int32"),
            engine=engine,
            tokenizer=EchoTokenizer(),
            template=ChatTemplate(ECHO_CHAT_TEMPLATE),
            admission=Admission(16, 4, waiting=engine.held_back),
            log=LifecycleLog(),
            memory=memory,
        )
        modes: tuple[MemoryMode, ...] = ("off", "read")
        times: dict[MemoryMode, list[float]] = {mode: [] for mode in modes}
        tokens: dict[MemoryMode, int] = dict.fromkeys(modes, 0)
        for number in range(requests):
            text = speaker.say(3, 60)
            for mode in modes:
                first_s, prompt_tokens = await ask(pipeline, number, text, mode)
                times[mode].append(first_s)
                tokens[mode] += prompt_tokens
    return {
        "first_event_without": percentiles(times["off"]),
        "first_event_with": percentiles(times["read"]),
        "characters_recalled": round((tokens["read"] - tokens["off"]) / requests),
    }


async def measure(directory: Path, count: int, recalls: int) -> dict[str, object]:
    speaker = Speaker(1)
    path = directory / "stretto.db"
    async with await Store.open(path, [SCHEMA]) as store:
        memory = SessionMemory(store, top_k=4, max_entries=count + 10_000)
        fill_s = await fill(memory, speaker, count)

        async def record() -> None:
            await memory.record("", "default", speaker.say(5, 40), speaker.say(20, 150))

        alone_s = [await timed(record) for _ in range(200)]
        times_s, cpu_s = [], time.process_time()
        for _ in range(recalls):
            question = speaker.say(3, 60)
            times_s.append(await timed(partial(memory.recall, "", "default", question)))
        cpu_s = time.process_time() - cpu_s
        document: dict[str, object] = {
            "entries": count,
            "recorded_per_s": round(count / fill_s),
            "record_alone": percentiles(alone_s),
            "recall": percentiles(times_s),
            "recall_cpu_ms": round(1000 * cpu_s / recalls, 3),
            "request": await compare(memory, speaker, min(recalls, 300)),
        }
    started = time.perf_counter()
    async with await Store.open(path, [SCHEMA]):
        document["open_s"] = round(time.perf_counter() - started, 3)
    document["file_bytes"] = path.stat().st_size
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--recalls", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(trio.run(measure, Path(directory), options.entries, options.recalls), indent=2))


if __name__ == "__main__":
    main()
