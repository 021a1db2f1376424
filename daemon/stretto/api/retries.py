"""Retries of a request join its run instead of making another.

A run is the work for one request, and outlives the connection that began it where a retry is to be expected:

- **running**: somebody waits for it.
- **orphaned**: nobody does any more, and a retry may come; for a few seconds, then the work is cancelled.
- **kept**: it is done, and its reply is there for a retry: a while for a key that the client made, else for what is left of those seconds.

A client that leaves without being expected back ends its run at once, as everywhere. What failed is not kept: a retry runs it anew.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum

import trio

from stretto.api.recording import Recording
from stretto.api.retry_key import RetryKey
from stretto.errors import InvalidRequest, StrettoError

logger = logging.getLogger(__name__)

_MOST_BYTES = 4 << 20
_MOST_KEPT_BYTES = 64 << 20
_MOST_KEPT_BYTES_OF_ONE = 16 << 20
_KEPT_ENTRY_BYTES = 4096  # what a kept reply takes beside its own size
_MOST_TOLD = 1024

Play = Callable[[Recording], Awaitable[None]]
"""Does the work of a request, into a recording."""


class State(Enum):
    """Where a run is; see the module's text."""

    RUNNING = "running"
    ORPHANED = "orphaned"
    KEPT = "kept"
    GONE = "gone"


class Change(Enum):
    """What happens to a run."""

    JOINED = "joined"
    LEFT = "left"  # by the last one who waited, and a retry may come
    ABANDONED = "abandoned"  # the same, and none will
    EXPIRED = "expired"
    DONE = "done"
    FAILED = "failed"


TRANSITIONS: Mapping[State, Mapping[Change, State]] = {
    State.RUNNING: {
        Change.JOINED: State.RUNNING,
        Change.LEFT: State.ORPHANED,
        Change.ABANDONED: State.GONE,
        Change.DONE: State.KEPT,
        Change.FAILED: State.GONE,
    },
    State.ORPHANED: {
        Change.JOINED: State.RUNNING,
        Change.EXPIRED: State.GONE,
        Change.DONE: State.KEPT,
        Change.FAILED: State.GONE,
    },
    State.KEPT: {
        Change.JOINED: State.KEPT,
        Change.LEFT: State.KEPT,
        Change.ABANDONED: State.KEPT,
        Change.EXPIRED: State.GONE,
    },
    State.GONE: {
        Change.LEFT: State.GONE,
        Change.ABANDONED: State.GONE,
        Change.DONE: State.GONE,
        Change.FAILED: State.GONE,
    },
}
"""The only changes there are."""


class Run:
    """One run of a request, and those who wait for it. Made by ``Retries``.

    Attributes:
        key: of the request that began it.
        request_id: the same for all who wait.
        recording: its reply.
    """

    def __init__(self, key: RetryKey, request_id: str) -> None:
        self.key = key
        self.request_id = request_id
        self.recording = Recording(_MOST_BYTES)
        self.state = State.RUNNING
        self.waiting = 0
        self.work = trio.CancelScope()
        self.timer: trio.CancelScope | None = None
        self.expires = 0.0

    @property
    def kept_bytes(self) -> int:
        """What it takes to keep it."""
        return self.recording.size_bytes + _KEPT_ENTRY_BYTES


