"""Decide how messages end, and log what their handlers met."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from spark_mq.handler import HandlerPolicy
from spark_mq.ledger.settle import RELEASE
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outages import is_outage, outage_pause
from spark_mq.per_message.decisions import Decision, MessageEnd, end_of_error, end_of_result
from spark_mq.per_message.state import WorkState
from spark_mq.per_message.task import MessageTask

__all__ = ["HandlerEnds"]

_log = logging.getLogger("spark_mq.worker")


class HandlerEnds:
    """Decides how a feed's messages end, and counts outages of the store."""

    def __init__(self, ledger: GroupLedger, policy: HandlerPolicy, state: WorkState) -> None:
        self._ledger, self._policy, self._state = ledger, policy, state
        self._outages = 0  # in a row

    def count_outage(self) -> float:
        """Count an outage. Return the seconds to pause."""
        pause, self._outages = outage_pause(self._outages), self._outages + 1
        return pause

    def note_outage(self, error: Exception) -> float:
        """Log and count an outage. Return the seconds to pause."""
        self.log_outage(error)
        return self.count_outage()

    def log_outage(self, error: Exception) -> None:
        text = "group %s: a handler met a failing store. Its message is released, uncounted: %s"
        _log.warning(text, self._ledger.name, error)

    def log_end(self, lease_id: str, running: int) -> None:
        text = "group %s: lease %s reached max_lease_duration, and %d handlers of it still run. "
        text += "Their verdicts are refused, and their messages expire"
        if running:
            _log.warning(text, self._ledger.name, lease_id, running)

    def end_of(
        self, task: MessageTask, result: Any, error: BaseException | None
    ) -> tuple[MessageEnd, float]:
        """Return the end of a message and the seconds to pause. Raise what must end the work."""
        if error is None:
            self._outages = 0
            end = end_of_result(result)
        elif not isinstance(error, Exception):
            raise error
        elif isinstance(error, Decision):
            end = end_of_error(error, self._policy)
        elif is_outage(error):
            return MessageEnd(RELEASE, doubt=error), self.count_outage()
        else:
            end = self._end_of_failure(task, error)
        return end, 0.0

    def resolve_doubts(
        self, done: Iterable[tuple[MessageTask, MessageEnd]]
    ) -> list[tuple[MessageTask, MessageEnd]]:
        """Return messages with their ends. Look at the store if a handler met an error of one."""
        resolved, met = [], dict[str, bool]()
        for task, end in done:
            if (error := end.doubt) is not None:
                if task.lease_id not in met:
                    met[task.lease_id] = task.held.lease._met_outage(error)
                if met[task.lease_id]:
                    self.log_outage(error)
                    end = MessageEnd(RELEASE)
                else:
                    end = self._end_of_failure(task, error)
            resolved.append((task, end))
        return resolved

    def _end_of_failure(self, task: MessageTask, error: Exception) -> MessageEnd:
        """Return the end of a message whose handler failed. The policy may end the work."""
        self._note_failure(task, error)
        end = end_of_error(error, self._policy)
        if end.verb is None:
            self._state.fail(error)
        return end

    def _note_failure(self, task: MessageTask, error: Exception) -> None:
        with self._state.lock:
            self._state.summary.failed += 1
        limit = self._ledger.last_settings.max_delivery_attempts
        message = task.message
        _log.warning(
            "group %s: the handler failed with message %d (delivery %d%s)",
            self._ledger.name, message.sequence, message.delivery_count,
            f" of {limit}" if limit else "", exc_info=error,
        )  # fmt: skip
