"""What every backend does under the engine, whoever computes: one test a capability, one column a backend.

The models are tiny and random. That a backend computes the right thing is shown in its own tests; here, that it does so in any
company, from any block, and whoever else came or went.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from stretto.backends.base import Backend, BackendFailure, BackendLost, Chunk, Float32Array, KVPlan
from stretto.conversation.constraint import Constraint
from stretto.conversation.messages import SamplingParams
from stretto.engine import Phase
from stretto.errors import Unavailable
from stretto.grammar import GrammarCompiler
from support.backend_driver import silent
from support.engine_harness import PATIENCE_S, Running
from support.shared_backends import BACKENDS, CONFIG, EXCUSED, Model, Watched, alone, asked

CREATIVE = SamplingParams(temperature=1.5, top_p=0.95, seed=11)


def texts(model: Model, ids: list[int]) -> bytes:
    return b"".join(model.tokenizer.token_bytes(token) for token in ids)


def test_scheduling(model: Model) -> None:
    """More requests than places, long and short: each gets the answer that it gets alone."""
    requests = [
        asked(str(number), prompt) for number, prompt in enumerate((*model.prompts, *model.prompts[:2]))
    ]
    wanted = [heard.ids for heard in alone(model, requests)]
    backend = Watched(model.make())
    with Running(backend, replace(CONFIG, prefix_cache=False)) as running:
        found = [running.submit(request) for request in requests]
        running.finish(found)
        assert running.engine.stats().kv_blocks_used == 0
    assert [heard.ids for heard in found] == wanted
    assert all(len(ids) == 6 for ids in wanted)
    assert len(backend.threads) == 1
    # Answers went on while a prompt was read, in pieces.
    assert any({1} < {tokens for _, tokens in batch} for batch in backend.batches)
    assert max(sum(tokens for _, tokens in batch if tokens > 1) for batch in backend.batches) <= 24
    assert max(len(batch) for batch in backend.batches) == 4


def test_cancel(model: Model) -> None:
    """Whoever leaves, reading, answering or waiting, is gone after the step, and nobody else notices."""
    requests = [asked(str(number), prompt, 6) for number, prompt in enumerate((*model.prompts, (5, 6, 7)))]
    wanted = [heard.ids for heard in alone(model, requests)]
    backend = Watched(model.make(), gated=True)
    with Running(backend, replace(CONFIG, max_batch=4)) as running:
        found = [running.submit(request) for request in requests]
        backend.wait_until_in_step()
        for _ in range(2):
            backend.let_on()
            backend.wait_until_in_step()
        running.engine.cancel("1")  # the long prompt, half read
        running.engine.cancel("4")  # which waits
        backend.let_on()
        running.finish([found[1], found[4]])
        backend.wait_until_in_step()
        running.engine.cancel("0")
        backend.let_on(100)
        running.finish(found)
        assert running.engine.stats().kv_blocks_used == 0
        backend.let_on(100)
        again = running.submit(replace(requests[1], id="again"))
        running.finish([again])
    assert {found[number].outcome.phase for number in (0, 1, 4)} == {Phase.CANCELLED}
    assert found[1].ids == found[4].ids == []
    assert found[0].ids == wanted[0][: len(found[0].ids)]
    assert [found[number].ids for number in (2, 3)] == [wanted[number] for number in (2, 3)]
    assert again.ids == wanted[1]


def test_prefix_reuse(model: Model) -> None:
    """Known text is taken over, from what has ended and from what runs, and changes no answer."""
    long = model.prompts[1]
    requests = [
        asked("first", long),
        asked("same", long),
        asked("longer", (*long[:50], 9, 8, 7, 6, 5, 4)),
        asked("other", model.prompts[3]),
    ]
    wanted = [heard.ids for heard in alone(model, requests)]
    with Running(model.make(), CONFIG) as running:
        running.finish([first := running.submit(requests[0])])
        rest = [running.submit(request) for request in requests[1:]]
        running.finish(rest)
        goes_on = asked("goes on", (*long, *first.ids[:-1], 9), 4)
        running.finish([follower := running.submit(goes_on)])
    assert [heard.ids for heard in (first, *rest)] == wanted
    assert first.outcome.cached_tokens == 0
    assert rest[0].outcome.cached_tokens == (len(long) - 1) // 8 * 8
    assert rest[1].outcome.cached_tokens == 48
    assert follower.outcome.cached_tokens >= len(long) // 8 * 8
    assert follower.ids == alone(model, [goes_on])[0].ids


def test_sharing_while_reading(model: Model) -> None:
    """Of prompts that begin alike and come together, one computes what they share."""
    long = model.prompts[1]
    requests = [asked(str(number), (*long[:56], number + 3)) for number in range(3)]
    wanted = [heard.ids for heard in alone(model, requests)]
    with Running(model.make(), CONFIG) as running:
        found = [running.submit(request) for request in requests]
        running.finish(found)
    assert [heard.ids for heard in found] == wanted
    assert sorted(heard.outcome.cached_tokens for heard in found) == [0, 56, 56]


def test_sampling(model: Model) -> None:
    """A seed gives the same answer in any company; bias, cuts and log-probabilities do what they say."""
    seeded = [
        asked(str(number), prompt, sampling=replace(CREATIVE, seed=number))
        for number, prompt in enumerate(model.prompts)
    ]
    wanted = [heard.ids for heard in alone(model, seeded)]
    prompt = model.prompts[0]
    end = min(model.tokenizer.end_ids)
    forced = SamplingParams(temperature=1.0, logit_bias={end: 100.0}, seed=1)
    with Running(model.make(), CONFIG) as running:
        found = [running.submit(request) for request in seeded]
        one = running.submit(asked("narrow", prompt, sampling=SamplingParams(temperature=2.0, top_k=1)))
        greedy = running.submit(asked("greedy", prompt, logprobs=3))
        biased = running.submit(asked("biased", prompt, sampling=forced, end=frozenset({end})))
        other = running.submit(asked("other", prompt, sampling=replace(CREATIVE, seed=99)))
        running.finish([*found, one, greedy, biased, other])
    assert [heard.ids for heard in found] == wanted
    assert one.ids == greedy.ids
    assert other.ids != found[0].ids
    assert (biased.ids, biased.outcome.reason) == ([end], "stop")
    for token in greedy.tokens:
        assert token.logprob is not None
        assert len(token.top) == 3
        assert token.top[0] == (token.id, token.logprob)
        assert sum(float(np.exp(logprob)) for _, logprob in token.top) <= 1 + 1e-6


def test_grammar(model: Model) -> None:
    """Answers that are held to something, beside others and beside one that is not."""
    compiler = GrammarCompiler(model.tokenizer)
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}, "tags": {"enum": ["red", "blue"]}},
        "required": ["ok", "tags"],
        "additionalProperties": False,
    }
    kinds = {
        "regex": Constraint("regex", "[ab]{3}!", "f"),
        "json_schema": Constraint("json_schema", json.dumps(schema), "f"),
        "choice": Constraint("choice", '["positive", "negative"]', "f"),
    }
    ends = model.tokenizer.end_ids
    free = asked("free", model.prompts[0])
    wanted = alone(model, [free])[0].ids
    with Running(model.make(), CONFIG) as running:
        found = {
            name: running.submit(
                asked(name, prompt, 60, sampling=CREATIVE, end=ends, constraint=compiler.compile(of).follow())
            )
            for (name, of), prompt in zip(kinds.items(), model.prompts, strict=False)
        }
        found["free"] = running.submit(free)
        running.finish(found.values())
    assert found["free"].ids == wanted
    answers = {name: texts(model, heard.ids).decode() for name, heard in found.items() if name != "free"}
    assert {found[name].outcome.reason for name in answers} == {"stop"}
    assert re.fullmatch("[ab]{3}!", answers["regex"])
    assert answers["choice"] in ("positive", "negative")
    value = json.loads(answers["json_schema"])
    assert set(value) == {"ok", "tags"}
    assert value["tags"] in ("red", "blue")


def test_stop(model: Model) -> None:
    """An answer ends with an end token, which is told, or at its length, and its company goes on."""
    requests = [asked(str(number), prompt, 8) for number, prompt in enumerate(model.prompts)]
    whole = [heard.ids for heard in alone(model, requests)]
    end = whole[1][4]
    with Running(model.make(), CONFIG) as running:
        found = [
            running.submit(
                replace(request, end_token_ids=frozenset({end}) if request.id == "1" else frozenset())
            )
            for request in requests
        ]
        short = running.submit(asked("short", model.prompts[3], 1))
        running.finish([*found, short])
    assert found[1].ids == whole[1][: whole[1].index(end) + 1]
    assert found[1].outcome.reason == "stop"
    assert [found[number].ids for number in (0, 2, 3)] == [whole[number] for number in (0, 2, 3)]
    assert (short.ids, short.outcome.reason) == (whole[3][:1], "length")


def test_scoring(model: Model) -> None:
    """The log-probabilities of a text that is read are those with which it was written."""
    prompt = model.prompts[3]
    written = alone(model, [asked("writes", prompt, 8, logprobs=1)])[0]
    with Running(model.make(), CONFIG) as running:
        running.finish(
            [reader := running.submit(asked("reads", (*prompt, *written.ids), 1, prompt_logprobs=1))]
        )
    read = [token for update in reader.updates for token in update.prompt]
    assert [token.id for token in read] == [*prompt, *written.ids]
    assert read[0].logprob is None
    scores = [token.logprob for token in read[len(prompt) :]]
    assert scores == pytest.approx([token.logprob for token in written.tokens], abs=2e-3)


def test_failing_steps(model: Model) -> None:
    """A step that fails ends who was in it; who comes next is served as ever."""

    class Failing(Watched):
        def forward(self, batch: Sequence[Chunk]) -> Float32Array:
            if len(self.batches) == 2:
                self.batches.append([])
                broken = replace(batch[0], block_tables=())
                return super().forward([broken, *batch[1:]])
            return super().forward(batch)

    request = asked("0", model.prompts[0])
    wanted = alone(model, [request])[0].ids
    with Running(Failing(model.make()), CONFIG) as running:
        running.finish([unlucky := running.submit(request)])
        running.finish([next_one := running.submit(request)])
        assert running.engine.stats().kv_blocks_used == 0
    assert unlucky.outcome.phase is Phase.FAILED
    assert unlucky.ids == wanted[: len(unlucky.ids)]
    assert next_one.ids == wanted


def test_blocks(model: Model) -> None:
    """A sequence goes on from blocks that were copied, or read and written back, as from its own."""
    backend: Backend = model.make()
    spec = backend.load(silent)
    groups = range(len(spec.layer_groups))
    backend.allocate(KVPlan(8, (12,) * len(groups)))
    prompt = np.array(model.prompts[3][:17], dtype=np.int32)

    def chunk(ids: np.ndarray, start: int, *blocks: int) -> Chunk:
        return Chunk(ids, start, (np.array(blocks, dtype=np.int32),) * len(groups), 1)

    backend.forward([chunk(prompt[:16], 0, 3, 7)])
    wanted = backend.forward([chunk(prompt[16:], 16, 3, 7, 9)])
    for group in groups:
        backend.copy_blocks(group, [(3, 1), (7, 11), (1, 5)])
        data = backend.read_block(group, 11)
        assert len(data) == len(backend.read_block(group, 3))
        backend.write_block(group, 2, data)
    found = [
        backend.forward([chunk(prompt[16:], 16, first, second, 10)]) for first, second in ((1, 11), (5, 2))
    ]
    with pytest.raises((BackendFailure, ValueError), match="bytes"):
        backend.write_block(0, 2, data[:-1])
    backend.close()
    assert np.array_equal(found[0], wanted)
    assert np.array_equal(found[1], wanted)


def test_loading_again(model: Model) -> None:
    """A backend whose device was lost is loaded again, and answers as before."""

    reloaded = threading.Event()

    class Lost(Watched):
        def allocate(self, plan: KVPlan) -> None:
            super().allocate(plan)
            if self.batches:
                reloaded.set()

        def forward(self, batch: Sequence[Chunk]) -> Float32Array:
            if len(self.batches) == 3:
                self.batches.append([])
                raise BackendLost("pulled out")
            return super().forward(batch)

    request = asked("0", model.prompts[0])
    wanted = alone(model, [request])[0].ids
    backend = Lost(model.make())
    with Running(backend, replace(CONFIG, reload_delays_s=(0.0,))) as running:
        running.finish([lost := running.submit(request)])
        assert reloaded.wait(PATIENCE_S)
        again = None
        while again is None:  # until the engine has noted that it is loaded
            with contextlib.suppress(Unavailable):
                again = running.submit(replace(request, id="again"))
        running.finish([again])
        assert running.engine.stats().reloads == 1
    assert lost.outcome.phase is Phase.FAILED
    assert again.ids == wanted
    assert len(backend.threads) == 1


def test_the_excuses_are_about_backends_and_capabilities_that_there_are() -> None:
    capabilities = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {backend for backend, _ in EXCUSED} <= set(BACKENDS)
    assert {capability for _, capability in EXCUSED} <= capabilities
