"""The bar of a pull, and the lines it writes where there is no terminal; sizes, durations and tables."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.cli.output import duration_text, size_text, table, terminal_safe
from stretto.cli.progress import PullProgress


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_without_a_terminal_there_is_a_line_a_phase_and_a_tenth() -> None:
    out, clock = io.StringIO(), Clock()
    progress = PullProgress(out, interactive=False, clock=clock)
    progress("resolving", 0, None)
    for step in range(1001):
        clock.now_s += 0.01
        progress("downloading", step * 1000, 1_000_000)
    progress("verifying", 0, 1_000_000)
    progress("verifying", 1_000_000, 1_000_000)
    progress.finish()
    lines = out.getvalue().splitlines()
    assert lines[0] == "resolving"
    downloads = [line for line in lines if line.startswith("downloading")]
    assert len(downloads) == 11
    assert downloads[5] == "downloading    50%  500.0 kB of 1.0 MB  100.0 kB/s  5.0 s left"
    assert downloads[-1].startswith("downloading   100%  1.0 MB of 1.0 MB")
    assert len(lines) == 14
    assert "\r" not in out.getvalue()


def test_at_a_terminal_one_line_is_redrawn() -> None:
    out, clock = io.StringIO(), Clock()
    progress = PullProgress(out, interactive=True, columns=80, clock=clock)
    progress("downloading", 0, 1000)
    clock.now_s = 1.0
    progress("downloading", 500, 1000)
    progress.finish()
    progress.finish()
    drawn = out.getvalue().split("\r\x1b[K")
    assert drawn[0] == ""
    text, _, bar = drawn[2].partition("  [")
    assert text == "downloading    50%  500 B of 1.0 kB  500 B/s  1.0 s left"
    assert bar == "#" * 9 + " " * (len(bar) - 11) + "]\n"
    assert 18 <= len(bar) - 2 <= 19
    assert all(len(line.rstrip("\n")) < 80 for line in drawn)


def test_a_narrow_terminal_is_not_overflowed() -> None:
    out = io.StringIO()
    PullProgress(out, interactive=True, columns=20)("downloading", 500, 1000)
    assert len(out.getvalue().removeprefix("\r\x1b[K")) == 19


def test_a_download_that_starts_over_is_timed_anew() -> None:
    out, clock = io.StringIO(), Clock()
    progress = PullProgress(out, interactive=False, clock=clock)
    progress("downloading", 900, 1000)
    clock.now_s = 5.0
    progress("downloading", 0, 1000)
    clock.now_s = 6.0
    progress("downloading", 100, 1000)
    assert out.getvalue().splitlines()[-1].endswith("100 B/s  9.0 s left")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (98_362_432, "98.4 MB"),
        (999_960_000, "1.0 GB"),
        (5e15, "5000.0 TB"),
    ],
)
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.9, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_tables_line_up() -> None:
    assert table(["A", "LONG"], [["xyz", "1"], ["", "\x1b"]]) == "A    LONG\nxyz  1\n     \\x1b"


@given(st.text(max_size=50))
def test_nothing_that_a_terminal_obeys_passes(text: str) -> None:
    shown = terminal_safe(text)
    assert not any(ord(char) < 0x20 and char not in "\n\t" for char in shown)
    assert not any(0x7F <= ord(char) < 0xA0 for char in shown)
    assert terminal_safe(shown) == shown
    if text.isprintable():
        assert shown == text
