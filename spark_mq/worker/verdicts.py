"""Decide the verdicts of tasks, and wait out a failing store, because no message is to blame."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.settle import RELEASE
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outages import outage_pause
from spark_mq.worker.decisions import Verdict
from spark_mq.worker.state import WorkState
from spark_mq.worker.tasks import Task, Tasks

__all__ = ["Done", "Verdicts"]

_log = logging.getLogger("spark_mq.worker")

Done = tuple[Task, Verdict]


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
