"""Keep the tasks of a feed by state, those of a lane in order, and decide how many it leases."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Hashable, Sequence
from typing import Final, Generic, TypeVar

from spark_mq.lease import Lease
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.pools import Pool
from spark_mq.worker.tasks import Done, Task

__all__ = ["Demand", "LaneChains", "OpenTasks"]

T = TypeVar("T", bound=Hashable)

_PREFETCH_SECONDS: Final = 1.0  # a feed leases no more than its handlers need for this time
_SMOOTHING: Final = 0.2  # share of the newest duration in the average


class OpenTasks:
    """The tasks that wait for a handler, run, or wait for their settle.

    The caller holds `lock`, except for :meth:`add`, :meth:`take_done` and :meth:`drop_unclaimed`. A
    finished task waits `linger` seconds for others. `changed` is set if the feed has to look: at a
    finished task that is the first, or that has to be settled now.
    """

    def __init__(self, pool: Pool, demand: Demand, linger: float) -> None:
        self._pool, self._linger = pool, linger
        self.demand = demand
        self.lock = threading.Lock()
        self.changed = threading.Event()
        self.chains: LaneChains[Task] = LaneChains()
        self.unclaimed: dict[Task, None] = {}
        self.running: dict[Task, None] = {}
        self.done: list[Done] = []
        self.settling = 0  # tasks that the threads of their handlers settle
        self.settle_at = 0.0  # when to settle what is done, also without more

    @property
    def unfinished(self) -> int:
        """Return how many tasks wait for a handler, are with one, or are settled by its thread."""
        return len(self.unclaimed) + len(self.running) + self.settling

    def wanted(self) -> int:
        """Return how many tasks to lease now."""
        return self.demand.wanted(self._pool.concurrency, self.unfinished, self.chains)

    def must_settle(self) -> bool:
        """Return whether finished tasks wait no longer for others."""
        if not self.done:
            return False
        full = len(self.done) >= self.demand.most
        wants_more = not self.demand.dry and self.wanted() > 0
        late = time.monotonic() >= self.settle_at
        return full or wants_more or late or not self.unfinished

    def add(self, tasks: Sequence[tuple[Task, int | None]]) -> None:
        """Give new tasks to the pool. Each has a lane or None."""
        with self.lock:
            self.unclaimed.update((task, None) for task, _ in tasks)
            for task, lane in tasks:
                if lane is None or self.chains.add(lane, task):
                    self._pool.submit(task)

    def advance_lane(self, task: Task) -> None:
        """Remove a task from its lane, and give the next one to the pool."""
        if (following := self.chains.remove(task)) is not None:
            self._pool.submit(following)

    def add_done(self, task: Task, verdict: Verdict) -> None:
        """Add a finished task."""
        first = not self.done
        if first:
            self.settle_at = time.monotonic() + self._linger
        if self.chains.paused:
            self.settle_at = 0.0
        self.done.append((task, verdict))
        # Not for each task, because the feed's thread would take turns with those of the handlers.
        if not self.changed.is_set() and (first or self.must_settle()):
            self.changed.set()

    def take_done(self) -> list[Done]:
        with self.lock:
            done, self.done = self.done, []
        return done

    def drop_unclaimed(self, places: Collection[tuple[str, int, int]]) -> list[Task]:
        """Drop the messages in some intervals that no handler has. Return their tasks."""
        with self.lock:
            dropped = [task for task in self.unclaimed if places and task.is_among(places)]
            for task in dropped:
                del self.unclaimed[task]
        return dropped

    def take_back(
        self, tasks: dict[Task, None], verb: str | None, lease: Lease | None = None
    ) -> list[Task]:
        """End the tasks of one lease, or all, without their handlers. Return them."""
        found = [task for task in tasks if lease is None or task.lease is lease]
        for task in found:
            del tasks[task]
            self.advance_lane(task)
            self.add_done(task, Verdict(verb))
        return found


class Demand:
    """Decides how many tasks a feed leases. It holds `most` of them at most."""

    def __init__(self, most: int, poll: float, *, may_prefetch: bool) -> None:
        self.most, self._poll, self._may_prefetch = most, poll, may_prefetch
        self.dry = False  # the last look found nothing to lease
        self._duration: float | None = None  # the average time of a handler in seconds
        self._look_at = 0.0  # when to look for other lanes again
        self._failed = False  # the last handler has failed

    def note_end(self, seconds: float, *, failed: bool) -> None:
        """Note how long a handler took, and whether it failed."""
        known = seconds if self._duration is None else self._duration
        self._duration = known + _SMOOTHING * (seconds - known)
        self._failed = failed

    def note_look(self, found: bool) -> None:
        """Note whether a look has found something to lease."""
        self.dry, self._look_at = not found, time.monotonic() + self._poll

    def wanted(self, concurrency: int, held: int, chains: LaneChains[Task]) -> int:
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
        return max(0, wanted - held) if held < min(enough, wanted) else 0

    def _room_for_lanes(self, concurrency: int, held: int, chains: LaneChains[Task]) -> int:
        """Return how many tasks to lease for handlers that the lanes in hand leave idle."""
        if not chains or (self.dry and time.monotonic() < self._look_at):
            return 0
        # No lease gets the lanes that another one holds, so these are messages of other lanes.
        busy = chains.lanes + max(0, held - len(chains))
        return max(0, min(concurrency - busy, self.most - held))


class LaneChains(Generic[T]):
    """The running and waiting tasks by lane, of which only the first may run. The caller locks.

    A task whose message failed *pauses* its lane, until its settle shows which of the later
    messages came back.
    """

    def __init__(self) -> None:
        self._chains: dict[int, deque[T]] = {}
        self._lanes: dict[T, int] = {}
        self._paused: set[int] = set()

    def __len__(self) -> int:
        """Return the number of tasks in all lanes."""
        return len(self._lanes)

    @property
    def lanes(self) -> int:
        """Return the number of lanes that have tasks."""
        return len(self._chains)

    @property
    def paused(self) -> bool:
        """Return whether a lane waits for a settle."""
        return bool(self._paused)

    def add(self, lane: int, task: T) -> bool:
        """Add a task. Return whether it may run now."""
        chain = self._chains.setdefault(lane, deque())
        chain.append(task)
        self._lanes[task] = lane
        return len(chain) == 1

    def pause(self, task: T) -> None:
        """Pause the lane of a task, until the task is removed."""
        if task in self._lanes:
            self._paused.add(self._lanes[task])

    def remove(self, task: T) -> T | None:
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
