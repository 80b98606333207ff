"""Keep the tasks of a feed by state, those of a lane in order, and decide how many it leases."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final

from spark_mq.ledger.settle import NACK, RELEASE
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.pools import Pool
from spark_mq.worker.tasks import Done, Task, WorkerLease

_PREFETCH_SECONDS: Final = 1.0  # a feed leases no more than its handlers need for this time
_SMOOTHING: Final = 0.2  # share of the newest duration in the average


class OpenTasks:
    """The tasks of a feed that wait for a handler, run, or wait for their settle. Thread-safe.

    A finished task waits `linger` seconds for others. `changed` is set if the feed has to look: at
    a finished task that is the first, or that has to be settled now.
    """

    def __init__(self, pool: Pool, demand: Demand, linger: float) -> None:
        self._pool, self._demand, self._linger = pool, demand, linger
        self.changed = threading.Event()
        self._lock = threading.RLock()
        self._chains = LaneChains()
        self._unclaimed: dict[Task, None] = {}
        self._running: dict[Task, None] = {}
        self._done: list[Done] = []
        self._settling = 0  # tasks that the threads of their handlers settle
        self._settle_at = 0.0  # when to settle what is done, even if nothing else ends

    # -- what the feed asks

    def running(self) -> list[Task]:
        """Return the tasks that handlers have, the oldest first."""
        with self._lock:
            return list(self._running)

    def oldest(self) -> Task | None:
        """Return the running task that began first, or None."""
        with self._lock:
            return next(iter(self._running), None)

    def is_running(self, task: Task) -> bool:
        with self._lock:
            return task in self._running

    def is_busy(self) -> bool:
        """Return whether a handler has a task, or gets one soon, or its thread settles one."""
        with self._lock:
            return self._unfinished() > 0

    def is_settling(self) -> bool:
        with self._lock:
            return self._settling > 0

    def is_empty(self) -> bool:
        with self._lock:
            return not (self._done or self._unfinished())

    def has_paused_lane(self) -> bool:
        with self._lock:
            return self._chains.paused

    def wanted(self) -> int:
        """Return how many tasks to lease now."""
        with self._lock:
            return self._demand.wanted(self._pool.concurrency, self._unfinished(), self._chains)

    def must_settle(self) -> bool:
        """Return whether finished tasks wait no longer for others."""
        with self._lock:
            if not self._done:
                return False
            full = len(self._done) >= self._demand.most
            wants_more = not self._demand.dry and self.wanted() > 0
            late = time.monotonic() >= self._settle_at
            return full or wants_more or late or not self._unfinished()

    def time_left(self) -> float | None:
        """Return for how many seconds the feed may wait for messages, or None without a task."""
        with self._lock:
            if self._done:
                return self._settle_at - time.monotonic() if self._unfinished() else -1.0
            return float("inf") if self._unfinished() else None

    def wait(self, most: float) -> None:
        """Wait until something changes or must be settled, for `most` seconds at most."""
        with self._lock:
            until = self._settle_at if self._done else float("inf")
        self.changed.wait(min(max(0.0, until - time.monotonic()), most))
        self.changed.clear()  # before the feed looks, so that it misses no change in between

    # -- the life of a task

    def add(self, tasks: Sequence[tuple[Task, int | None]]) -> None:
        """Give new tasks to the pool. Each has a lane or None."""
        with self._lock:
            self._unclaimed.update((task, None) for task, _ in tasks)
            for task, lane in tasks:
                if lane is None or self._chains.add(lane, task):
                    self._pool.submit(task)

    def claim(self, task: Task, now: int | None) -> bool:
        """Return whether a handler may have a task. With `now`, an expired one only ends."""
        with self._lock:
            if task not in self._unclaimed:
                return False
            del self._unclaimed[task]
            if now is not None and task.lease.has_expired(now):
                self._add_done(task, Verdict(None))
                self._advance_lane(task)
                return False
            task.started = time.monotonic()  # without the wait for the lock
            self._running[task] = None
            return True

    def finish(self, task: Task, verdict: Verdict, *, alone: bool) -> bool:
        """End a running task, which its thread settles `alone`. Return False if it has ended."""
        with self._lock:
            if not self.is_running(task):
                return False
            del self._running[task]
            self._note_end(task, verdict)
            if alone:
                self._settling += 1
            else:
                self._add_done(task, verdict)
            return True

    def end_alone(self) -> None:
        """Note that the thread of a handler has settled its task."""
        with self._lock:
            self._settling -= 1

    def give_up(self, task: Task) -> bool:
        """Take a task from its handler until :meth:`end_late`. Return False if it has ended."""
        with self._lock:
            if task not in self._running:
                return False
            del self._running[task]  # before its coroutine ends as one that was cancelled
            self._settling += 1
            self._pool.give_up(task)
            return True

    def end_late(self, task: Task, verdict: Verdict) -> None:
        """Give a task that was given up to the feed's thread, which settles it."""
        with self._lock:
            self.end_alone()
            self._note_end(task, verdict)
            self._add_done(task, verdict)

    def end_lease(self, lease: WorkerLease) -> int:
        """Release the unclaimed tasks of a lease, and give up the others. Return their number."""
        with self._lock:
            self._take_back(self._unclaimed, RELEASE, lease)
            running = self._take_back(self._running, None, lease)
            for task in running:
                self._pool.give_up(task)
        return len(running)

    def release(self, *, running: bool = False) -> None:
        """End the unclaimed tasks, or the running ones, and let their messages be released."""
        with self._lock:
            self._take_back(self._running if running else self._unclaimed, RELEASE)

    def take_done(self) -> list[Done]:
        with self._lock:
            done, self._done = self._done, []
        return done

    def done_leases(self) -> list[WorkerLease]:
        """Return the lease of each finished task that waits for its settle."""
        with self._lock:
            return [task.lease for task, _ in self._done]

    def advance_lanes(self, tasks: Sequence[Task]) -> None:
        """Remove tasks from their lanes, and give the next ones to the pool."""
        with self._lock:
            for task in tasks:
                self._advance_lane(task)

    def drop_unclaimed(self, places: Collection[tuple[str, int, int]]) -> list[Task]:
        """Drop the messages in some intervals that no handler has. Return their tasks."""
        if not places:
            return []
        with self._lock:
            dropped = [task for task in self._unclaimed if task.is_among(places)]
            for task in dropped:
                del self._unclaimed[task]
        return dropped

    # -- under the lock

    def _unfinished(self) -> int:
        """Return how many tasks wait for a handler, are with one, or are settled by its thread."""
        return len(self._unclaimed) + len(self._running) + self._settling

    def _note_end(self, task: Task, verdict: Verdict) -> None:
        """Note how a task ended. Its lane goes on, or waits for the settle."""
        task.seconds = time.monotonic() - task.started
        self._demand.note_end(task.seconds, failed=verdict.verb == NACK or verdict.handler_failed)
        if verdict.verb in (NACK, RELEASE):
            self._chains.pause(task)
        else:
            self._advance_lane(task)

    def _advance_lane(self, task: Task) -> None:
        if (following := self._chains.remove(task)) is not None:
            self._pool.submit(following)

    def _add_done(self, task: Task, verdict: Verdict) -> None:
        first = not self._done
        if first:
            self._settle_at = time.monotonic() + self._linger
        if self._chains.paused:
            self._settle_at = 0.0
        self._done.append((task, verdict))
        # Not for each task, because the feed's thread would take turns with those of the handlers.
        if not self.changed.is_set() and (first or self.must_settle()):
            self.changed.set()

    def _take_back(
        self, tasks: dict[Task, None], verb: str | None, lease: WorkerLease | None = None
    ) -> list[Task]:
        """End the tasks of one lease, or all, without their handlers. Return them."""
        ended = [task for task in tasks if lease is None or task.lease is lease]
        for task in ended:
            del tasks[task]
            self._add_done(task, Verdict(verb))
        return ended


