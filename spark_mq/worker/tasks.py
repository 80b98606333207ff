"""Make tasks of leases and messages, and decide their verdicts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from spark_mq.errors import InvalidHandlerResult, SparkMQError
from spark_mq.handler import HandlerPolicy, describe_held, parse_result, parts_for
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.settle import ACK, REJECT, RELEASE, SettlePart
from spark_mq.ledger.slots import SlotLayout
from spark_mq.message import ReceivedMessage
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import may_be_outage, outage_pause
from spark_mq.operations.work_report import reported_work
from spark_mq.util.error_shape import recent_error_shape
from spark_mq.util.failures import exc_info, safe_text, to_failure
from spark_mq.util.show import show_count
from spark_mq.worker.decisions import (
    Decision,
    Verdict,
    parts_for_verdicts,
    refuse_decisions,
    verdict_of_error,
    verdict_of_result,
)
from spark_mq.worker.state import WorkState

__all__ = [
    "Done",
    "LeaseTasks",
    "MessageTasks",
    "Task",
    "TaskOptions",
    "Tasks",
    "Verdicts",
    "verdict_on_result",
]

_log = logging.getLogger("spark_mq.worker")
_MAX_SHAPES: Final = 100  # errors of which a worker logs a traceback


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How a worker leases and settles. Times are seconds, ``limit`` is microseconds."""

    lease: Acquire  # with single messages, its max_messages is the most that a feed holds
    policy: HandlerPolicy
    limit: int
    poll: float | None  # None for the default of the group's store
    linger: float  # how long a finished task may wait for others before its settle
    until: str | None = None  # None, "empty" or "settled"
    timeout: float | None = None  # how long one call of a handler may take


class _Runner(Protocol):
    """The feed of a task."""

    def claim(self, task: Task) -> bool:
        """Return whether a handler may have a task: its lease lasts, and nobody has it."""

    def finish(self, task: Task, result: Any, error: BaseException | None) -> float:
        """Note how a handler ended. Return the seconds that its caller has to pause."""


@dataclass(eq=False, slots=True)
class Task:
    """The handling of a lease, or of one of its messages, by a pool."""

    feed: _Runner
    handler: Callable[[Any], Any]
    lease: Lease
    message: ReceivedMessage | None = None
    started: float = 0.0

    def __str__(self) -> str:
        group = self.lease._ledger.name
        if self.message is not None:
            return f"message {self.message.sequence} of group {group}"
        size = show_count(len(self.lease), "message")
        return f"lease {self.lease.lease_id} of group {group} with {size}"

    def describe(self, limit: int | None) -> str:
        """Describe for a log what a handler failed with. `limit` is that of the deliveries."""
        if self.message is None:
            return describe_held(self.lease._deliveries(), limit)
        of = f" of {limit}" if limit else ""
        return f"message {self.message.sequence} (delivery {self.message.delivery_count}{of})"

    def is_last_attempt(self, limit: int | None) -> bool:
        """Return whether no retry follows a failure, as after a last attempt or a handler's ack."""
        message = self.message
        counts = self.lease._deliveries() if message is None else (message.delivery_count,)
        return not counts or (limit is not None and max(counts) >= limit)

    def has_expired(self, now: int) -> bool:
        """Return whether its lease has expired by `now` in microseconds."""
        return now > self.lease._held.expires_at

    def is_among(self, places: Iterable[tuple[str, int, int]]) -> bool:
        """Return whether the message is in an interval, given as (lease id, first, last)."""
        sequence = -1 if self.message is None else self.message.sequence
        return any(
            lease_id == self.lease.lease_id and first <= sequence <= last
            for lease_id, first, last in places
        )

    def claim(self) -> bool:
        return self.feed.claim(self)

    def call(self) -> Any:
        return self.handler(self.lease if self.message is None else self.message)

    def finish(self, result: Any = None, error: BaseException | None = None) -> float:
        return self.feed.finish(self, result, error)

    def run(self) -> float:
        """Call the handler in this thread. Return the seconds that the thread has to pause."""
        if self.message is not None:
            return self._run(self.handler, self.message)
        lease = self.lease
        with reported_work([(lease._ledger, lambda: lease._ranges)], lease.worker_id) as run:
            return self._run(run, self.handler, lease)

    def _run(self, call: Callable[..., Any], *arguments: Any) -> float:
        try:
            result = call(*arguments)
        except BaseException as error:
            return self.finish(error=error)
        return self.finish(result)


Done = tuple[Task, Verdict]


class Tasks(Protocol):
    """What a feed makes of its leases: tasks of one kind."""

    @property
    def settles_alone(self) -> bool:
        """Return whether the thread of a handler settles its task, before it has another one."""

    def lease_command(self, wanted: int) -> Acquire:
        """Return the command that leases as many tasks."""

    def of_lease(self, feed: _Runner, lease: Lease) -> list[tuple[Task, int | None]]:
        """Return the tasks of a lease, each with its lane. Raise an error of the store."""

    def verdict(self, task: Task, result: Any) -> Verdict:
        """Return the verdict of a handler that has returned. Raise InvalidHandlerResult."""

    def parts(self, done: Sequence[Done]) -> list[SettlePart]: ...


