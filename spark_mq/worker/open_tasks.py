"""Keep the tasks of a feed by their state, until they are settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence

from spark_mq.lease import Lease
from spark_mq.util.notifier import Notifier
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.lanes import LaneChains
from spark_mq.worker.pools import Pool
from spark_mq.worker.tasks import Task
from spark_mq.worker.verdicts import Done

__all__ = ["OpenTasks"]


class OpenTasks:
    """The tasks that wait for a handler, run, or wait for their settle.

    The caller holds `changed`, except for :meth:`add`, :meth:`take_done` and
    :meth:`drop_unclaimed`. `wake` is notified if the feed may have to settle. A finished task
    waits `linger` seconds for others.
    """

    def __init__(self, pool: Pool, wake: Notifier, linger: float) -> None:
        self._pool, self._wake, self._linger = pool, wake, linger
        self.changed = threading.Condition()
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

    def add(self, tasks: Sequence[tuple[Task, int | None]]) -> None:
        """Give new tasks to the pool. Each has a lane or None."""
        with self.changed:
            self.unclaimed.update((task, None) for task, _ in tasks)
            for task, lane in tasks:
                if lane is None or self.chains.add(lane, task):
                    self._pool.submit(task)

    def advance_lane(self, task: Task) -> None:
        """Remove a task from its lane, and give the next one to the pool."""
        if (following := self.chains.remove(task)) is not None:
            self._pool.submit(following)

    def add_done(self, task: Task, verdict: Verdict) -> None:
        """Add a finished task. Wake the feed if it may have to settle."""
        if not self.done:
            self.settle_at = time.monotonic() + self._linger
        if self.chains.paused:
            self.settle_at = 0.0
        self.done.append((task, verdict))
        self.changed.notify_all()
        if len(self.done) == 1 or self.chains.paused or not self.unfinished:
            self._wake.notify()

    def take_done(self) -> list[Done]:
        with self.changed:
            done, self.done = self.done, []
        return done

    def drop_unclaimed(self, places: Collection[tuple[str, int, int]]) -> list[Task]:
        """Drop the messages in some intervals that no handler has. Return their tasks."""
        with self.changed:
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
