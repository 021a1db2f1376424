"""Runs and those who wait for them: every change of state, on a clock of the test's own, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from stretto.api.recording import Recording
from stretto.api.retries import TRANSITIONS, Change, Retries, Run, State
from stretto.api.retry_key import RetryKey, retry_key
from stretto.conversation import Caller
from stretto.errors import InvalidRequest, QueueFull

NAMED = RetryKey("", "/v1/chat/completions", "k1", b"body", explicit=True)
PATIENT = RetryKey("", "/v1/chat/completions", "digest", b"body", explicit=False, patience_s=60.0)
AGAIN = replace(PATIENT, again=True)


class Work:
    """The work of requests, held back until the test lets it go."""

    def __init__(self, size: int = 10, failure: Exception | None = None) -> None:
        self.begun = 0
        self.cancelled = 0
        self.go = trio.Event()
        self._size = size
        self._failure = failure

    async def __call__(self, recording: Recording) -> None:
        self.begun += 1
        try:
            await self.go.wait()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        if self._failure is not None:
            raise self._failure
        recording.begin([(b"x-number", b"%d" % self.begun)])
        await recording.write(b"x" * self._size)


@asynccontextmanager
async def living(**options: Any) -> AsyncIterator[Retries]:
    retries = Retries(**options)
    async with trio.open_nursery() as nursery:
        await nursery.start(retries.run)
        yield retries
        nursery.cancel_scope.cancel()


async def reply_of(run: Run) -> tuple[bytes, bytes]:
    """The number of the run that made it, and the body."""
    headers = dict(await run.recording.head())
    return headers[b"x-number"], b"".join([piece async for piece in run.recording.read()])


def joined(stack: ExitStack, retries: Retries, key: RetryKey, work: Work) -> tuple[Run, bool]:
    return stack.enter_context(retries.joined(key, "id", work, trio.current_time()))


def counts(retries: Retries) -> tuple[int, int, int]:
    stats: dict[str, Any] = retries.stats()
    return stats["running"], stats["orphaned"], stats["kept"]


def test_the_table_has_no_change_that_cannot_be_and_lacks_none() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(after in TRANSITIONS for changes in TRANSITIONS.values() for after in changes.values())
    for state, change in product(State, Change):
        after = TRANSITIONS[state].get(change)
        if change in (Change.DONE, Change.FAILED):
            assert (after is None) == (state is State.KEPT)
        if after is State.ORPHANED:
            assert (state, change) == (State.RUNNING, Change.LEFT)


@pytest.mark.parametrize("first", [NAMED, PATIENT])
async def test_a_retry_joins_the_run(first: RetryKey) -> None:
    second = first if first.explicit else AGAIN
    work = Work()
    async with living() as retries:
        with ExitStack() as stack:
            run, was_there = joined(stack, retries, first, work)
            assert not was_there
            await wait_all_tasks_blocked()
            same, was_there = joined(stack, retries, second, work)
            assert was_there
            assert same is run
            work.go.set()
            assert await reply_of(run) == await reply_of(same) == (b"1", b"x" * 10)
    assert (work.begun, work.cancelled) == (1, 0)


async def test_other_callers_paths_and_bodies_have_runs_of_their_own() -> None:
    work = Work()
    others = [
        replace(NAMED, tenant="t"),
        replace(NAMED, path="/v1/messages"),
        replace(NAMED, name="k2"),
        PATIENT,
        replace(AGAIN, name="other"),
        replace(AGAIN, tenant="t"),
        replace(PATIENT, again=False),
    ]
    async with living() as retries:
        with ExitStack() as stack:
            runs = {joined(stack, retries, key, work)[0] for key in (NAMED, *others)}
            assert len(runs) == 1 + len(others)
            await wait_all_tasks_blocked()
            assert work.begun == 1 + len(others)
        await wait_all_tasks_blocked()


async def test_a_key_with_another_body_is_refused() -> None:
    work = Work()
    async with living() as retries:
        with ExitStack() as stack:
            joined(stack, retries, NAMED, work)
            with pytest.raises(InvalidRequest) as caught:
                joined(stack, retries, replace(NAMED, digest=b"other"), work)
            assert (caught.value.status, caught.value.code) == (422, "idempotency_key_reused")
            work.go.set()
            await wait_all_tasks_blocked()
        with pytest.raises(InvalidRequest), ExitStack() as stack:  # while the reply is kept, too
            joined(stack, retries, replace(NAMED, digest=b"other"), work)


@pytest.mark.parametrize(
    ("key", "waited_s", "grace"),
    [
        (NAMED, 0.0, True),
        (PATIENT, 10.0, False),  # told to leave
        (PATIENT, 59.0, True),  # out of patience
        (PATIENT, 61.0, True),
        (replace(PATIENT, patience_s=None), 600.0, False),
    ],
)
async def test_who_is_expected_back_and_who_is_not(
    key: RetryKey, waited_s: float, grace: bool, autojump_clock: MockClock
) -> None:
    work = Work()
    async with living(grace_s=5.0) as retries:
        with ExitStack() as stack:
            joined(stack, retries, key, work)
            await trio.sleep(waited_s)
        await wait_all_tasks_blocked()
        assert counts(retries) == (0, int(grace), 0)
        assert work.cancelled == int(not grace)
        if grace:
            await trio.sleep(4.9)
            assert work.cancelled == 0
            await trio.sleep(0.2)
        assert (work.begun, work.cancelled, counts(retries)) == (1, 1, (0, 0, 0))
    assert retries.stats()["cancelled_total"] == 1


@pytest.mark.parametrize("key", [NAMED, PATIENT])
async def test_a_retry_within_the_grace_gets_the_first_run_s_reply(
    key: RetryKey, autojump_clock: MockClock
) -> None:
    again = key if key.explicit else AGAIN
    work = Work()
    async with living(grace_s=5.0) as retries:
        with ExitStack() as stack:
            joined(stack, retries, key, work)
            await trio.sleep(60)
        await trio.sleep(3)
        with ExitStack() as stack:
            run, was_there = joined(stack, retries, again, work)
            assert was_there
            assert counts(retries) == (1, 0, 0)
            await trio.sleep(30)  # longer than the grace, for somebody waits again
            work.go.set()
            assert await reply_of(run) == (b"1", b"x" * 10)
    assert (work.begun, work.cancelled) == (1, 0)


@pytest.mark.parametrize("key", [NAMED, PATIENT])
async def test_a_run_that_is_done_within_the_grace_waits_for_the_retry(
    key: RetryKey, autojump_clock: MockClock
) -> None:
    again = key if key.explicit else AGAIN
    work = Work()
    async with living(grace_s=5.0, keep_s=60.0) as retries:
        with ExitStack() as stack:
            joined(stack, retries, key, work)
            await trio.sleep(60)
        work.go.set()
        await trio.sleep(4)
        assert counts(retries) == (0, 0, 1)
        with ExitStack() as stack:
            run, was_there = joined(stack, retries, again, work)
            assert was_there
            assert await reply_of(run) == (b"1", b"x" * 10)
        await trio.sleep(2)  # the rest of the grace
        assert counts(retries) == (0, 0, int(key.explicit))
        await trio.sleep(60)
        assert counts(retries) == (0, 0, 0)
    assert work.begun == 1


@pytest.mark.parametrize(("key", "kept"), [(NAMED, True), (PATIENT, False)])
async def test_only_replies_to_keys_are_kept_after_their_delivery(
    key: RetryKey, kept: bool, autojump_clock: MockClock
) -> None:
    work = Work()
    work.go.set()
    async with living(keep_s=60.0) as retries:
        for expected in (b"1", b"1" if kept else b"2"):
            with ExitStack() as stack:
                run, _ = joined(stack, retries, key if key.explicit else AGAIN, work)
                assert (await reply_of(run))[0] == expected
        assert counts(retries) == (0, 0, int(kept))
        await trio.sleep(61)
        assert counts(retries) == (0, 0, 0)
        with ExitStack() as stack:
            run, was_there = joined(stack, retries, key, work)
            assert not was_there
            await reply_of(run)


async def test_a_failure_is_told_to_all_and_not_kept() -> None:
    work = Work(failure=QueueFull("Full."))
    async with living() as retries:
        with ExitStack() as stack:
            run, _ = joined(stack, retries, NAMED, work)
            joined(stack, retries, NAMED, work)
            work.go.set()
            for _ in range(2):
                with pytest.raises(QueueFull):
                    await run.recording.head()
            assert counts(retries) == (0, 0, 0)
            _, was_there = joined(stack, retries, NAMED, work)
            assert not was_there
            await wait_all_tasks_blocked()
    assert work.begun == 2


async def test_who_was_told_an_error_does_not_join_a_twin_s_run(autojump_clock: MockClock) -> None:
    """Five equal requests for five draws; one is refused and retried by its client: its answer is a draw of its own."""
    work, refused = Work(), Work(failure=QueueFull("Full."))
    refused.go.set()
    async with living(keep_s=60.0) as retries:
        with ExitStack() as stack:
            twin, _ = joined(stack, retries, PATIENT, work)
            with ExitStack() as other, pytest.raises(QueueFull):
                await joined(other, retries, PATIENT, refused)[0].recording.head()
            fresh, was_there = joined(stack, retries, AGAIN, work)
            assert not was_there
            assert fresh is not twin
            assert joined(stack, retries, AGAIN, work) == (twin, True)  # told once, so once
            with ExitStack() as other, pytest.raises(QueueFull):
                await joined(other, retries, PATIENT, refused)[0].recording.head()
            await trio.sleep(61)
            assert joined(stack, retries, AGAIN, work) == (twin, True)  # long forgotten
            await wait_all_tasks_blocked()


async def test_a_retry_prefers_the_run_that_lost_its_client(autojump_clock: MockClock) -> None:
    work = Work()
    async with living() as retries:
        with ExitStack() as stack:
            joined(stack, retries, PATIENT, work)
            with ExitStack() as leaving:
                lost, _ = joined(leaving, retries, PATIENT, work)
                await trio.sleep(60)
            assert joined(stack, retries, AGAIN, work) == (lost, True)


async def test_the_drain_waits_for_nobody(autojump_clock: MockClock) -> None:
    work, left = Work(), Work()
    async with living() as retries:
        with ExitStack() as stack:
            joined(stack, retries, NAMED, left)
        await wait_all_tasks_blocked()
        with ExitStack() as stack:
            joined(stack, retries, replace(NAMED, name="k2"), work)
            await wait_all_tasks_blocked()
            retries.drain()
            await wait_all_tasks_blocked()
            assert (left.cancelled, work.cancelled) == (1, 0)
        await wait_all_tasks_blocked()
        assert work.cancelled == 1
        assert trio.current_time() < 1


async def test_without_grace_nothing_outlives_its_client() -> None:
    work = Work()
    async with living(grace_s=0.0) as retries:
        with ExitStack() as stack:
            joined(stack, retries, NAMED, work)
            await wait_all_tasks_blocked()
        await wait_all_tasks_blocked()
        assert work.cancelled == 1


@pytest.mark.parametrize(
    ("tenants", "kept"),
    [(["a"] * 8, 4), (["a", "b"] * 4, 8), ([f"t{n}" for n in range(24)], 16)],
)
async def test_what_is_kept_is_bounded_for_each_and_in_all(
    tenants: list[str], kept: int, autojump_clock: MockClock
) -> None:
    work = Work(size=4_000_000)
    work.go.set()
    async with living() as retries:
        for number, tenant in enumerate(tenants):
            with ExitStack() as stack:
                run, _ = joined(stack, retries, replace(NAMED, tenant=tenant, name=f"k{number}"), work)
                await reply_of(run)
            await trio.sleep(0.01)
        assert counts(retries) == (0, 0, kept)
        newest = replace(NAMED, tenant=tenants[-1], name=f"k{len(tenants) - 1}")
        with ExitStack() as stack:
            assert joined(stack, retries, newest, work)[1]
            oldest = replace(NAMED, tenant=tenants[0], name="k0")
            assert joined(stack, retries, oldest, work)[1] is (kept == len(tenants))
            await wait_all_tasks_blocked()


# Recordings ----------------------------------------------------------------------------------------------------------


async def test_a_recording_is_read_from_its_beginning_by_whoever_comes() -> None:
    recording = Recording(1000)
    got: dict[str, list[bytes]] = {"early": [], "late": []}

    async def read(name: str) -> None:
        async for piece in recording.read():
            got[name].append(piece)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, "early")
        for piece in (b"a", b"b"):
            await recording.write(piece)
            await wait_all_tasks_blocked()
        nursery.start_soon(read, "late")
        await wait_all_tasks_blocked()
        await recording.write(b"c")
        recording.end()
    assert got == {"early": [b"a", b"b", b"c"], "late": [b"ab", b"c"]}


async def test_a_recording_that_is_too_long_waits_for_its_slowest_reader() -> None:
    recording = Recording(10)
    written = 0

    async def write() -> None:
        nonlocal written
        for _ in range(10):
            await recording.write(b"1234")
            written += 1
        recording.end()

    async with trio.open_nursery() as nursery:
        slow = recording.read()
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        assert (written, recording.whole, recording.size_bytes) == (2, False, 12)
        total = b""
        async for piece in slow:
            total += piece
            await wait_all_tasks_blocked()
            assert recording.size_bytes <= 14
        assert total == b"1234" * 10
    assert written == 10


async def test_a_run_that_is_too_long_to_keep_cannot_be_joined() -> None:
    work = Work(size=5 << 20)
    async with living() as retries:
        with ExitStack() as stack:
            run, _ = joined(stack, retries, NAMED, work)
            work.go.set()
            await wait_all_tasks_blocked()
            with pytest.raises(InvalidRequest) as caught:
                joined(stack, retries, NAMED, work)
            assert (caught.value.status, caught.value.code) == (409, "idempotency_key_in_use")
            assert len((await reply_of(run))[1]) == 5 << 20
        assert counts(retries) == (0, 0, 0)


async def test_a_recording_that_ends_before_it_began_says_so() -> None:
    recording = Recording(10)
    recording.end()
    with pytest.raises(RuntimeError, match="before it began"):
        await recording.head()


# Keys ----------------------------------------------------------------------------------------------------------------

COUNTED = [(b"x-stainless-retry-count", b"0"), (b"x-stainless-read-timeout", b"600")]


def key_of(
    *headers: tuple[bytes, bytes], stream: bool = False, body: bytes = b"{}", **caller: Any
) -> RetryKey | None:
    return retry_key(Caller(**caller), "/v1/messages", headers, body, stream=stream)


def test_requests_that_nobody_retries_have_no_key() -> None:
    assert key_of() is None
    assert key_of(*COUNTED, stream=True) is None
    assert key_of((b"x-stainless-retry-count", b"many")) is None
    assert key_of((b"x-stainless-read-timeout", b"600")) is None


@pytest.mark.parametrize(("count", "again"), [(b"0", False), (b"1", True), (b"2", True), (b"10", True)])
def test_the_client_s_count_of_retries(count: bytes, again: bool) -> None:
    key = key_of((b"x-stainless-retry-count", count))
    assert key is not None
    assert (key.again, key.explicit, key.patience_s) == (again, False, None)


@pytest.mark.parametrize(
    ("headers", "patience_s"),
    [
        ([(b"x-stainless-read-timeout", b"600.5"), (b"x-stainless-timeout", b"9")], 600.5),
        ([(b"x-stainless-timeout", b"600")], 600.0),
        ([(b"x-stainless-timeout", b"NOT_GIVEN")], None),
        ([(b"x-stainless-timeout", b"None")], None),
        ([(b"x-stainless-timeout", b"nan")], None),
        ([(b"x-stainless-timeout", b"inf")], None),
        ([(b"x-stainless-timeout", b"-1")], None),
    ],
)
def test_the_client_s_patience(headers: list[tuple[bytes, bytes]], patience_s: float | None) -> None:
    key = key_of((b"x-stainless-retry-count", b"0"), *headers)
    assert key is not None
    assert key.patience_s == patience_s


def test_what_makes_two_requests_the_same() -> None:
    def digest(**fields: Any) -> bytes:
        key = key_of(*COUNTED, **fields)
        assert key is not None
        return key.digest

    assert digest() == digest()
    different: list[Callable[[], bytes]] = [
        lambda: digest(body=b"{ }"),
        lambda: digest(session="s"),
        lambda: digest(memory="off"),
        lambda: digest(cache="refresh"),
    ]
    assert len({digest(), *(make() for make in different)}) == 5
    named, other = key_of(idempotency_key="k", stream=True), key_of(idempotency_key="k", body=b"x")
    assert named is not None
    assert other is not None
    assert named.index == other.index
    assert named.explicit
    assert named.digest != other.digest
