"""Find the ranges of messages that wait and are due, by the kind of lease that they need."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence, Set
from enum import StrEnum
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.isolation import ASSUMED_ATTEMPTS, failed_together, is_retried_whole
from spark_mq.ledger.ranges import AVAILABLE, Condition, Ledger

__all__ = ["LAST", "REST", "SUSPECT", "AcquireKind", "DueRanges", "Head"]


class AcquireKind(StrEnum):
    """The kinds of messages that a lease may hold."""

    #: Messages that failed together as a whole lease, or a piece of them.
    SUSPECT = "suspect"
    #: Messages on their last attempt. All of them failed by themselves.
    LAST = "last attempt"
    #: Other messages that wait. Unread messages fill up the lease if nothing else waits.
    REST = "rest"


SUSPECT: Final = AcquireKind.SUSPECT
LAST: Final = AcquireKind.LAST
REST: Final = AcquireKind.REST

_CHUNK: Final = 1_000  # rows whose deliveries are read at once
_first_of: Final = itemgetter(0)
_SUSPECT: Final[Condition] = ("suspect", "=", True)
_CLEAR: Final[Condition] = ("suspect", "=", False)


class Head(NamedTuple):
    """The available range that the next lease begins with."""

    row: int
    kind: AcquireKind


class DueRanges:
    """The ranges that wait and are due, up to `max_sequence`.

    `attempts` is the delivery on which a failing message must be alone, or None. `available` holds
    the rows that a lease may begin with. None stands for all of them. With a `sink`, the messages
    of a lease have the same earlier writes, so that the sink has all of them or none. Only ranges
    with messages in `named` count, if it is given.
    """

    def __init__(
        self,
        ledger: Ledger,
        cutoff: int,
        max_sequence: int | None,
        attempts: int | None,
        *,
        sink: bool = False,
        named: Sequence[Interval] | None = None,
    ) -> None:
        self.ledger, self.attempts, self._named = ledger, attempts, named
        end = () if max_sequence is None else (("first", "<=", max_sequence),)
        self._due: tuple[Condition, ...] = (("available_at", "<=", cutoff), *end)
        by_kind = _due_rows(ledger, self._due, attempts)
        self._rows = {kind: self._only_named(rows) for kind, rows in by_kind.items()}
        self.count = sum(len(rows) for rows in self._rows.values())
        # Whether the sink may have some of the messages.
        written = ("sink_writes", "is set", True)
        self.written = sink and ledger.minimum("first", (AVAILABLE,), written) is not None

    def _only_named(self, rows: list[int]) -> list[int]:
        named = self._named
        if named is None or not rows:
            return rows
        firsts, lasts = self.ledger.first_sequences, self.ledger.last_sequences
        near = [(row, bisect_right(named, lasts[row], key=_first_of) - 1) for row in rows]
        return [row for row, at in near if at >= 0 and firsts[row] <= named[at][1]]

    def rows(self) -> list[int]:
        """Return the due rows of all kinds, in order."""
        return sorted(row for rows in self._rows.values() for row in rows)

    def undelivered(self) -> list[int]:
        """Return the due rows of messages that were never delivered, in order."""
        due = (*self._due, ("delivery_count", "=", 0))
        written = (("sink_writes", "is null", None),) if self.written else ()
        return self._only_named(self.ledger.find((AVAILABLE,), *due, *written))

    def suspects(self) -> list[int]:
        """Return the due rows of suspects that need not be alone yet, in order."""
        early = () if self.attempts is None else (("delivery_count", "<", self.attempts - 1),)
        return self._only_named(self.ledger.find((AVAILABLE,), *self._due, _SUSPECT, *early))

    def _available(self, kind: AcquireKind, available: Set[int] | None) -> list[int]:
        rows = self._rows[kind]
        return rows if available is None else [row for row in rows if row in available]

    def head(self, available: Set[int] | None) -> Head | None:
        """Return the first due range that can begin a lease, or None.

        In a group without a limit, the suspect that is due the longest goes first, so that suspects
        take turns. Messages that were delivered very often come last. Otherwise a message that
        fails forever would starve those after it.
        """
        rows = {kind: self._available(kind, available) for kind in self._rows}
        heads = [Head(of_kind[0], kind) for kind, of_kind in rows.items() if of_kind]
        if not heads or self.attempts is not None:
            return min(heads, default=None)
        heads = [Head(row, REST) for row in islice(self._seldom_delivered(rows[REST]), 1)]
        if rows[SUSPECT]:
            heads.append(Head(self._longest_due(rows[SUSPECT]), SUSPECT))
        return min(heads) if heads else Head(self._longest_due(rows[REST]), REST)

    def _seldom_delivered(self, rows: Sequence[int]) -> Iterator[int]:
        """Yield the rows with few deliveries. The first one is usually near the front."""
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            counts = self.ledger.values_at("delivery_count", some)
            yield from (
                row for row, count in zip(some, counts, strict=True) if count < ASSUMED_ATTEMPTS
            )

    def _longest_due(self, rows: Sequence[int]) -> int:
        """Return the row that is due the longest, of these the least delivered, then the first."""
        since = self.ledger.values_at("available_at", rows)
        deliveries = self.ledger.values_at("delivery_count", rows)
        return min(zip(since, deliveries, rows, strict=True))[2]

    def rows_from(self, head: Head, available: Set[int] | None) -> list[int]:
        """Return the rows that a lease may take, from its head on, in order."""
        of_kind = self._rows_of_kind(head, available)
        if not self.written:
            return of_kind
        writes = self.ledger.values_at("sink_writes", [head.row, *of_kind])
        return [row for row, same in zip(of_kind, writes[1:], strict=True) if same == writes[0]]

    def reads_after(self, head: Head) -> bool:
        """Return whether unread messages may fill up a lease that begins with a head."""
        return not self.written or self.ledger.range_at(head.row).sink_writes is None

    def _rows_of_kind(self, head: Head, available: Set[int] | None) -> list[int]:
        rows, suspects = self._rows[head.kind], self._available(SUSPECT, available)
        if head.kind == SUSPECT:
            same = failed_together(self.ledger.range_at(head.row))
            together = set(self.ledger.find((AVAILABLE,), *same))
            return [row for row in rows[bisect_left(rows, head.row) :] if row in together]
        after = bisect_right(suspects, head.row)
        end = suspects[after] if after < len(suspects) else len(self.ledger)
        return rows[bisect_left(rows, head.row) : bisect_left(rows, end)]

    def are_all(self, rows: Sequence[int], available: Set[int] | None) -> bool:
        """Return whether some due rows contain each one that can begin a lease."""
        return len(rows) == self.count if available is None else available <= set(rows)

    def is_isolation(self, head: Head) -> bool:
        """Return whether many leases like that of the head may follow."""
        deliveries = self.ledger.range_at(head.row).delivery_count
        if head.kind != SUSPECT:
            return self.attempts is None and deliveries >= ASSUMED_ATTEMPTS
        return not is_retried_whole(deliveries, self.attempts)


def _due_rows(
    ledger: Ledger, due: Sequence[Condition], attempts: int | None
) -> dict[AcquireKind, list[int]]:
    """Return the available rows that are due, by kind, in order."""
    # The rows of a large ledger take long to list, so an emptiness check does not list them.
    if AVAILABLE not in ledger.states or ledger.minimum("first", (AVAILABLE,), *due) is None:
        return {SUSPECT: [], LAST: [], REST: []}
    if attempts is None:
        suspect = ledger.find((AVAILABLE,), *due, _SUSPECT)
        return {SUSPECT: suspect, LAST: [], REST: ledger.find((AVAILABLE,), *due, _CLEAR)}
    before_last = max(1, attempts - 1)
    last = (*due, ("delivery_count", ">=", before_last))
    # A message without a failure can be on its last attempt, after a replay and a release.
    # It goes alone, because it is innocent so far.
    innocent = ledger.find((AVAILABLE,), *last, ("failure_count", "=", 0))
    suspect = ledger.find((AVAILABLE,), *due, _SUSPECT)
    rest = (*due, _CLEAR, ("delivery_count", "<", before_last))
    return {
        SUSPECT: sorted({*suspect, *innocent}),
        LAST: ledger.find((AVAILABLE,), *last, _CLEAR, ("failure_count", ">", 0)),
        REST: ledger.find((AVAILABLE,), *rest),
    }
