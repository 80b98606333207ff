"""Keep the tasks of a feed by their state, collect their verdicts, and settle them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from spark_mq.handler import HandlerPolicy
from spark_mq.lease import Lease
from spark_mq.ledger.settle import RELEASE
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import outage_pause
from spark_mq.util.notifier import Notifier
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.pools import Pool
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import LaneChains, Task, Tasks

__all__ = [
    "Done",
    "OpenTasks",
    "Verdicts",
]


_log = logging.getLogger("spark_mq.worker")
Done = tuple[Task, Verdict]


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


class Verdicts:
    """Decides the verdicts of a feed's tasks, and counts outages of the store."""

    def __init__(
        self, ledger: GroupLedger, tasks: Tasks, policy: HandlerPolicy, state: WorkState
    ) -> None:
        self._ledger, self._tasks, self._policy, self._state = ledger, tasks, policy, state
        self._outages = 0  # in a row

    def count_outage(self) -> float:
        """Count an outage. Return the seconds to pause."""
        pause, self._outages = outage_pause(self._outages), self._outages + 1
        return pause

    def note_outage(self, error: Exception) -> float:
        """Log and count an outage. Return the seconds to pause."""
        self._log_outage(error)
        return self.count_outage()

    def of(self, task: Task, result: Any, error: BaseException | None) -> tuple[Verdict, float]:
        """Return the verdict of a handler and the seconds to pause. Raise what must end the work.

        An error of a store leaves the verdict in doubt, unless this thread may look at the store.
        """
        if error is not None and not isinstance(error, Exception):
            raise error
        verdict = self._tasks.verdict(task, result, error)
        if verdict.doubt is None:
            if error is None:
                self._outages = 0
            self._note_failure(task, verdict)
            return verdict, 0.0
        if self._tasks.settles_alone:
            ((_, verdict),) = self.without_doubts([(task, verdict)])
            if verdict.failure is not None:
                return verdict, 0.0
        return verdict, self.count_outage()

    def without_doubts(self, done: Sequence[Done]) -> list[Done]:
        """Return tasks with their verdicts. Look at the store if a handler met an error of one."""
        resolved, met = list[Done](), dict[str, bool]()
        for task, verdict in done:
            if (error := verdict.doubt) is not None:
                lease = task.lease
                if lease.lease_id not in met:
                    met[lease.lease_id] = lease._met_outage(error)
                if met[lease.lease_id]:
                    self._log_outage(error)
                    verdict = Verdict(RELEASE)
                else:
                    verdict = self._tasks.verdict_of_failure(task, error)
                    self._note_failure(task, verdict)
            resolved.append((task, verdict))
        return resolved

    def _log_outage(self, error: Exception) -> None:
        text = "group %s: a handler met a failing store. Its messages are released, uncounted: %s"
        _log.warning(text, self._ledger.name, error)

    def _note_failure(self, task: Task, verdict: Verdict) -> None:
        """Count and log a failure. The policy may end the work."""
        if verdict.failure is None:
            return
        self._state.count_failure()
        failed = self._tasks.describe(task, self._ledger.last_settings.max_delivery_attempts)
        text = "group %s: the handler failed with %s"
        _log.warning(text, self._ledger.name, failed, exc_info=verdict.failure)
        if self._policy.on_error == "raise":
            self._state.fail(verdict.failure)
