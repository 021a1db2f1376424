"""A bounded directory of KV blocks, written by a thread of its own.

One directory a fingerprint: what another model, another backend or another version computed is never read, and is the first to go
when room is needed. The least recently used block goes next, and of blocks used together the one deepest in its chain, since
without its beginning a chain is worth nothing. Every failure of the disk costs a miss, never an answer.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from stretto._version import __version__
from stretto.backends.base import KVPlan, ModelSpec
from stretto.prefix_store.block_file import BlockFile, read_block_file, write_block_file

_log = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20
"""What may wait to be written."""

PAUSE_AFTER_FAILURE_S = 60.0
"""How long nothing is written after the disk refused a write."""

_CLOSE_S = 10.0
_STAMP_NS = 10 * 10**9  # blocks used within so long count as used together
_STALE_ENTRIES = 4  # for each block, before the order is made anew
_SUFFIX = ".kv"


@dataclass(slots=True)
class StoreCounts:
    """What the store did since the start."""

    written: int = 0
    read: int = 0
    broken: int = 0
    evicted: int = 0
    write_failures: int = 0


def store_fingerprint(model: str, backend: str, spec: ModelSpec, plan: KVPlan) -> bytes:
    """16 bytes for everything that decides what a block's KV is.

    Args:
        model: fingerprint of the weights.
        backend: its name.
    """
    groups = [
        (group.layers, group.kv_heads, group.head_size, group.window_tokens, group.kv_bytes_per_token)
        for group in spec.layer_groups
    ]
    kinds = (spec.family, spec.dtype, spec.kv_dtype, spec.device)
    parts = (__version__, model, backend, kinds, groups, plan.block_tokens)
    return blake2b(repr(parts).encode(), digest_size=16).digest()


def open_prefix_store(directory: Path, fingerprint: bytes, max_bytes: int) -> DiskPrefixStore | None:
    """A store in a directory, or None, with a line in the log, when the directory cannot be used."""
    store = DiskPrefixStore(directory, fingerprint, max_bytes)
    try:
        store.open()
    except OSError as error:
        _log.warning("known text is not kept on disk: %s: %s", directory, error.strerror or error)
        return None
    return store


class DiskPrefixStore:
    """See ``stretto.engine.PrefixStore``; the module's text says what is kept.

    Args:
        directory: made if it is missing; nobody else may write there.
        fingerprint: see ``store_fingerprint``.
        max_bytes: of all files below the directory.
        wall_clock_ns: nanoseconds since 1970, for the order of use over restarts.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        directory: Path,
        fingerprint: bytes,
        max_bytes: int,
        *,
        wall_clock_ns: Callable[[], int] = time.time_ns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = directory
        self._own = directory / fingerprint.hex()
        self._fingerprint = fingerprint
        self._max_bytes = max_bytes
        self._wall_clock_ns = wall_clock_ns
        self._clock = clock
        self._changed = threading.Condition()  # also the lock of all that follows
        self._sizes: dict[bytes, int] = {}
        self._depths: dict[bytes, int] = {}
        self._stamps: dict[bytes, int] = {}
        self._order: list[
            tuple[int, int, bytes]
        ] = []  # a heap of (stamp, -depth, digest); outdated entries among them
        self._bytes = 0
        self._foreign: dict[Path, int] = {}  # the first is the next to go
        self._queue: deque[tuple[int, BlockFile, int]] = deque()
        self._queued: set[bytes] = set()
        self._queued_bytes = 0
        self._unwanted: list[Path] = []
        self._paused_until = -1.0
        self._working = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self.counts = StoreCounts()

    def open(self) -> None:
        """Look at what is there, and start the writer.

        Raises:
            OSError: the directory cannot be made or read.
        """
        self._own.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._scan_foreign()
        self._scan_own()
        with self._changed:
            self._make_room(0)
        self._thread = threading.Thread(target=self._main, name="stretto-prefix-store", daemon=True)
        self._thread.start()

    # What the engine calls -----------------------------------------------------------------------------------------

    def known(self, digest: bytes) -> bool:
        """Whether the block is there, or about to be."""
        with self._changed:
            return digest in self._sizes or digest in self._queued

    def read(self, digest: bytes, tokens: bytes) -> tuple[bytes, ...] | None:
        """A block's KV by layer group. One that turns out broken is removed."""
        with self._changed:
            for _, block, _ in self._queue:
                if block.digest == digest and block.tokens == tokens:
                    return block.groups
            if digest not in self._sizes:
                return None
            path = self._path(digest)
        try:
            groups = read_block_file(path, self._fingerprint, digest, tokens)
        except OSError as error:
            _log.warning("a saved block cannot be read: %s", error.strerror or error)
            groups = None
        with self._changed:
            if groups is not None:
                self.counts.read += 1
            elif digest in self._sizes:
                self.counts.broken += 1
                self._forget(digest)
        return groups

    def used(self, digests: Sequence[bytes]) -> None:
        """Blocks of one chain, from its start, are the last to go; the files remember it over a restart."""
        stamp = self._stamp()
        with self._changed:
            # A conversation's blocks are used several times in a turn; once is enough to remember.
            stale = [digest for digest in digests if self._stamps.get(digest, stamp) != stamp]
            paths = [self._path(digest) for digest in stale]
            for digest in stale:
                self._rank(digest, stamp)
        for path in paths:
            with contextlib.suppress(OSError):
                os.utime(path, ns=(stamp, stamp))

    def room(self) -> bool:
        """Whether ``save`` would take a block."""
        with self._changed:
            return (
                not self._closing and self._queued_bytes < QUEUE_BYTES and self._clock() >= self._paused_until
            )

    def save(self, digest: bytes, depth: int, tokens: bytes, blocks: tuple[bytes, ...]) -> bool:
        """Queue a block for the writer."""
        block = BlockFile(self._fingerprint, digest, tokens, blocks)
        if block.nbytes > self._max_bytes or not self.room():
            return False
        with self._changed:
            if digest in self._queued or digest in self._sizes:
                return True
            self._queue.append((depth, block, self._stamp()))
            self._queued.add(digest)
            self._queued_bytes += block.nbytes
            self._changed.notify_all()
        return True

    def clear(self) -> None:
        """Forget everything; the writer removes the files."""
        with self._changed:
            for digest in list(self._sizes):
                self._forget(digest)
            self._queue.clear()
            self._queued.clear()
            self._queued_bytes = 0
            self._changed.notify_all()

    def stats(self) -> dict[str, object]:
        """Counts, for ``status``."""
        with self._changed:
            return {
                "blocks": len(self._sizes),
                "bytes": self._bytes + sum(self._foreign.values()),
                "max_bytes": self._max_bytes,
                "queued_bytes": self._queued_bytes,
                "written_total": self.counts.written,
                "read_total": self.counts.read,
                "broken_total": self.counts.broken,
                "evicted_total": self.counts.evicted,
                "write_failures_total": self.counts.write_failures,
            }

    def close(self) -> None:
        """Write what waits, for some seconds at most, and end the writer."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def wait_written(self) -> None:
        """Return when nothing waits to be written or removed."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._queue or self._unwanted or self._working))

    # The directory -------------------------------------------------------------------------------------------------

    def _path(self, digest: bytes) -> Path:
        return self._own / f"{digest.hex()}.{self._depths[digest]}{_SUFFIX}"

    def _scan_own(self) -> None:
        with os.scandir(self._own) as entries:
            for entry in entries:
                name, _, depth = entry.name.removesuffix(_SUFFIX).partition(".")
                if entry.name.startswith(".") or not (entry.name.endswith(_SUFFIX) and depth.isdecimal()):
                    Path(entry.path).unlink(missing_ok=True)  # what a killed writer left
                    continue
                status = entry.stat()
                self._insert(bytes.fromhex(name), int(depth), status.st_size, status.st_mtime_ns)

    def _scan_foreign(self) -> None:
        found: list[tuple[float, Path, int]] = []
        for path in self._root.iterdir():
            if path == self._own or not path.is_dir():
                continue
            sizes = [(file.stat().st_mtime, file.stat().st_size) for file in path.iterdir()]
            found.append((max((at for at, _ in sizes), default=0.0), path, sum(size for _, size in sizes)))
        self._foreign = {path: size for _, path, size in sorted(found)}

    def _stamp(self) -> int:
        return self._wall_clock_ns() // _STAMP_NS * _STAMP_NS

    def _insert(self, digest: bytes, depth: int, size_bytes: int, stamp: int) -> None:
        self._sizes[digest] = size_bytes
        self._depths[digest] = depth
        self._bytes += size_bytes
        self._rank(digest, stamp)

    def _rank(self, digest: bytes, stamp: int) -> None:
        """Note when a block was used."""
        self._stamps[digest] = stamp
        if len(self._order) > _STALE_ENTRIES * len(self._sizes):
            self._order = [(self._stamps[known], -self._depths[known], known) for known in self._sizes]
            heapq.heapify(self._order)
        else:
            heapq.heappush(self._order, (stamp, -self._depths[digest], digest))

    def _next_to_go(self) -> bytes:
        while True:
            stamp, _, digest = heapq.heappop(self._order)
            if self._stamps.get(digest) == stamp:
                return digest

    def _forget(self, digest: bytes) -> None:
        """Under the lock: out of the index, and the file is the writer's to remove."""
        self._unwanted.append(self._path(digest))
        self._changed.notify_all()
        self._bytes -= self._sizes.pop(digest)
        del self._depths[digest]
        del self._stamps[digest]

    def _make_room(self, wanted_bytes: int) -> None:
        """Under the lock: let go of blocks until so many more bytes fit."""
        while self._foreign and self._bytes + sum(self._foreign.values()) + wanted_bytes > self._max_bytes:
            path = next(iter(self._foreign))
            del self._foreign[path]
            self._unwanted.append(path)
        while self._sizes and self._bytes + wanted_bytes > self._max_bytes:
            self._forget(self._next_to_go())
            self.counts.evicted += 1

    # The writer's thread -------------------------------------------------------------------------------------------

    def _main(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._queue or self._unwanted)
                unwanted, self._unwanted = self._unwanted, []
                if self._queue:
                    depth, block, used_at_ns = self._queue.popleft()
                    self._make_room(block.nbytes)
                    unwanted += self._unwanted
                    self._unwanted = []
                elif not unwanted:
                    return
                else:
                    block = None
                self._working = True
            for path in unwanted:
                _remove(path)
            if block is not None:
                self._write(depth, block, used_at_ns)
            with self._changed:
                self._working = False
                self._changed.notify_all()

    def _write(self, depth: int, block: BlockFile, used_at_ns: int) -> None:
        path = self._own / f"{block.digest.hex()}.{depth}{_SUFFIX}"
        failure: OSError | None = None
        try:
            write_block_file(path, block, used_at_ns=used_at_ns)
        except OSError as error:
            failure = error
        with self._changed:
            if block.digest not in self._queued:
                self._unwanted.append(path)  # everything was cleared meanwhile
                return
            self._queued.discard(block.digest)
            self._queued_bytes -= block.nbytes
            if failure is None:
                self._insert(block.digest, depth, block.nbytes, used_at_ns)
                self.counts.written += 1
                return
            self.counts.write_failures += 1
            self._paused_until = self._clock() + PAUSE_AFTER_FAILURE_S
            for _, waiting, _ in self._queue:
                self._queued.discard(waiting.digest)
            self._queue.clear()
            self._queued_bytes = 0
        full = failure.errno in (errno.ENOSPC, errno.EDQUOT)
        _log.warning(
            "known text is not kept on disk for %g s: %s",
            PAUSE_AFTER_FAILURE_S,
            "the disk is full" if full else failure.strerror or failure,
        )


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
