"""Engines for tests: a stepper without a thread, an engine thread whose posts the test runs, a backend that waits to be let on."""

from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.backends.base import Backend, Chunk, Float32Array
from stretto.backends.echo import EchoBackend, EchoScript
from stretto.conversation.messages import SamplingParams
from stretto.engine import (
    Engine,
    EngineConfig,
    EngineFacts,
    Outcome,
    PrefixStore,
    SequenceRequest,
    Token,
    Update,
)
from stretto.engine.budget import plan_kv
from stretto.engine.live import LiveSequence
from stretto.engine.prefix import PrefixNode
from stretto.engine.sampler import SamplerState
from stretto.engine.stepper import Stepper
from stretto.engine.windows import WindowBlocks
from stretto.errors import StrettoError
from support.engine_echo import TOKENIZER, chat_ids, text_of

PATIENCE_S = 90.0
"""How long a test waits for another thread before it fails."""

GREEDY = SamplingParams(temperature=0.0)


def request(
    name: str,
    text: str = "hello",
    *,
    max_tokens: int = 1000,
    sampling: SamplingParams = GREEDY,
    logprobs: int | None = None,
    prompt_ids: Sequence[int] | None = None,
) -> SequenceRequest:
    """A chat that the echo model answers with ``text``."""
    ids = chat_ids(text) if prompt_ids is None else prompt_ids
    return SequenceRequest(name, ids, sampling, max_tokens, TOKENIZER.end_ids, logprobs)


def live_sequence(asked: SequenceRequest, *, submitted_at: float = 0.0) -> LiveSequence:
    """A sequence as the scheduler gets it."""
    ids = np.array(asked.prompt_ids, dtype=np.int32)
    return LiveSequence(asked, ids, SamplerState(asked.sampling, ids, 260), submitted_at)