class LeaseTasks:
    """The tasks of ``mode="batch"``: each lease is one."""

    settles_alone = True

    def __init__(self, handler: Callable[[Lease], Any], options: TaskOptions) -> None:
        self._handler, self._options = refuse_decisions(handler), options

    def lease_command(self, wanted: int) -> Acquire:
        return self._options.lease

    def of_lease(self, feed: _Runner, lease: Lease) -> list[tuple[Task, int | None]]:
        return [(Task(feed, self._handler, lease), None)]

    def verdict(self, task: Task, result: Any) -> Verdict:
        granted = [(r.first, r.last) for r in task.lease._ranges]
        rows = parse_result(result, task.lease.lease_id, granted)
        task.lease._guard.check_outcomes((row.outcome for row in rows), "handler")
        return Verdict(self._options.policy.verb_for_rest(failed=False), rows=rows)

    def parts(self, done: Sequence[Done]) -> list[SettlePart]:
        parts: list[SettlePart] = []
        for task, verdict in done:
            unsettled = task.lease._held.unsettled()
            lease_id, policy = task.lease.lease_id, self._options.policy
            if verdict.verb == RELEASE:
                if unsettled:
                    parts.append(SettlePart(RELEASE, lease_id, unsettled, whole=True))
            elif verdict.verb is not None or verdict.rows:
                failure = verdict.failure
                result = list(verdict.rows) if failure is None else failure
                parts += parts_for(result, policy, {lease_id: unsettled})
        return parts


class MessageTasks:
    """The tasks of ``mode="message"``: each message of a lease is one."""

    settles_alone = False

    def __init__(self, handler: Callable[[ReceivedMessage], Any], options: TaskOptions) -> None:
        self._handler, self._options = handler, options

    def lease_command(self, wanted: int) -> Acquire:
        return replace(self._options.lease, max_messages=max(1, wanted))

    def of_lease(self, feed: _Runner, lease: Lease) -> list[tuple[Task, int | None]]:
        messages = lease.messages
        lanes = _lanes_of(lease) if messages else {}
        return [
            (Task(feed, self._handler, lease, message), lanes.get(message.sequence))
            for message in messages
        ]

    def verdict(self, task: Task, result: Any) -> Verdict:
        return verdict_of_result(result)

    def parts(self, done: Sequence[Done]) -> list[SettlePart]:
        if self._options.policy.ack == "on_receive":
            return []
        return parts_for_verdicts(
            (task.lease.lease_id, task.message.sequence, verdict)
            for task, verdict in done
            if task.message is not None
        )


def _lanes_of(lease: Lease) -> dict[int, int]:
    """Return the lane of each message by sequence. A group without order has none."""
    index = lease._ledger.messages.index(lease._ranges[-1].last)
    if not is_ordered(index, lease._ledger.last_settings):
        return {}
    runs = (run for r in lease._ranges for run in index.slot_runs(r.first, r.last))
    return dict(_with_lane(index.layout, runs))


def _with_lane(
    layout: SlotLayout, runs: Iterable[tuple[int, int, int]]
) -> Iterable[tuple[int, int]]:
    for number, first, last in runs:
        if (lane := layout.lane_of(number)) is not None:
            yield from ((sequence, lane) for sequence in range(first, last + 1))


def verdict_on_result(tasks: Tasks, task: Task, result: Any, policy: HandlerPolicy) -> Verdict:
    """Return the verdict of a handler that has returned. Raise InvalidHandlerResult."""
    try:
        return tasks.verdict(task, result)
    except SparkMQError:
        raise
    except BaseException as error:  # of the result's own methods
        return verdict_of_error(to_failure(error, "the result of the handler"), policy)


class Verdicts:
    """Decides the verdicts of a feed's tasks, and counts outages of the store."""

    def __init__(
        self, ledger: GroupLedger, tasks: Tasks, policy: HandlerPolicy, state: WorkState
    ) -> None:
        self._ledger, self._tasks, self._policy, self._state = ledger, tasks, policy, state
        self._outages = 0  # in a row
        self._shapes = set[tuple[str, bool]]()  # of the errors whose tracebacks were logged

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
        failure = None if error is None else to_failure(error)
        if task.message is None and isinstance(failure, InvalidHandlerResult):
            raise failure  # of a decision about one message
        verdict = self._verdict(task, result, failure)
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

    def _verdict(self, task: Task, result: Any, error: Exception | None) -> Verdict:
        outage = task.lease._outage
        if outage is not None or (may_be_outage(error) and not isinstance(error, Decision)):
            return Verdict(RELEASE, doubt=error or outage)
        if error is not None:
            return verdict_of_error(error, self._policy)
        return verdict_on_result(self._tasks, task, result, self._policy)

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
                    verdict = verdict_of_error(error, self._policy)
                    self._note_failure(task, verdict)
            resolved.append((task, verdict))
        return resolved

    def _log_outage(self, error: Exception) -> None:
        text = "group %s: a handler met a failing store. Its messages are released, uncounted: %s"
        _log.warning(text, self._ledger.name, safe_text(error))

    def _note_failure(self, task: Task, verdict: Verdict) -> None:
        """Count and log a failure. The policy may end the work."""
        if verdict.failure is None:
            return
        self._state.count("failed")
        limit = self._ledger.last_settings.max_delivery_attempts
        ends = verdict.verb in (ACK, REJECT) or task.is_last_attempt(limit)
        shape = recent_error_shape(verdict.error or ""), ends
        first = shape not in self._shapes and len(self._shapes) < _MAX_SHAPES
        if first:
            self._shapes.add(shape)
        failed = task.describe(limit)
        text = "group %s: the handler failed with %s"
        # One traceback for each kind of error. The line of the verdicts counts the others. A
        # failure that is retried is ordinary, so only one that ends a message is a warning.
        level = (logging.WARNING if ends else logging.INFO) if first else logging.DEBUG
        if _log.isEnabledFor(level):
            _log.log(level, text, self._ledger.name, failed, exc_info=exc_info(verdict.failure))
        if self._policy.on_error == "raise":
            self._state.fail(verdict.failure)
