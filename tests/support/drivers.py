"""Runs of a streaming query as Spark drives them, step by step and without Spark, for tests of
``spark_mq.stream``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_mq import ConsumerGroup, Queue
from spark_mq.ledger import acquire
from spark_mq.ledger.acquire import AcquireRequest, Grant
from spark_mq.ledger.commands import Change, View
from spark_mq.ledger.stream_batch import fence_app_id
from spark_mq.streaming.multi_source import MultiQueueSource, Plans
from spark_mq.streaming.source import BatchPlan, StreamOptions, StreamSource
from spark_mq.util.clock import MICROSECOND
from support.steps import Step
from support.tables import group_ledger_of, ledgers_of

Offset = dict[str, Any]
Rows = set[tuple[str, int]]
"""Messages of several queues: the path and the sequence."""


@dataclass
class StubAlive:
    """Stands for what keeps a lease alive: the tests' clock is moved by hand, so nothing is to be
    extended.
    """

    lease_id: str
    timeout: int
    limit: int
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True


@dataclass
class Checkpoint:
    """What Spark remembers of a query: the offset log and whether the last batch in it was
    committed.
    """

    offsets: list[Offset] = field(default_factory=list)
    committed: int = 0
    """How many offsets of the log are committed; the first one is the initial offset."""

    def copy(self) -> Checkpoint:
        return Checkpoint(list(self.offsets), self.committed)

    def save(self, what: str) -> None:
        """`what` of it is new."""


class AnyRunner:
    """One run of a query as Spark drives it, step by step, so that it can die or freeze between any
    two.
    """

    def __init__(
        self, source: Any, plan: Callable[..., Any], checkpoint: Checkpoint | None
    ) -> None:
        self.source, self._plan = source, plan
        self.checkpoint = checkpoint or Checkpoint()

    def offer(self) -> bool:
        """Asks for the next offset and logs it. False if there is nothing new."""
        log = self.checkpoint
        if not log.offsets:
            log.offsets, log.committed = [self.source.initial()], 1
            log.save("initial offset")
        end = self.source.latest(log.offsets[-1])
        if end == log.offsets[-1]:
            return False
        log.offsets.append(end)
        log.save("offset")
        return True

    def plan(self) -> Any:
        """The last batch in the log: a fresh one, or a replay in a new run."""
        return self._plan(*self.checkpoint.offsets[-2:])

    def commit(self) -> None:
        self.checkpoint.committed = len(self.checkpoint.offsets)
        self.checkpoint.save("commit")

    @property
    def replays(self) -> bool:
        return self.checkpoint.committed < len(self.checkpoint.offsets)

    def begun(self) -> Any:
        """A batch that was offered and leased. Its run may die now."""
        assert self.offer(), "there is nothing to lease"
        return self.plan()

    def batch(self) -> Any:
        """A whole batch that goes well: a replay, if the last run left one."""
        plan = self.plan() if self.replays else self.begun()
        self.commit()
        return plan


class Runner(AnyRunner):
    """A run of a query over one queue."""

    def __init__(
        self,
        queue: Queue,
        checkpoint: Checkpoint | None = None,
        *,
        group: str = "g",
        **options: Any,
    ) -> None:
        self.alive: list[StubAlive] = []
        self.group = queue.group(group)
        ledger, given = group_ledger_of(self.group), StreamOptions(**options)
        source = StreamSource(ledger, given, keep_alive=self._keep)
        super().__init__(source, source.plan, checkpoint)

    def _keep(self, lease_id: str, timeout: int, limit: int) -> StubAlive:
        self.alive.append(StubAlive(lease_id, timeout, limit))
        return self.alive[-1]


class MultiRunner(AnyRunner):
    """A run of a query over several queues."""

    def __init__(
        self, queues: list[Queue], checkpoint: Checkpoint | None = None, **options: Any
    ) -> None:
        ledgers = [group_ledger_of(queue.group("g")) for queue in queues]
        source = MultiQueueSource(ledgers, StreamOptions(**options), keep_alive=StubAlive)
        super().__init__(source, source.plans, checkpoint)


def remembered(*sources: Any) -> int:
    """How much the collections of some sources hold."""
    kept = [value for source in sources for value in vars(source).values()]
    return sum(len(each) for each in kept if isinstance(each, dict | set | list))


def sequences(plan: BatchPlan) -> list[int]:
    return [s for piece, _ in plan.slices for s in range(piece.first, piece.first + piece.rows)]


def rows(plans: Plans) -> Rows:
    return {(group.queue_path, seq) for group, plan in plans for seq in sequences(plan)}


def deliveries(plan: BatchPlan) -> set[int]:
    return {r.delivery_count for _, r in plan.slices}


def mark(runner: Runner) -> int | None:
    leases = ledgers_of(runner.group)
    return leases.txn_number(
        leases.read(runner.group.name), fence_app_id(runner.checkpoint.offsets[-1]["stream"])
    )


def states(queue: Queue) -> list[tuple[str, int, str | None]]:
    """(state, messages, lease id) of the ranges of group g."""
    return [
        (r.state, r.message_count, r.lease_id) for r in group_ledger_of(queue.group("g")).current()
    ]


def lease_as(group: ConsumerGroup, lease_id: str) -> None:
    """Lease a message under an id that a worker could not have."""

    def lease(view: View) -> Change[Grant]:
        timeout = view.settings.visibility_timeout // MICROSECOND
        request = AcquireRequest(lease_id, "w", 1, view.now + timeout)
        after, grant = acquire.acquire(view.ledger, view.log, view.now, view.settings, request)
        return Change(after, grant, {"operation": "lease"})

    group_ledger_of(group).run(Step(lease, reach=None))