class Retries:
    """All runs of a daemon. ``run`` is the task that they live in; everything else is called on the event loop too.

    Args:
        grace_s: how long work goes on for a client that is expected back.
        keep_s: how long the reply to a key that the client made is kept.
    """

    def __init__(self, *, grace_s: float = 5.0, keep_s: float = 60.0) -> None:
        self._grace_s = grace_s
        self._keep_s = keep_s
        self._nursery: trio.Nursery | None = None
        self._runs: dict[object, list[Run]] = {}
        self._told: OrderedDict[object, tuple[int, float]] = OrderedDict()
        self._draining = False
        self._joined_total = 0
        self._cancelled_total = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, and with it all that still runs."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    @contextmanager
    def joined(self, key: RetryKey, request_id: str, play: Play, began: float) -> Iterator[tuple[Run, bool]]:
        """Wait for the run of a request, and learn whether it was there already; else it is begun.

        Whoever leaves the block last, before the run is done, leaves it to a retry or ends it.

        Args:
            key: of the request.
            request_id: the run's, if it is begun.
            play: does its work then.
            began: trio's time at which the request came.

        Raises:
            InvalidRequest: 422 ``idempotency_key_reused``: the key came with another request before; 409
                ``idempotency_key_in_use``: its run cannot be joined any more.
        """
        found = self._of_key(key) if key.explicit else self._of_body(key)
        if found is None:
            run = self._begin(key, request_id, play)
        else:
            run = found
            self._joined_total += 1
            self._change(run, Change.JOINED)
        run.waiting += 1
        try:
            yield run, found is not None
        finally:
            run.waiting -= 1
            if not run.waiting:
                back = not self._draining and key.comes_back(trio.current_time() - began)
                self._change(run, Change.LEFT if back and self._grace_s > 0 else Change.ABANDONED)

    def drain(self) -> None:
        """Nobody is waited for from now on."""
        self._draining = True
        for run in [run for runs in self._runs.values() for run in runs if run.state is State.ORPHANED]:
            self._change(run, Change.EXPIRED)

    def stats(self) -> dict[str, object]:
        """Runs by state, what is kept of them, and how many requests were spared a run of their own."""
        runs = [run for runs in self._runs.values() for run in runs]
        return {
            **{
                state.value: sum(run.state is state for run in runs)
                for state in State
                if state is not State.GONE
            },
            "kept_bytes": sum(run.kept_bytes for run in runs if run.state is State.KEPT),
            "joined_total": self._joined_total,
            "cancelled_total": self._cancelled_total,
        }

    # Finding a run ---------------------------------------------------------------------------------------------------

    def _of_key(self, key: RetryKey) -> Run | None:
        run = next(iter(self._runs.get(key.index, ())), None)
        if run is None:
            return None
        if run.key.digest != key.digest:
            raise InvalidRequest(
                "The header 'idempotency-key' came with another request before.",
                code="idempotency_key_reused",
                status=422,
                param="idempotency-key",
                remedy="Make a new key for each request, and send the same body again in a retry.",
            )
        if not run.recording.whole:
            raise InvalidRequest(
                f"The request with this 'idempotency-key' is being answered, with more than the {_MOST_BYTES} bytes that are kept of "
                "an answer; it cannot be joined any more.",
                code="idempotency_key_in_use",
                status=409,
                param="idempotency-key",
                remedy="Send it with another key to run it again.",
            )
        return run

    def _of_body(self, key: RetryKey) -> Run | None:
        """The run that a retry without a key is of: one that lost its client, else one that still seems to have it.

        A client that was told an error retries too. That is no retry of a run which another client began with the same body.
        """
        if not key.again:
            return None
        runs = [run for run in self._runs.get(key.index, ()) if run.recording.whole]
        lost = next((run for run in runs if not run.waiting), None)
        if lost is not None or self._forget_told(key):
            return lost
        return next(iter(runs), None)

    def _tell(self, run: Run) -> None:
        """Note that whoever waits for a run is told its error."""
        now = trio.current_time()
        count, until = self._told.pop(run.key.index, (0, now))
        self._told[run.key.index] = (run.waiting + (count if now < until else 0), now + self._keep_s)
        if len(self._told) > _MOST_TOLD:
            self._told.popitem(last=False)

    def _forget_told(self, key: RetryKey) -> bool:
        count, until = self._told.get(key.index, (0, 0.0))
        if not count or trio.current_time() >= until:
            self._told.pop(key.index, None)
            return False
        self._told[key.index] = (count - 1, until)
        return True

    # A run's life ----------------------------------------------------------------------------------------------------

    def _begin(self, key: RetryKey, request_id: str, play: Play) -> Run:
        run = Run(key, request_id)
        self._runs.setdefault(key.index, []).append(run)
        assert self._nursery is not None
        self._nursery.start_soon(self._work, run, play)
        return run

    async def _work(self, run: Run, play: Play) -> None:
        failure: Exception | None = None
        done = False
        with run.work:
            try:
                await play(run.recording)
                done = True
            except Exception as error:
                failure = error
        run.recording.end(failure)
        if failure is not None and run.waiting:
            if not run.key.explicit:
                self._tell(run)
        elif failure is not None and not isinstance(failure, StrettoError):
            logger.error("Request %s failed with nobody waiting", run.request_id, exc_info=failure)
        self._change(run, Change.DONE if done else Change.FAILED)

    def _change(self, run: Run, change: Change) -> None:
        before, run.state = run.state, TRANSITIONS[run.state][change]
        if run.state is before and run.state is not State.RUNNING:
            return
        if run.timer is not None and not (before is State.ORPHANED and run.state is State.KEPT):
            run.timer.cancel()
            run.timer = None
        if run.state is State.ORPHANED:
            self._time(run, self._grace_s)
        elif run.state is State.KEPT:
            self._keep(run)
        elif run.state is State.GONE:
            if not run.recording.ended:
                self._cancelled_total += 1
            run.work.cancel()
            self._remove(run)

    def _keep(self, run: Run) -> None:
        """Keep a reply as long as it may be asked for, and as there is room."""
        if not run.recording.whole or not (run.key.explicit or run.timer is not None):
            self._change(run, Change.EXPIRED)
            return
        if run.key.explicit:
            if run.timer is not None:
                run.timer.cancel()
            self._time(run, self._keep_s)
        kept = [each for runs in self._runs.values() for each in runs if each.state is State.KEPT]
        kept.sort(key=lambda each: each.expires)
        for those, most in (
            ([each for each in kept if each.key.tenant == run.key.tenant], _MOST_KEPT_BYTES_OF_ONE),
            (kept, _MOST_KEPT_BYTES),
        ):
            size = sum(each.kept_bytes for each in those)
            for each in those:
                if size <= most:
                    break
                size -= each.kept_bytes
                if each.state is State.KEPT:
                    self._change(each, Change.EXPIRED)

    def _time(self, run: Run, seconds: float) -> None:
        run.timer = trio.CancelScope()
        run.expires = trio.current_time() + seconds
        assert self._nursery is not None
        self._nursery.start_soon(self._expire, run, run.timer)

    async def _expire(self, run: Run, timer: trio.CancelScope) -> None:
        with timer:
            await trio.sleep_until(run.expires)
        if not timer.cancel_called:
            run.timer = None
            self._change(run, Change.EXPIRED)

    def _remove(self, run: Run) -> None:
        runs = self._runs.get(run.key.index, [])
        if run in runs:
            runs.remove(run)
        if not runs:
            self._runs.pop(run.key.index, None)
