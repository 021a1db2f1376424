"""Admission: counted, refused with a time to come back, and always given back."""

from __future__ import annotations

import pytest

from stretto.errors import InvalidRequest, QueueFull
from stretto.pipeline import Admission


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make(running: int = 2, queue: int = 1, waiting: int = 0, clock: FakeClock | None = None) -> Admission:
    return Admission(running, queue, waiting=lambda: waiting, clock=clock or FakeClock())


def test_room_is_running_plus_queue() -> None:
    admission = make(running=2, queue=1)
    with admission.enter(1), admission.enter(1), admission.enter(1):
        with pytest.raises(QueueFull) as caught:
            with admission.enter(1):
                raise AssertionError("entered")
    assert caught.value.code == "queue_full"
    assert caught.value.status == 429
    assert caught.value.retry_after_s is not None
    with admission.enter(1):
        pass


def test_room_comes_back_after_an_error() -> None:
    admission = make(running=1, queue=0)
    for _ in range(3):
        with pytest.raises(RuntimeError), admission.enter(1):
            raise RuntimeError
    assert admission.stats()["inside"] == 0


def test_the_engine_s_own_queue_counts() -> None:
    admission = make(running=16, queue=2, waiting=2)
    with pytest.raises(QueueFull), admission.enter(1):
        raise AssertionError("entered")


def test_a_request_larger_than_the_room_never_fits() -> None:
    with pytest.raises(InvalidRequest) as caught, make(running=2, queue=1).enter(4):
        raise AssertionError("entered")
    assert caught.value.param == "n"


def test_retry_after_follows_how_long_requests_take() -> None:
    clock = FakeClock()
    admission = make(running=1, queue=0, clock=clock)
    for _ in range(60):
        with admission.enter(1):
            clock.now += 30.0
    with admission.enter(1), pytest.raises(QueueFull) as caught, admission.enter(1):
        raise AssertionError("entered")
    assert caught.value.retry_after_s == pytest.approx(30.0, abs=1.0)


def test_background_work_takes_half_of_the_queue_at_most() -> None:
    admission = make(running=2, queue=4)
    with admission.enter(4, "background"):
        with pytest.raises(QueueFull, match="--queue-limit 4, of which background work may take half"):
            with admission.enter(1, "background"):
                raise AssertionError("entered")
        with admission.enter(2), pytest.raises(QueueFull), admission.enter(1, "high"):
            raise AssertionError("entered")
    with pytest.raises(QueueFull), make(running=16, queue=4, waiting=2).enter(1, "background"):
        raise AssertionError("entered")
    with make(running=16, queue=4, waiting=2).enter(1):
        pass
    with pytest.raises(InvalidRequest, match=r"at most 4 at once \(2 running and 2 waiting\)"):
        with make(running=2, queue=4).enter(5, "background"):
            raise AssertionError("entered")
