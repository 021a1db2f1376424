"""A backend without a model. It answers a chat with its last user message, and what it knows it reads from the KV memory.

Every token is stored in the paged KV memory at the block and offset that the engine gave, with its position, and the next
token is worked out from what is read back through the block table alone. So a wrong block table, a shared block or a lost
write shows: as wrong text, or as a ``BackendFailure`` that names the position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stretto.backends.base import (
    BackendFailure,
    BackendInfo,
    BackendLost,
    BackendOutOfMemory,
    Chunk,
    Float32Array,
    Int32Array,
    KVPlan,
    LayerGroup,
    MemoryReport,
    ModelSpec,
    ProgressReport,
)
from stretto.backends.chunks import first_needed
from stretto.backends.echo.script import EchoScript
from stretto.backends.echo.tokenizer import IM_END_ID, IM_START_ID, VOCAB_SIZE
from stretto.errors import StartupError

_USER = np.frombuffer(b"user\n", dtype=np.uint8).astype(np.int32)
_NEWLINE = 10
_SPREAD_ROWS = 64
_LOAD_SLICES = 20


class EchoBackend:
    """See the module's text, and ``EchoScript`` for what can be asked of it.

    A text without a ChatML turn is answered with the end token at once.

    ``release``, and ``close`` while a step stalls or waits, may be called from any thread; everything else belongs to the
    engine thread, as for every backend.
    """

    def __init__(
        self, script: EchoScript | None = None, *, wait: Callable[[float], object] | None = None
    ) -> None:
        """``wait`` is called with each delay in seconds; by default it waits, and ``close`` ends the wait early."""
        self._script = script or EchoScript()
        self._released = threading.Event()
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._reply = None
        if self._script.reply is not None:
            self._reply = np.frombuffer(self._script.reply.encode(errors="replace"), dtype=np.uint8).astype(
                np.int32
            )
        # Fixed and small: other tokens differ, so that sampling has something to choose from.
        self._spread = np.random.Generator(np.random.Philox(key=1)).random(
            (_SPREAD_ROWS, VOCAB_SIZE), dtype=np.float32
        )
        self._windows: tuple[int | None, ...] = ()
        self._memory: list[
            Int32Array
        ] = []  # per layer group [blocks, block_tokens, 2]: token id and position, -1 unwritten
        self._block_tokens = 0
        self._positions = self._blocks_of = self._offsets = np.zeros(0, dtype=np.int32)
        self._loads = 0
        self._steps = 0
        self._tokens = 0
        self._lost = False
        self.stalled = threading.Event()
        """Set while a step stalls, so that a test can wait for it."""

    def load(self, report: ProgressReport) -> ModelSpec:
        self._loads += 1
        self._memory = []
        if self._closed.is_set():  # loaded again after close: delays and stalls work again
            self._closed.clear()
            self._released.clear()
        report("loading", 0.0)
        for part in range(1, _LOAD_SLICES + 1):
            if self._script.load_delay_s:
                self._wait(self._script.load_delay_s / _LOAD_SLICES)
            report("loading", part / _LOAD_SLICES)
        if self._loads == self._script.fail_at_load:
            raise StartupError(
                f"The echo backend's script makes load {self._loads} fail.", code="backend_unavailable"
            )
        self._lost = False
        names = ["full"] + [f"full-{number}" for number in range(2, self._script.layer_groups + 1)]
        self._windows = (None, *[self._script.window_tokens or None] * (len(names) - 1))
        groups = tuple(
            LayerGroup(name, 1, 1, 1, window, self._script.kv_bytes_per_token)
            for name, window in zip(names, self._windows, strict=True)
        )
        return ModelSpec("echo", VOCAB_SIZE, self._script.context_tokens, groups, "int32", "cpu")

    def allocate(self, plan: KVPlan) -> None:
        needed = sum(plan.blocks) * plan.block_tokens * self._script.kv_bytes_per_token
        if self._script.oom_on_allocate or needed > self._script.memory_bytes:
            raise BackendOutOfMemory(f"{needed} bytes of KV do not fit in {self._script.memory_bytes} bytes")
        if len(plan.blocks) != self._script.layer_groups:
            raise ValueError(
                f"the plan has {len(plan.blocks)} layer groups, the model {self._script.layer_groups}"
            )
        self._block_tokens = plan.block_tokens
        self._positions = np.arange(self._script.context_tokens, dtype=np.int32)
        self._blocks_of = self._positions // plan.block_tokens
        self._offsets = self._positions % plan.block_tokens
        self._memory = [np.full((blocks, plan.block_tokens, 2), -1, dtype=np.int32) for blocks in plan.blocks]

    def forward(self, batch: Sequence[Chunk]) -> Float32Array:
        self._steps += 1
        self._delay(batch)
        self._fault()
        slots = [self._slots(chunk) for chunk in batch]
        for chunk, places in zip(batch, slots, strict=True):
            self._write(chunk, places)
        rows: list[Float32Array] = []
        for chunk, places in zip(batch, slots, strict=True):
            known = self._read(places, chunk.start)
            rows.extend(
                self._logits(known, len(known) - back) for back in range(chunk.logit_rows - 1, -1, -1)
            )
        self._tokens += sum(len(chunk.token_ids) for chunk in batch)
        logits = np.stack(rows) if rows else np.zeros((0, VOCAB_SIZE), dtype=np.float32)
        if rows and self._steps == self._script.nan_at_step:
            logits[0] = np.nan
        return logits

    def copy_blocks(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self._memory[group][destination] = self._memory[group][source]

    def read_block(self, group: int, block: int) -> bytes:
        data: bytes = self._memory[group][block].tobytes()
        return data

    def write_block(self, group: int, block: int, data: bytes) -> None:
        target = self._memory[group][block]
        if len(data) != target.nbytes:
            raise BackendFailure(f"a block has {target.nbytes} bytes, {len(data)} were given")
        self._memory[group][block] = np.frombuffer(data, dtype=np.int32).reshape(target.shape)

    def memory(self) -> MemoryReport:
        slots = sum(group.shape[0] * group.shape[1] for group in self._memory)
        kv_bytes = slots * self._script.kv_bytes_per_token
        return MemoryReport(
            0, kv_bytes, max(0, self._script.memory_bytes - kv_bytes), self._script.memory_bytes
        )

    def stats(self) -> dict[str, object]:
        return {"backend": "echo", "loads": self._loads, "steps": self._steps, "tokens": self._tokens}

    def close(self) -> None:
        self._closed.set()
        self._released.set()
        self._memory = []

    def release(self) -> None:
        """End the stall of a stalled step."""
        self._released.set()

    def _delay(self, batch: Sequence[Chunk]) -> None:
        script = self._script
        # Logits of every token are wanted of an answer's, with a draft behind it or without.
        prefilled = sum(len(chunk.token_ids) for chunk in batch if len(chunk.token_ids) > chunk.logit_rows)
        delay_s = (script.prefill_delay_s + prefilled * script.prefill_token_delay_s) if prefilled else 0.0
        decoded = [len(chunk.token_ids) for chunk in batch if len(chunk.token_ids) == chunk.logit_rows]
        delay_s += script.decode_delay_s * max(decoded, default=0)
        if delay_s:
            self._wait(delay_s)

    def _fault(self) -> None:
        script, step = self._script, self._steps
        if step == script.stall_at_step:
            self.stalled.set()
            self._released.wait()
            self.stalled.clear()
        if self._closed.is_set():
            raise BackendFailure("the backend was closed during the step")
        if step == script.lost_at_step:
            self._lost = True
        if self._lost:
            raise BackendLost(f"the device was lost (scripted, step {step})")
        if step == script.oom_at_step:
            raise BackendOutOfMemory(f"out of memory (scripted, step {step})")
        if step == script.crash_at_step:
            raise RuntimeError(f"crash (scripted, step {step})")
        if step == script.fail_at_step or (script.fail_every and step % script.fail_every == 0):
            raise BackendFailure(f"the step failed (scripted, step {step})")

    def _slots(self, chunk: Chunk) -> list[Int32Array]:
        """Flat slot numbers of all positions up to the chunk's end, for each layer group, once the chunk is found to be sound."""
        count = len(chunk.token_ids)
        end = chunk.start + count
        if count < 1 or chunk.start < 0 or not 0 <= chunk.logit_rows <= count:
            raise ValueError(
                "a chunk has at least one token, starts at 0 or later and asks for at most a row a token"
            )
        if not (chunk.token_ids.min() >= 0 and chunk.token_ids.max() < VOCAB_SIZE):
            raise ValueError(f"a token id is outside the vocabulary of {VOCAB_SIZE}")
        if not self._memory:
            raise RuntimeError("forward was called before allocate")
        if len(chunk.block_tables) != len(self._memory):
            raise ValueError(f"{len(chunk.block_tables)} block tables for {len(self._memory)} layer groups")
        if end > self._script.context_tokens:
            raise ValueError(f"position {end - 1} is beyond the context of {self._script.context_tokens}")
        slots = []
        for table, memory, window in zip(chunk.block_tables, self._memory, self._windows, strict=True):
            blocks = memory.shape[0]
            needed = table[first_needed(chunk.start, window) // self._block_tokens :]
            if end > len(table) * self._block_tokens:
                covered = len(table) * self._block_tokens
                raise ValueError(f"the block table covers {covered} tokens, position {end - 1} is beyond")
            if not (needed.min() >= 0 and needed.max() < blocks):
                raise ValueError(f"a block table names a block outside 0..{blocks - 1}")
            slots.append(table[self._blocks_of[:end]] * np.int32(self._block_tokens) + self._offsets[:end])
        return slots

    def _write(self, chunk: Chunk, slots: Sequence[Int32Array]) -> None:
        end = chunk.start + len(chunk.token_ids)
        for memory, places in zip(self._memory, slots, strict=True):
            flat = memory.reshape(-1, 2)
            flat[places[chunk.start :], 0] = chunk.token_ids
            flat[places[chunk.start :], 1] = self._positions[chunk.start : end]

    def _read(self, slots: Sequence[Int32Array], start: int) -> Int32Array:
        """All token ids of the sequence up to the chunk's end, as the KV memory has them; the chunk begins at ``start``."""
        known: Int32Array | None = None
        for group, (memory, places, window) in enumerate(
            zip(self._memory, slots, self._windows, strict=True)
        ):
            first = first_needed(start, window)
            wanted = self._positions[first : len(places)]
            found = memory.reshape(-1, 2)[places[first:]]
            if not np.array_equal(found[:, 1], wanted):
                where = int(np.flatnonzero(found[:, 1] != wanted)[0])
                raise BackendFailure(
                    f"the KV memory of position {first + where} holds position {int(found[where, 1])}"
                )
            if known is not None and not np.array_equal(known[first:], found[:, 0]):
                raise BackendFailure(f"the KV memory of layer group {group} differs from that of group 0")
            if known is None:
                known = np.ascontiguousarray(found[:, 0])
        assert known is not None
        return known

    def _logits(self, known: Int32Array, end: int) -> Float32Array:
        """Logits after the first ``end`` tokens: [vocabulary]."""
        row = (end * 31 + int(known[end - 1])) % _SPREAD_ROWS
        logits: Float32Array = self._spread[row].copy()
        logits[self._next(known[:end])] = self._script.peak
        return logits

    def _next(self, known: Int32Array) -> int:
        """The right next token: the reply, one token after the other, then the end of the turn."""
        turns = np.flatnonzero(known == IM_START_ID)
        if not turns.size:
            return IM_END_ID
        header = np.flatnonzero(known[turns[-1] :] == _NEWLINE)
        if not header.size:
            return IM_END_ID
        said = len(known) - (int(turns[-1]) + int(header[0]) + 1)
        reply = self._reply if self._reply is not None else _last_user_text(known, turns[:-1])
        if not len(reply) or (self._script.repeat and said >= len(reply) * self._script.repeat):
            return IM_END_ID
        return int(reply[said % len(reply)])


def _last_user_text(known: Int32Array, turns: npt.NDArray[np.intp]) -> Int32Array:
    for turn in turns[::-1]:
        first = int(turn) + 1 + len(_USER)
        if np.array_equal(known[turn + 1 : first], _USER):
            ends = np.flatnonzero(known[first:] == IM_END_ID)
            return known[first : first + int(ends[0])] if ends.size else known[:0]
    return known[:0]


def probe() -> BackendInfo:
    """The echo backend runs everywhere."""
    return BackendInfo("echo", True, "Needs nothing; answers with the last user message.", ("cpu",))
