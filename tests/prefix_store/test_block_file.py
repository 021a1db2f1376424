"""The file of one block: whole, or not read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stretto.prefix_store import BlockFile, read_block_file, write_block_file

MODEL, CHAIN = b"m" * 16, b"c" * 16


def block(tokens: bytes = b"\1\0\0\0" * 16, groups: tuple[bytes, ...] = (b"kv" * 100, b"x" * 7)) -> BlockFile:
    return BlockFile(MODEL, CHAIN, tokens, groups)


def written(directory: Path, made: BlockFile) -> Path:
    path = directory / "one.kv"
    write_block_file(path, made, used_at_ns=5 * 10**9)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(tokens=st.binary(max_size=80), groups=st.lists(st.binary(max_size=2000), min_size=1, max_size=4))
def test_what_was_written_is_read(tmp_path: Path, tokens: bytes, groups: list[bytes]) -> None:
    made = block(tokens, tuple(groups))
    path = written(tmp_path, made)
    assert path.stat().st_size == made.nbytes
    assert read_block_file(path, MODEL, CHAIN, tokens) == tuple(groups)


def test_it_is_private_dated_and_alone(tmp_path: Path) -> None:
    path = written(tmp_path, block())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_mtime_ns == 5 * 10**9
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("fingerprint", "digest", "tokens"),
    [
        (b"n" * 16, CHAIN, block().tokens),
        (MODEL, b"d" * 16, block().tokens),
        (MODEL, CHAIN, b"\2\0\0\0" * 16),
        (MODEL, CHAIN, block().tokens[:-4]),
    ],
)
def test_what_is_of_something_else_is_not_read(
    tmp_path: Path, fingerprint: bytes, digest: bytes, tokens: bytes
) -> None:
    assert read_block_file(written(tmp_path, block()), fingerprint, digest, tokens) is None


def test_a_file_cut_anywhere_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, block())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert read_block_file(path, MODEL, CHAIN, block().tokens) is None
    path.write_bytes(whole + b"more")
    assert read_block_file(path, MODEL, CHAIN, block().tokens) is None


def test_a_file_with_any_byte_changed_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path, block())
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        assert read_block_file(path, MODEL, CHAIN, block().tokens) is None


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "one.kv").mkdir()  # nothing can be renamed onto it
    (tmp_path / "one.kv" / "x").touch()
    with pytest.raises(OSError, match=r"one\.kv"):
        written(tmp_path, block())
    assert [path.name for path in tmp_path.iterdir()] == ["one.kv"]
