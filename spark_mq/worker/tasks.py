"""Hold leases for a worker, make tasks of them, and decide their verdicts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from spark_mq.errors import InvalidHandlerResult, SparkMQError
from spark_mq.handler import HandlerPolicy, describe_held, parse_result, parts_for
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.intervals import Interval, from_sequences, subtract
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.settle import REJECT, RELEASE, SettlePart
from spark_mq.message import ReceivedMessage
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import (
    OUTAGES,
    find_store_failure,
    may_be_outage,
    outage_pause,
)
from spark_mq.operations.settle import HeldLease
from spark_mq.operations.work_report import reported_work
from spark_mq.util.failures import safe_text, to_failure
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

_log = logging.getLogger("spark_mq.worker")


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


class WorkerLease(Lease):
    """The lease that a handler gets, and what its worker asks it."""

    open_tasks = 0  # that are not settled yet

    @property
    def group(self) -> GroupLedger:
        return self._ledger

    @property
    def is_suspect(self) -> bool:
        """Return whether its messages failed as part of a whole lease before."""
        return self._ranges[0].suspect

    def intervals(self) -> list[Interval]:
        """Return the places of the messages that can be read."""
        return [(r.first, r.last) for r in self._ranges]

    def keep_only(self, intervals: Sequence[Interval]) -> None:
        """Keep the messages of some intervals. The others are settled, or of another lease."""
        index = self._ledger.messages.index(max(r.last for r in self._ranges))
        with self._lock:
            self._ranges = tuple(
                piece for r in self._ranges for piece in r.within(intervals, index)
            )

    @property
    def held(self) -> HeldLease:
        """Return what is not settled yet, and how long the lease lasts."""
        return self._held

    def check_outcomes(self, outcomes: Iterable[str | None]) -> None:
        """Raise LeaseLost if the outcomes of a handler do not fit what it has appended."""
        self._guard.check_outcomes(outcomes, "handler")

    def reported(self) -> AbstractContextManager[Callable[..., Any]]:
        """Return the block in which a handler is called. It yields a caller that reports it."""
        return reported_work([(self._ledger, lambda: self._ranges)], self.worker_id)

    # -- its time

    def limit_extensions(self, limit: int | None) -> int:
        """Let extensions end after `limit` microseconds, if any. Return how long each may be."""
        if limit is not None:
            return self._start_limit(limit)
        self._held.ends_at = None
        return self._timeout

    def has_expired(self, now: int) -> bool:
        return now > self._held.expires_at

    def has_ended(self) -> bool:
        """Return whether its longest duration is over, and it has expired."""
        return self._held.has_ended(self._ledger.now())

    # -- its messages

    def lanes(self) -> dict[int, int]:
        """Return the lane of each message by sequence. A group without order has none."""
        index = self._ledger.messages.index(self._ranges[-1].last)
        if not is_ordered(index, self._ledger.last_settings):
            return {}
        lanes: dict[int, int] = {}
        for r in self._ranges:
            for slot, first, last in index.slot_runs(r.first, r.last):
                if (lane := index.layout.lane_of(slot)) is not None:
                    lanes.update(dict.fromkeys(range(first, last + 1), lane))
        return lanes

    def deliveries(self) -> dict[int, int]:
        """Return the number of unsettled messages by delivery count."""
        index = self._ledger.messages.index(max((r.last for r in self._ranges), default=0))
        counts: dict[int, int] = {}
        left = self._held.unsettled()
        for r in self._ranges:
            settled = subtract([(r.first, r.last)], left)
            parts = subtract([(r.first, r.last)], settled)
            if count := sum(index.count(first, last) for first, last in parts):
                counts[r.delivery_count] = counts.get(r.delivery_count, 0) + count
        return counts

    def keep(self, messages: list[ReceivedMessage], rejected: Mapping[str, Sequence[int]]) -> None:
        """Keep some messages, and reject the others by reason, in one commit."""
        self.messages = messages
        if not rejected:
            return
        parts = [
            SettlePart(REJECT, self.lease_id, from_sequences(sequences), error=why)
            for why, sequences in rejected.items()
        ]
        try:
            outcomes = self._ledger.settle(parts)
        except OUTAGES:
            self._store_failed = True
            raise
        self.keep_only(from_sequences(message.sequence for message in messages))
        for part, outcome in zip(parts, outcomes, strict=True):
            self._held.note_settle(part, outcome)

    # -- its store

    def suspected_outage(self, error: Exception | None) -> Exception | None:
        """Return the error of a handler, or of this lease, that may be one of a failing store."""
        if self._outage is None and not may_be_outage(error):
            return None
        return error or self._outage

    def met_outage(self, error: Exception) -> bool:
        """Return whether a handler failed because the queue's store does."""
        # Its error alone is no proof, because it may be one of another store, for ever.
        return self._outage is not None or (
            may_be_outage(error)
            and (self._store_failed or find_store_failure(self._ledger, self.lease_id) is not None)
        )


class _Runner(Protocol):
    def claim(self, task: Task) -> bool:
        """Return whether a handler may have a task: its lease lasts, and nobody has it."""

    def finish(self, task: Task, result: Any, error: BaseException | None) -> float:
        """Note how a handler ended. Return the seconds that its caller has to pause."""


