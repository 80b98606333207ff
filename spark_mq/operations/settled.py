"""Find the messages that a group has settled, with their outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import SETTLED
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.history import last_ends, read_group_history
from spark_mq.util.clock import EARLIEST, LATEST, to_micros

__all__ = ["SettledMessages", "SettledRange", "find_settled"]

_COLUMNS: Final = (
    "version", "first", "last", "event", "outcome", "committed_at", "delivery_count",
    "failure_count", "reason", "error", "first_leased_at",
)  # fmt: skip
_LAST: Final = 2**63 - 1


class SettledRange(NamedTuple):
    """Messages ``first..last`` that one commit settled alike. Instants are microseconds."""

    first: int
    last: int
    outcome: str | None  # None if the history does not have it
    settled_at: int | None = None
    delivery_count: int = 0
    failure_count: int = 0
    reason: str | None = None
    error: str | None = None
    first_leased_at: int | None = None
    # What a range of the ledger also has. A settled message has no holder and is not due.
    lease_id: None = None
    worker: None = None
    expires_at: None = None
    available_at: None = None

    @property
    def state(self) -> str:
        """Return the outcome, or "settled" if it is unknown."""
        return self.outcome or SETTLED


@dataclass(frozen=True, slots=True)
class SettledMessages:
    """The retained messages that a group has settled, and the numbers of those left out.

    Attributes
    ----------
    index
        The index that has their files.
    ranges
        Those settled within the wanted time, in order of sequence. Some have no message.
    unknown
        Those of which the history has no end, in order. Nobody knows when they were settled.
    trimmed
        Messages that were settled within the time, and whose data files a trim may have dropped.
    """

    index: MessageIndex
    ranges: tuple[SettledRange, ...]
    unknown: tuple[SettledRange, ...]
    trimmed: int

    @property
    def unknown_count(self) -> int:
        return sum(self.index.count(interval.first, interval.last) for interval in self.unknown)

    def without_others(self, group: str) -> SettledMessages:
        """Return those that a group could get, without messages for other groups alone."""
        others = self.index.for_others(0, self.index.last_sequence, group)
        own = (
            part._replace(first=first, last=last)
            for part in self.ranges
            for first, last in subtract([(part.first, part.last)], others)
        )
        return replace(self, ranges=tuple(own))


def find_settled(
    group: GroupLedger, since: int | None = None, until: int | None = None
) -> SettledMessages:
    """Return the messages settled from `since` to before `until`. Raise GroupNotFound."""
    ledger = group.require(group.snapshot())
    index, horizon = group.index_for(ledger), group.queue.horizon()
    settled: list[Interval] = [(horizon + 1, ledger.head.start_sequence)]
    settled += [(r.first, r.last) for r in ledger.ranges_at(ledger.find((SETTLED,)))]
    rows = read_group_history(group, _COLUMNS)
    low, high = EARLIEST if since is None else since, LATEST + 1 if until is None else until
    known, settled_ranges, gone = list[Interval](), list[SettledRange](), list[Interval]()
    for end, (first, last) in last_ends(rows, 0, _LAST):
        if last > horizon:
            known.append((max(first, horizon + 1), last))
        if low <= (at := to_micros(end["committed_at"])) < high:
            if first <= horizon:
                gone.append((first, min(last, horizon)))
            if last > horizon:
                settled_ranges.append(_range(end, max(first, horizon + 1), last, at))
    unknown = (SettledRange(*interval, None) for interval in subtract(_valid(settled), known))
    return SettledMessages(
        index,
        tuple(sorted(settled_ranges, key=attrgetter("first"))),
        tuple(interval for interval in unknown if index.count(interval.first, interval.last)),
        _count_gone(group, gone),
    )


def _range(end: dict[str, Any], first: int, last: int, at: int) -> SettledRange:
    leased = end["first_leased_at"]
    return SettledRange(
        first,
        last,
        end["outcome"],
        at,
        end["delivery_count"] or 0,
        end["failure_count"] or 0,
        end["reason"],
        end["error"],
        None if leased is None else to_micros(leased),
    )


def _valid(intervals: list[Interval]) -> Iterator[Interval]:
    return (interval for interval in intervals if interval[0] <= interval[1])


def _count_gone(group: GroupLedger, gone: list[Interval]) -> int:
    if not gone:
        return 0
    index = group.messages.full_index(min(first for first, _ in gone))
    return sum(index.count(first, last) for first, last in gone)
