"""Show the last sweep of a queue, and the work that waits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_mq.operations.context import QueueContext
from spark_mq.util.clock import to_datetime
from spark_mq.util.records import Record

__all__ = ["SweepState", "sweep_state"]


@dataclass(frozen=True, slots=True)
class SweepState(Record):
    """The results of the last sweeps, and the work that waits.

    A sweep that finds nothing to do leaves no trace, so ``last_change_at`` of an idle queue may be
    old. ``waiting_since`` shows whether a sweep is missing.

    Attributes
    ----------
    last_change_at
        When a sweep last changed ``history/`` or ``commits/``. None before the first one.
    waiting_since, unarchived_commits
        The time of the oldest commit of ``leases/`` that no sweep has archived, and the number of
        these commits. The time is None without one.
    unindexed_commits
        Commits of ``messages/`` that no sweep has written down.
    """

    last_change_at: datetime | None
    waiting_since: datetime | None
    unarchived_commits: int
    unindexed_commits: int


def sweep_state(context: QueueContext) -> SweepState:
    archived, archived_at = context.history.progress()
    indexed, indexed_at = context.messages.index_progress()
    times = [at for at in (archived_at, indexed_at) if at is not None]
    # The first commit makes the table. No sweep archives it.
    first, latest = max(1, archived + 1), context.ledgers.version()
    oldest = context.ledgers.commit_time(first) if first <= latest else None
    return SweepState(
        to_datetime(max(times)) if times else None,
        None if oldest is None else to_datetime(oldest),
        max(0, latest - first + 1),
        max(0, context.messages.index().version - max(0, indexed)),
    )