@dataclass(eq=False, slots=True)
class Task:
    """The handling of a lease, or of one of its messages, by a pool."""

    feed: _Runner
    handler: Callable[[Any], Any]
    lease: WorkerLease
    message: ReceivedMessage | None = None
    started: float = 0.0  # monotonic, once a handler has it
    seconds: float = 0.0  # that its handler took

    def __str__(self) -> str:
        group = self.lease.group.name
        if self.message is not None:
            return f"message {self.message.sequence} of group {group}"
        size = show_count(len(self.lease), "message")
        return f"lease {self.lease.lease_id} of group {group} with {size}"

    def describe(self, limit: int | None) -> str:
        """Describe for a log what a handler failed with. `limit` is that of the deliveries."""
        if self.message is None:
            return describe_held(self.lease.deliveries(), limit)
        of = f" of {limit}" if limit else ""
        return f"message {self.message.sequence} (delivery {self.message.delivery_count}{of})"

    def is_last_attempt(self, limit: int | None) -> bool:
        """Return whether no retry follows a failure, as after a last attempt or a handler's ack."""
        message = self.message
        counts = self.lease.deliveries() if message is None else (message.delivery_count,)
        return not counts or (limit is not None and max(counts) >= limit)

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
        with self.lease.reported() as run:
            return self._run(run, self.handler, self.lease)

    def _run(self, call: Callable[..., Any], *arguments: Any) -> float:
        try:
            result = call(*arguments)
        except BaseException as error:
            return self.finish(error=error)
        return self.finish(result)


Done = tuple[Task, Verdict]


class LeaseTasks:
    """The tasks of ``mode="batch"``: each lease is one.

    Its handler's thread settles it, before it has another one.
    """

    settles_alone = True

    def __init__(self, handler: Callable[[WorkerLease], Any], options: TaskOptions) -> None:
        self._handler, self._options = refuse_decisions(handler), options

    def lease_command(self, wanted: int) -> Acquire:
        """Return the command that leases as many tasks."""
        return self._options.lease

    def of_lease(self, feed: _Runner, lease: WorkerLease) -> list[tuple[Task, int | None]]:
        """Return the tasks of a lease, each with its lane. Raise an error of the store."""
        return [(Task(feed, self._handler, lease), None)]

    def verdict(self, task: Task, result: Any) -> Verdict:
        """Return the verdict of a handler that has returned. Raise InvalidHandlerResult."""
        rows = parse_result(result, task.lease.lease_id, task.lease.intervals())
        task.lease.check_outcomes(row.outcome for row in rows)
        return Verdict(self._options.policy.verb_for_rest(failed=False), rows=rows)

    def parts(self, done: Sequence[Done]) -> list[SettlePart]:
        parts: list[SettlePart] = []
        for task, verdict in done:
            unsettled = task.lease.held.unsettled()
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
    """The tasks of ``mode="message"``: each message of a lease is one. The feed settles them."""

    settles_alone = False

    def __init__(self, handler: Callable[[ReceivedMessage], Any], options: TaskOptions) -> None:
        self._handler, self._options = handler, options

    def lease_command(self, wanted: int) -> Acquire:
        return replace(self._options.lease, max_messages=max(1, wanted))

    def of_lease(self, feed: _Runner, lease: WorkerLease) -> list[tuple[Task, int | None]]:
        messages = lease.messages
        lanes = lease.lanes() if messages else {}
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


Tasks: TypeAlias = LeaseTasks | MessageTasks


class Verdicts:
    """Decides the verdicts of a feed's tasks, and counts outages of the store."""

    def __init__(
        self,
        ledger: GroupLedger,
        tasks: Tasks,
        policy: HandlerPolicy,
        state: WorkState,
        count_failure: Callable[[Task, Verdict, Exception], None],
    ) -> None:
        self._ledger, self._tasks, self._policy, self._state = ledger, tasks, policy, state
        self._count_failure = count_failure
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

        An error of a store may be an outage. This thread finds out if it may look at the store.
        """
        failure = None if error is None else to_failure(error)
        if task.message is None and isinstance(failure, InvalidHandlerResult):
            raise failure  # of a decision about one message
        verdict = self._verdict(task, result, failure)
        if verdict.suspected_outage is None:
            if error is None:
                self._outages = 0
            self._note_failure(task, verdict)
            return verdict, 0.0
        if self._tasks.settles_alone:
            ((_, verdict),) = self.without_suspicion([(task, verdict)])
            if verdict.failure is not None:
                return verdict, 0.0
        return verdict, self.count_outage()

    def _verdict(self, task: Task, result: Any, error: Exception | None) -> Verdict:
        own = None if isinstance(error, Decision) else error
        if (suspected := task.lease.suspected_outage(own)) is not None:
            return Verdict(RELEASE, suspected_outage=suspected)
        if error is not None:
            return verdict_of_error(error, self._policy)
        try:
            return self._tasks.verdict(task, result)
        except SparkMQError:
            raise
        except BaseException as wrong:  # of the result's own methods
            return verdict_of_error(to_failure(wrong, "the result of the handler"), self._policy)

    def without_suspicion(self, done: Sequence[Done]) -> list[Done]:
        """Return tasks with their verdicts. Look at the store if a handler met an error of one."""
        resolved, met = list[Done](), dict[str, bool]()
        for task, verdict in done:
            if (error := verdict.suspected_outage) is not None:
                lease = task.lease
                if lease.lease_id not in met:
                    met[lease.lease_id] = lease.met_outage(error)
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
        """Count a failure. The policy may end the work."""
        if verdict.failure is None:
            return
        self._count_failure(task, verdict, verdict.failure)
        if self._policy.on_error == "raise":
            self._state.fail(verdict.failure)
