"""Make tasks of leases and messages, keep those of a lane in order, and settle their verdicts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, Protocol, TypeVar

from spark_mq.errors import InvalidHandlerResult
from spark_mq.handler import HandlerPolicy, commands_for, describe_held, parse_result
from spark_mq.lease import Lease
from spark_mq.ledger.acquire import Acquire
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import NACK, RELEASE, SettleCommand
from spark_mq.ledger.slots import SlotLayout
from spark_mq.message import ReceivedMessage
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import is_outage
from spark_mq.operations.work_report import reported_work
from spark_mq.worker.decisions import (
    Decision,
    Verdict,
    commands_for_verdicts,
    refuse_decisions,
    verdict_of_error,
    verdict_of_result,
)
from spark_mq.worker.pools import Pool

__all__ = [
    "LaneChains",
    "LeaseTasks",
    "MessageTasks",
    "Task",
    "TaskOptions",
    "Tasks",
    "lanes_of",
]

T = TypeVar("T", bound=Hashable)


_PREFETCH_SECONDS: Final = 1.0  # a feed leases no more than its handlers need for this time
_SMOOTHING: Final = 0.2  # share of the newest duration in the average


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


def lanes_of(ledger: GroupLedger, ranges: Sequence[Range]) -> dict[int, int]:
    """Return the lane of each message by sequence. A group without order has none."""
    index = ledger.messages.index(ranges[-1].last)
    if not is_ordered(index, ledger.last_settings):
        return {}
    runs = (run for r in ranges for run in index.slot_runs(r.first, r.last))
    return dict(_with_lane(index.layout, runs))


def _with_lane(
    layout: SlotLayout, runs: Iterable[tuple[int, int, int]]
) -> Iterable[tuple[int, int]]:
    for number, first, last in runs:
        if (lane := layout.lane_of(number)) is not None:
            yield from ((sequence, lane) for sequence in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How a worker leases and settles. Times are seconds, ``limit`` is microseconds."""

    lease: Acquire  # with single messages, its max_messages is the most that a feed holds
    policy: HandlerPolicy
    limit: int
    poll: float
    linger: float  # how long a finished task may wait for others before its settle
    until: str | None = None  # None, "empty" or "settled"


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
        return f"lease {self.lease.lease_id} of group {group} with {len(self.lease):,} messages"

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
        self.started = time.monotonic()
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


class Tasks(Protocol):
    """What a feed makes of its leases: tasks of one kind."""

    @property
    def settles_alone(self) -> bool:
        """Return whether the thread of a handler settles its task, before it has another one."""

    def wanted(self, unfinished: int, chains: LaneChains[Task]) -> int:
        """Return how many tasks to lease now, with some in hand."""

    def lease_command(self, wanted: int) -> Acquire: ...

    def note_look(self, found: bool) -> None:
        """Note whether a look has found something to lease."""

    def note_end(self, seconds: float, verdict: Verdict) -> None:
        """Note how long a handler took, and its verdict."""

    def of_lease(self, feed: _Runner, lease: Lease) -> list[tuple[Task, int | None]]:
        """Return the tasks of a lease, each with its lane. Raise an error of the store."""

    def verdict(self, task: Task, result: Any, error: Exception | None) -> Verdict:
        """Return the verdict of a handler. One in doubt has the error of a store."""

    def verdict_of_failure(self, task: Task, error: Exception) -> Verdict: ...

    def describe(self, task: Task, limit: int | None) -> str:
        """Describe for a log what a handler failed with."""

    def commands(self, done: Sequence[tuple[Task, Verdict]]) -> list[SettleCommand]: ...


class LeaseTasks:
    """The tasks of ``mode="batch"``: each lease is one."""

    settles_alone = True

    def __init__(
        self, ledger: GroupLedger, handler: Callable[[Lease], Any], options: TaskOptions, pool: Pool
    ) -> None:
        self._handler, self._options, self._pool = refuse_decisions(handler), options, pool

    def wanted(self, unfinished: int, chains: LaneChains[Task]) -> int:
        return max(0, self._pool.concurrency - unfinished)

    def lease_command(self, wanted: int) -> Acquire:
        return self._options.lease

    def note_look(self, found: bool) -> None:
        pass

    def note_end(self, seconds: float, verdict: Verdict) -> None:
        pass

    def of_lease(self, feed: _Runner, lease: Lease) -> list[tuple[Task, int | None]]:
        return [(Task(feed, self._handler, lease), None)]

    def verdict(self, task: Task, result: Any, error: Exception | None) -> Verdict:
        lease = task.lease
        if isinstance(error, InvalidHandlerResult):
            raise error
        if (doubt := error or lease._outage) and (lease._outage or is_outage(doubt)):
            return Verdict(RELEASE, doubt=doubt)
        if error is not None:
            return self.verdict_of_failure(task, error)
        granted = [(r.first, r.last) for r in lease._ranges]
        rows = parse_result(result, lease.lease_id, granted)
        return Verdict(self._options.policy.verb_for_rest(failed=False), rows=rows)

    def verdict_of_failure(self, task: Task, error: Exception) -> Verdict:
        policy = self._options.policy
        if policy.on_error == "raise":
            return Verdict(None, failure=error)
        return Verdict(policy.verb_for_rest(failed=True), failure=error)

    def describe(self, task: Task, limit: int | None) -> str:
        return describe_held(task.lease._deliveries(), limit)

    def commands(self, done: Sequence[tuple[Task, Verdict]]) -> list[SettleCommand]:
        commands: list[SettleCommand] = []
        for task, verdict in done:
            unsettled = task.lease._held.unsettled()
            lease_id, policy = task.lease.lease_id, self._options.policy
            if verdict.verb == RELEASE:
                if unsettled:
                    commands.append(SettleCommand(RELEASE, lease_id, unsettled, whole=True))
            elif verdict.verb is not None or verdict.rows:
                result = verdict.failure or list(verdict.rows)
                commands += commands_for(result, policy, {lease_id: unsettled})
        return commands