class FakeClock:
    """Monotonic seconds that pass only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


@dataclass
class Heard:
    """All that was told of one sequence."""

    updates: list[Update] = field(default_factory=list)

    @property
    def tokens(self) -> list[Token]:
        return [token for update in self.updates for token in update.tokens]

    @property
    def ids(self) -> list[int]:
        return [token.id for token in self.tokens]

    @property
    def text(self) -> str:
        return text_of(self.ids)

    @property
    def outcome(self) -> Outcome:
        assert self.updates, "nothing was told of the sequence"
        outcome = self.updates[-1].outcome
        assert outcome is not None, "the sequence has not ended"
        assert all(update.outcome is None for update in self.updates[:-1]), "a sequence ended twice"
        return outcome

    @property
    def ended(self) -> bool:
        return bool(self.updates) and self.updates[-1].outcome is not None


class Bench:
    """A stepper over an echo backend, stepped by the test."""

    def __init__(
        self,
        script: EchoScript | None = None,
        config: EngineConfig | None = None,
        store: PrefixStore | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.config = config or EngineConfig()
        self.backend = EchoBackend(script, wait=self.clock.wait)
        spec = self.backend.load(lambda phase, fraction: None)
        self.facts = plan_kv(spec, self.backend.memory(), self.config)
        self.backend.allocate(self.facts.kv)
        self.stepper = Stepper(
            self.backend, self.facts, self.config, clock=self.clock, lock=threading.RLock(), store=store
        )
        self.heard: dict[str, Heard] = {}

    def submit(self, asked: SequenceRequest) -> LiveSequence:
        prompt = np.asarray(asked.prompt_ids, dtype=np.int32)
        sampler = SamplerState(asked.sampling, prompt, self.facts.spec.vocab_size)
        sequence = LiveSequence(asked, prompt, sampler, self.clock())
        self.stepper.scheduler.enqueue(sequence)
        self.heard[asked.id] = Heard()
        return sequence

    def step(self) -> list[Update]:
        try:
            self.stepper.step()
        finally:
            updates = self.stepper.take_updates()
            for update in updates:
                self.heard[update.id].updates.append(update)
        return updates

    def run(self, most_steps: int = 10_000) -> None:
        """Step until nothing is live."""
        for _ in range(most_steps):
            if not self.stepper.scheduler.busy:
                return
            self.step()
        raise AssertionError(f"still busy after {most_steps} steps")

    @property
    def blocks_used(self) -> int:
        return sum(self.stepper.scheduler.kv.blocks_used)


def check_blocks(bench: Bench) -> None:
    """Every block's holders are the sequences that have it in a table, and the index; every node's users are those in whose chain it is."""
    kv = bench.stepper.scheduler.kv
    live = bench.stepper.scheduler.live()
    nodes = list(kv._index._nodes.values())
    users = Counter(node for sequence in live for node in sequence.chain)
    for node in nodes:
        assert node.users == users[node]
        assert not node.dropped
        assert node.parent is not None
        assert node.parent.children[node.digest] is node
        assert node.depth == node.parent.depth + 1
        if node.parent.parent is not None:
            assert node.parent.users >= node.users
            assert kv._index._nodes[node.parent.digest] is node.parent
    assert kv.blocks_cached == sum(1 for node in nodes if not node.users)
    assert set(kv._index._leaves) == {node for node in nodes if not node.users and not node.children}
    assert len(kv._index._evicted) <= min(bench.facts.kv.blocks)
    size = kv._block_tokens
    full = next(iter(kv._pools), 0)
    promised = [-(-s.reserved_tokens // size) - len(s.block_tables[full]) for s in live if s.block_tables]
    if kv._pools:
        assert all(blocks >= 0 for blocks in promised)
        assert kv._promised == sum(promised)
    pools = {**kv._pools, **{window.group: window.pool for window in kv._windows}}
    for group, pool in pools.items():
        expected = Counter(
            int(block) for s in live if s.block_tables for block in s.block_tables[group] if block >= 0
        )
        held = set(expected)
        expected.update(node.blocks[group] for node in nodes if node.blocks[group] >= 0)
        assert {block: pool.holders(block) for block in range(pool.blocks) if pool.holders(block)} == expected
        assert pool.used == len(expected)
        assert kv.blocks_used[group] == len(held)
        if group in kv._pools:
            assert kv._promised <= pool.free + kv.blocks_cached
    for window in kv._windows:
        _check_window(window, live, nodes)
    for sequence in live:
        assert sequence.cached_tokens <= sequence.prefilled <= len(sequence.prompt)
        shared = sequence.cached_tokens // kv._block_tokens
        for index, node in enumerate(sequence.chain):
            assert node.tokens == sequence.token_bytes(
                index * kv._block_tokens, (index + 1) * kv._block_tokens
            )
            if index < shared:
                for group in kv._pools:
                    assert int(sequence.block_tables[group][index]) == node.blocks[group]


def _check_window(window: WindowBlocks, live: Sequence[LiveSequence], nodes: Sequence[PrefixNode]) -> None:
    """No sequence holds more than it claimed, claims fit the pool, and idle is what known text alone keeps."""
    started = [sequence for sequence in live if sequence.block_tables]
    held: set[int] = set()
    for sequence in started:
        own = {int(block) for block in sequence.block_tables[window.group] if block >= 0}
        assert len(own) <= window.claim(sequence.reserved_tokens)
        held |= own
    assert window._claimed == sum(window.claim(sequence.reserved_tokens) for sequence in started)
    assert window._claimed <= window.pool.blocks
    kept = {node.blocks[window.group]: node for node in nodes if node.blocks[window.group] >= 0}
    assert window._idle == {block: node for block, node in kept.items() if block not in held}


class GatedBackend(EchoBackend):
    """Every step waits until the test lets it on, and tells that it waits."""

    def __init__(self, script: EchoScript | None = None) -> None:
        super().__init__(script)
        self.waiting = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)
        self.batches: list[list[int]] = []

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        self.batches.append([len(chunk.token_ids) for chunk in batch])
        self.waiting.release()
        assert self.gate.acquire(timeout=PATIENCE_S)
        return super().forward(batch)

    def wait_until_in_step(self) -> None:
        """Return once the engine thread is inside a step that waits to be let on."""
        assert self.waiting.acquire(timeout=PATIENCE_S)

    def let_on(self, steps: int = 1) -> None:
        """Let so many steps go on."""
        self.gate.release(steps)


class Running:
    """An engine thread; the test is its event loop."""

    def __init__(
        self,
        backend: Backend | None = None,
        config: EngineConfig | None = None,
        *,
        clock: Callable[[], float] | None = None,
        load: bool = True,
        prefix_store: Callable[[EngineFacts], PrefixStore | None] | None = None,
    ) -> None:
        self.posts: queue.Queue[Callable[[], None]] = queue.Queue()
        self.heard: dict[str, Heard] = {}
        self.deliveries: list[list[Update]] = []
        self.facts: EngineFacts | None = None
        self.error: StrettoError | None = None
        self.reports: list[tuple[str, float]] = []
        extra = {} if clock is None else {"clock": clock}
        self.engine = Engine(
            backend or EchoBackend(),
            config,
            post=self.posts.put,
            deliver=self._deliver,
            prefix_store=prefix_store,
            **extra,
        )
        if load:
            self.start()
            self.pump(lambda: self.facts is not None or self.error is not None)

    @property
    def thread(self) -> threading.Thread:
        thread = self.engine._thread
        assert thread is not None
        return thread

    def start(self) -> None:
        self.engine.start(
            self._loaded, self._failed, lambda phase, fraction: self.reports.append((phase, fraction))
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.engine.stop(PATIENCE_S)
        self.drain()
        assert all(heard.ended for heard in self.heard.values())

    def submit(self, asked: SequenceRequest) -> Heard:
        self.engine.submit(asked)
        self.heard[asked.id] = heard = Heard()
        return heard

    def pump(self, until: Callable[[], bool]) -> None:
        """Run what the engine posts until the condition holds."""
        while not until():
            self.posts.get(timeout=PATIENCE_S)()

    def finish(self, heard: Iterable[Heard]) -> None:
        """Run until these have ended."""
        waited_for = list(heard)
        self.pump(lambda: all(one.ended for one in waited_for))

    def drain(self) -> None:
        """Run what was posted so far."""
        while not self.posts.empty():
            self.posts.get()()

    def _deliver(self, updates: Sequence[Update]) -> None:
        self.deliveries.append(list(updates))
        for update in updates:
            self.heard[update.id].updates.append(update)

    def _loaded(self, facts: EngineFacts) -> None:
        self.facts = facts

    def _failed(self, error: StrettoError) -> None:
        self.error = error
