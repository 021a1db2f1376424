"""The directory of blocks: bounded, private to a fingerprint, and never a reason to fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stretto.prefix_store import BlockFile, DiskPrefixStore, open_prefix_store
from stretto.prefix_store import store as module

MODEL = b"m" * 16
KV = (b"k" * 1000,)
FILE_BYTES = BlockFile(MODEL, b"d" * 16, b"t" * 64, KV).nbytes
LONG_NS = 60 * 10**9


class Clock:
    def __init__(self) -> None:
        self.ns = 10**18

    def wall(self) -> int:
        return self.ns

    def monotonic(self) -> float:
        return self.ns / 10**9


def digest(number: int) -> bytes:
    return number.to_bytes(16, "big")


def tokens(number: int) -> bytes:
    return number.to_bytes(4, "little") * 16


@contextmanager
def opened(
    directory: Path, *, blocks: int = 100, fingerprint: bytes = MODEL, clock: Clock | None = None
) -> Iterator[DiskPrefixStore]:
    clock = clock or Clock()
    store = DiskPrefixStore(
        directory, fingerprint, blocks * FILE_BYTES, wall_clock_ns=clock.wall, clock=clock.monotonic
    )
    store.open()
    try:
        yield store
    finally:
        store.close()


def save(store: DiskPrefixStore, *numbers: int) -> None:
    """A chain: each block one deeper than the one before."""
    for depth, number in enumerate(numbers, 1):
        assert store.save(digest(number), depth, tokens(number), KV)
    store.wait_written()


def kept(store: DiskPrefixStore, numbers: range) -> list[int]:
    return [number for number in numbers if store.read(digest(number), tokens(number)) == KV]


def test_blocks_survive_a_new_start(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        save(store, 1, 2, 3)
    with opened(tmp_path) as store:
        assert [store.known(digest(number)) for number in (1, 3, 4)] == [True, True, False]
        assert kept(store, range(5)) == [1, 2, 3]
        assert store.stats()["bytes"] == 3 * FILE_BYTES
        assert store.read(digest(1), tokens(2)) is None  # other text


def test_a_block_is_known_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as store:
        with store._changed:  # the writer waits
            assert store.save(digest(1), 1, tokens(1), KV)
            assert store.known(digest(1))
            assert store.read(digest(1), tokens(1)) == KV
        store.wait_written()
        assert kept(store, range(3)) == [1]


def test_the_bound_holds_and_the_least_recently_used_goes(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, blocks=5, clock=clock) as store:
        save(store, 1, 2, 3)
        clock.ns += LONG_NS
        save(store, 11, 12)
        clock.ns += LONG_NS
        store.used([digest(1)])
        save(store, 21, 22)
        assert kept(store, range(30)) == [1, 11, 12, 21, 22]
        assert sum(file.stat().st_size for file in tmp_path.rglob("*.kv")) == 5 * FILE_BYTES
        assert store.stats()["evicted_total"] == 2
        clock.ns += LONG_NS
    with opened(tmp_path, blocks=3, clock=clock) as store:  # the order outlives the process
        store.wait_written()
        assert kept(store, range(30)) == [1, 21, 22]


def test_of_a_chain_the_end_goes_first(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, blocks=4, clock=clock) as store:
        save(store, 1, 2, 3, 4)
        clock.ns += LONG_NS
        save(store, 11, 12)
        assert kept(store, range(30)) == [1, 2, 11, 12]


def test_what_another_model_computed_is_not_read_and_goes_first(tmp_path: Path) -> None:
    with opened(tmp_path, fingerprint=b"o" * 16) as store:
        save(store, 1, 2, 3)
    with opened(tmp_path, blocks=4) as store:
        assert not store.known(digest(1))
        save(store, 1)
        assert len(list(tmp_path.iterdir())) == 2
        save(store, 1, 2)
        assert len(list(tmp_path.iterdir())) == 1
        assert kept(store, range(5)) == [1, 2]


def damage_nothing(path: Path) -> None:
    path.unlink()


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [damage_nothing, damage_cut, damage_flip])
def test_a_broken_file_is_a_miss_and_is_removed(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with opened(tmp_path) as store:
        save(store, 1, 2)
        damage(next(tmp_path.rglob(f"{digest(1).hex()}*")))
        assert kept(store, range(5)) == [2]
        assert not store.known(digest(1))
        assert store.stats()["broken_total"] == 1
        store.wait_written()
        assert len(list(tmp_path.rglob("*.kv"))) == 1
        save(store, 1)
        assert kept(store, range(5)) == [1, 2]


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        save(store, 1)
        own = next(tmp_path.iterdir())
    (own / f".{digest(2).hex()}.2.kv.tmp").write_bytes(b"half")
    (own / "notes.txt").write_bytes(b"?")
    with opened(tmp_path) as store:
        assert kept(store, range(3)) == [1]
        assert [file.name for file in own.iterdir()] == [f"{digest(1).hex()}.1.kv"]


def test_a_full_disk_stops_the_writing_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with opened(tmp_path, clock=clock) as store:
        save(store, 1)

        def full(path: Path, block: BlockFile, *, used_at_ns: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(module, "write_block_file", full)
            save(store, 2)
        assert "the disk is full" in caplog.text
        assert not store.room()
        assert not store.save(digest(3), 3, tokens(3), KV)
        assert not store.known(digest(2))
        assert kept(store, range(5)) == [1]  # what is there is still read
        clock.ns += int(module.PAUSE_AFTER_FAILURE_S * 10**9)
        save(store, 2)
        assert kept(store, range(5)) == [1, 2]


def test_the_queue_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUE_BYTES", 2 * FILE_BYTES)
    with opened(tmp_path) as store:
        with store._changed:  # the writer waits
            taken = [store.save(digest(number), number, tokens(number), KV) for number in range(1, 5)]
        assert taken == [True, True, False, False]
        store.wait_written()
        assert kept(store, range(5)) == [1, 2]


def test_clearing_forgets_everything(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        save(store, 1, 2)
        store.clear()
        assert kept(store, range(5)) == []
        store.wait_written()
        assert list(tmp_path.rglob("*.kv")) == []
        save(store, 1)
        assert kept(store, range(5)) == [1]


def test_a_directory_that_cannot_be_used_is_said_and_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert open_prefix_store(tmp_path / "file", MODEL, 1000) is None
    assert "not kept on disk" in caplog.text