class MessageTasks:
    """The tasks of ``mode="message"``: each message of a lease is one."""

    settles_alone = False

    def __init__(
        self,
        ledger: GroupLedger,
        handler: Callable[[ReceivedMessage], Any],
        options: TaskOptions,
        pool: Pool,
    ) -> None:
        self._ledger, self._handler, self._options = ledger, handler, options
        self._demand = _Demand(
            pool,
            options.lease.max_messages,
            options.poll,
            may_prefetch=options.policy.ack != "on_receive",
        )

    def wanted(self, unfinished: int, chains: LaneChains[Task]) -> int:
        return self._demand.wanted(unfinished, len(chains), chains.lanes)

    def lease_command(self, wanted: int) -> Acquire:
        return replace(self._options.lease, max_messages=max(1, wanted))

    def note_look(self, found: bool) -> None:
        self._demand.note_look(found)

    def note_end(self, seconds: float, verdict: Verdict) -> None:
        failed = verdict.verb == NACK or verdict.handler_failed
        self._demand.note_end(seconds, failed=failed)

    def of_lease(self, feed: _Runner, lease: Lease) -> list[tuple[Task, int | None]]:
        messages = lease.messages
        lanes = lanes_of(self._ledger, lease._ranges) if messages else {}
        return [
            (Task(feed, self._handler, lease, message), lanes.get(message.sequence))
            for message in messages
        ]

    def verdict(self, task: Task, result: Any, error: Exception | None) -> Verdict:
        if error is None:
            return verdict_of_result(result)
        if not isinstance(error, Decision) and is_outage(error):
            return Verdict(RELEASE, doubt=error)
        return self.verdict_of_failure(task, error)

    def verdict_of_failure(self, task: Task, error: Exception) -> Verdict:
        return verdict_of_error(error, self._options.policy)

    def describe(self, task: Task, limit: int | None) -> str:
        message = task.message
        assert message is not None
        of = f" of {limit}" if limit else ""
        return f"message {message.sequence} (delivery {message.delivery_count}{of})"

    def commands(self, done: Sequence[tuple[Task, Verdict]]) -> list[SettleCommand]:
        if self._options.policy.ack == "on_receive":
            return []
        return commands_for_verdicts(
            (task.lease.lease_id, task.message.sequence, verdict)
            for task, verdict in done
            if task.message is not None
        )


class _Demand:
    """Decides how many messages a feed leases. It holds `most` of them at most."""

    def __init__(self, pool: Pool, most: int, poll: float, *, may_prefetch: bool) -> None:
        self._pool, self._most, self._poll = pool, most, poll
        # Messages that were acked first are lost with their process.
        self._may_prefetch = may_prefetch
        self._duration: float | None = None  # the average time of a handler in seconds
        self._look_at = 0.0  # when to look for other lanes again
        self._failed = False  # the last handler has failed
        self._dry = False  # the last look found nothing to lease

    def note_end(self, seconds: float, *, failed: bool) -> None:
        """Note how long a handler took, and whether it failed."""
        known = seconds if self._duration is None else self._duration
        self._duration = known + _SMOOTHING * (seconds - known)
        self._failed = failed

    def note_look(self, found: bool) -> None:
        self._dry, self._look_at = not found, time.monotonic() + self._poll

    def wanted(self, held: int, in_lanes: int, lanes: int) -> int:
        """Return how many messages to lease now, with `held` in hand, some of them in lanes."""
        return self._room(held) or self._room_for_lanes(held, in_lanes, lanes)

    def _room(self, held: int) -> int:
        """Return how many messages to lease: 0 as long as enough are in hand."""
        concurrency = self._pool.concurrency
        wanted = concurrency
        # After a failure, small leases open the breaker before many messages have failed.
        if self._duration is not None and self._may_prefetch and not self._failed:
            wanted += round(concurrency * _PREFETCH_SECONDS / max(self._duration, 1e-6))
        wanted = min(wanted, self._most)
        enough = concurrency + (wanted - concurrency) // 2
        return max(0, wanted - held) if held < min(enough, wanted) else 0

    def _room_for_lanes(self, held: int, in_lanes: int, lanes: int) -> int:
        """Return how many messages to lease for handlers that the lanes in hand leave idle."""
        if not in_lanes or (self._dry and time.monotonic() < self._look_at):
            return 0
        # No lease gets the lanes that another one holds, so these are messages of other lanes.
        busy = lanes + max(0, held - in_lanes)
        return max(0, min(self._pool.concurrency - busy, self._most - held))