class Demand:
    """Decides how many tasks a feed leases. It holds `most` of them at most."""

    def __init__(self, most: int, poll: float, *, may_prefetch: bool) -> None:
        self.most, self._poll, self._may_prefetch = most, poll, may_prefetch
        self.dry = False  # the last try found nothing to lease
        self._duration: float | None = None  # the average time of a handler in seconds
        self._look_at = 0.0  # when to try other lanes again
        self._failed = False  # the last handler has failed

    def note_end(self, seconds: float, *, failed: bool) -> None:
        """Note how long a handler took, and whether it failed."""
        known = seconds if self._duration is None else self._duration
        self._duration = known + _SMOOTHING * (seconds - known)
        self._failed = failed

    def note_try(self, leased: bool) -> None:
        """Note whether a try to lease has leased something."""
        self.dry, self._look_at = not leased, time.monotonic() + self._poll

    def wanted(self, concurrency: int, held: int, chains: LaneChains) -> int:
        """Return how many tasks to lease now, with `held` in hand, some of them in lanes."""
        return self._room(concurrency, held) or self._room_for_lanes(concurrency, held, chains)

    def _room(self, concurrency: int, held: int) -> int:
        """Return how many tasks to lease: 0 as long as enough are in hand."""
        wanted = concurrency
        # After a failure, small leases open the breaker before many messages have failed.
        if self._duration is not None and self._may_prefetch and not self._failed:
            wanted += round(concurrency * _PREFETCH_SECONDS / max(self._duration, 1e-6))
        wanted = min(wanted, self.most)
        enough = concurrency + (wanted - concurrency) // 2
        return wanted - held if held < min(enough, wanted) else 0

    def _room_for_lanes(self, concurrency: int, held: int, chains: LaneChains) -> int:
        """Return how many tasks to lease for handlers that the lanes in hand leave idle."""
        if not chains or (self.dry and time.monotonic() < self._look_at):
            return 0
        # No lease gets the lanes that another one holds, so these are messages of other lanes.
        busy = chains.lanes + max(0, held - len(chains))
        return max(0, min(concurrency - busy, self.most - held))


class LaneChains:
    """The running and waiting tasks by lane, of which only the first may run. The caller locks.

    A task whose message failed *pauses* its lane, until its settle shows which of the later
    messages came back.
    """

    def __init__(self) -> None:
        self._chains: dict[int, deque[Task]] = {}
        self._lanes: dict[Task, int] = {}
        self._paused: set[int] = set()

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def lanes(self) -> int:
        """Return the number of lanes that have tasks."""
        return len(self._chains)

    @property
    def paused(self) -> bool:
        return bool(self._paused)

    def add(self, lane: int, task: Task) -> bool:
        """Add a task. Return whether it may run now."""
        chain = self._chains.setdefault(lane, deque())
        chain.append(task)
        self._lanes[task] = lane
        return len(chain) == 1

    def pause(self, task: Task) -> None:
        """Pause the lane of a task, until the task is removed."""
        if task in self._lanes:
            self._paused.add(self._lanes[task])

    def remove(self, task: Task) -> Task | None:
        """Remove a task. Return the task of its lane that may run now."""
        lane = self._lanes.pop(task, None)
        if lane is None:
            return None
        chain = self._chains[lane]
        was_first = chain[0] == task
        if was_first:
            chain.popleft()
            self._paused.discard(lane)
        else:
            chain.remove(task)
        if not chain:
            del self._chains[lane]
            return None
        return chain[0] if was_first else None
