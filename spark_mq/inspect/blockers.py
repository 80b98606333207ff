"""Find the reasons why groups lease nothing or hold back the trim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final

from spark_mq.inspect.positions import LabelledRange, label_ranges
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED
from spark_mq.ledger.stats import GroupStats
from spark_mq.operations.context import QueueContext
from spark_mq.operations.trimming import find_held_back
from spark_mq.util.clock import to_datetime
from spark_mq.util.records import Record

__all__ = ["Blocker", "find_blockers"]

MAX_RANGES: Final = 100  # blocked ranges of a group that are listed


@dataclass(frozen=True, slots=True)
class Blocker(Record):
    """A reason why a group or the trim is blocked.

    Attributes
    ----------
    group, blocks
        "leases": the group leases nothing. "trim": it keeps old messages in the queue.
    because
        The cap, the limit, or the state of the message.
    first, last
        The messages that block, inclusive. None if a cap blocks.
    messages
        The number of messages that wait.
    lease_id, worker_id
        The lease of the messages that block, and its worker.
    since, error
        The publish of the first message that blocks, and the text of its last failure.
    """

    group: str
    blocks: str
    because: str
    first: int | None
    last: int | None
    messages: int
    lease_id: str | None = None
    worker_id: str | None = None
    since: datetime | None = None
    error: str | None = None


def find_blockers(context: QueueContext, stats: Mapping[str, GroupStats]) -> list[Blocker]:
    index = context.messages.index()
    found = [one for name, own in stats.items() for one in _of_leases(context, index, name, own)]
    return [*found, *_of_trim(context, index, stats)]


def _of_leases(
    context: QueueContext, index: MessageIndex, name: str, stats: GroupStats
) -> Iterator[Blocker]:
    if stats.blocked_because and not stats.blocked:
        yield Blocker(name, "leases", stats.blocked_because, None, None, stats.ready)
    if stats.blocked:
        ledger = context.group(name).current()
        rows = ledger.find((BLOCKED,))[:MAX_RANGES]
        for r in ledger.ranges_at(rows):
            yield Blocker(
                name,
                "leases",
                r.reason or "blocked",
                r.first,
                r.last,
                stats.ready,
                since=to_datetime(index.file_at(r.first).committed_at),
                error=r.error,
            )


def _of_trim(
    context: QueueContext, index: MessageIndex, stats: Mapping[str, GroupStats]
) -> Iterator[Blocker]:
    """Yield the groups whose first unsettled message holds back the trim."""
    held = find_held_back(context, index, {name: own.floor for name, own in stats.items()})
    if held is None:
        return
    for name in held.groups:
        if first := _first_unsettled(context, index, name, held.floor):
            yield _trim_blocker(index, name, first, held.messages)


def _first_unsettled(
    context: QueueContext, index: MessageIndex, name: str, floor: int
) -> LabelledRange | None:
    found = label_ranges(context.group(name).current(), index, context.now(), first=floor + 1)
    return next((one for one in islice(found, MAX_RANGES) if one.state != "settled"), None)


def _trim_blocker(index: MessageIndex, name: str, one: LabelledRange, waiting: int) -> Blocker:
    r, leased = one.range, one.state == "leased"
    return Blocker(
        name,
        "trim",
        one.state,
        r.first,
        r.last,
        waiting,
        lease_id=r.lease_id if leased else None,
        worker_id=r.worker_id if leased else None,
        since=to_datetime(index.file_at(r.first).committed_at),
        error=r.error,
    )
