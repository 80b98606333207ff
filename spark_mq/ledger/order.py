"""Order the available messages for the next lease, and keep together what failed together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence, Set
from enum import StrEnum
from typing import Final, NamedTuple

from spark_mq.ledger.ranges import AVAILABLE, Condition, Ledger

__all__ = [
    "ASSUMED_ATTEMPTS",
    "WHOLE_RETRY_ATTEMPTS",
    "AcquireKind",
    "BandedRanges",
    "DueRanges",
    "Head",
]


class AcquireKind(StrEnum):
    """The kinds of messages that a lease may hold."""

    #: Messages that failed together as a whole lease, or a piece of them.
    SUSPECT = "suspect"
    #: Messages on their last attempt. All of them failed by themselves.
    LAST = "last attempt"
    #: Other messages that wait. Unread messages fill up the lease if nothing else waits.
    REST = "rest"
    #: Unread messages only.
    UNREAD = "unread"


SUSPECT: Final = AcquireKind.SUSPECT
LAST: Final = AcquireKind.LAST
REST: Final = AcquireKind.REST

ASSUMED_ATTEMPTS: Final = 5  # that isolation assumes for a group without a limit
WHOLE_RETRY_ATTEMPTS: Final = 4
"""With this many attempts, the first failure of a whole lease is retried whole."""
_SUSPECT: Final[Condition] = ("suspect", "=", True)
_CLEAR: Final[Condition] = ("suspect", "=", False)


class Head(NamedTuple):
    """The available range that the next lease begins with."""

    row: int
    kind: AcquireKind


class DueRanges:
    """The ranges that wait and are due, up to `max_sequence`.

    `attempts` is the delivery on which a failing message must be alone, or None.
    """

    def __init__(
        self, ledger: Ledger, cutoff: int, max_sequence: int | None, attempts: int | None
    ) -> None:
        self.ledger, self.attempts = ledger, attempts
        end = () if max_sequence is None else (("first", "<=", max_sequence),)
        self._due: tuple[Condition, ...] = (("available_at", "<=", cutoff), *end)
        self._rows = _due_rows(ledger, self._due, attempts)

    @property
    def count(self) -> int:
        """Return the number of ranges."""
        return sum(len(rows) for rows in self._rows.values())

    def head(self) -> Head | None:
        """Return the first due range that waits.

        In a group without a limit, the suspect that is due the longest goes first, so that suspects
        take turns. Messages that were delivered very often come last. Otherwise a message that
        fails forever would starve those after it.
        """
        heads = [Head(rows[0], kind) for kind, rows in self._rows.items() if rows]
        if not heads or self.attempts is not None:
            return min(heads, default=None)
        return self._head_without_limit()

    def _head_without_limit(self) -> Head:
        suspect, rest = (*self._due, _SUSPECT), (*self._due, _CLEAR)
        fresh = self.ledger.find((AVAILABLE,), *rest, ("delivery_count", "<", ASSUMED_ATTEMPTS))
        heads = [Head(fresh[0], REST)] if fresh else []
        if self._rows[SUSPECT]:
            heads.append(Head(_longest_due(self.ledger, suspect), SUSPECT))
        return min(heads) if heads else Head(_longest_due(self.ledger, rest), REST)

    def rows_after(self, head: Head, limit: int) -> list[int]:
        """Return the rows that a lease may take, from its head on, in order."""
        rows, suspects = self._rows[head.kind], self._rows[SUSPECT]
        if head.kind == SUSPECT:
            together = set(_failed_together(self.ledger, head.row))
            return [row for row in rows[bisect_left(rows, head.row) :] if row in together][:limit]
        after = bisect_right(suspects, head.row)
        end = suspects[after] if after < len(suspects) else len(self.ledger)
        # A suspect keeps its place.
        return rows[bisect_left(rows, head.row) : bisect_left(rows, end)][:limit]

    def is_isolation(self, head: Head) -> bool:
        """Return whether many leases like that of the head may follow."""
        deliveries = self.ledger.range_at(head.row).delivery_count
        if head.kind != SUSPECT:
            return self.attempts is None and deliveries >= ASSUMED_ATTEMPTS
        whole = (self.attempts or ASSUMED_ATTEMPTS) >= WHOLE_RETRY_ATTEMPTS and deliveries == 1
        return not whole


class BandedRanges(DueRanges):
    """The due ranges, of which only those with an open band can begin a lease."""

    def rows(self, kind: AcquireKind | None = None) -> list[int]:
        """Return the due rows of a kind, or all, in order."""
        if kind is not None:
            return self._rows[kind]
        return sorted(row for rows in self._rows.values() for row in rows)

    def fresh(self) -> list[int]:
        """Return the due rows of messages that were never delivered, in order."""
        return self.ledger.find((AVAILABLE,), *self._due, ("delivery_count", "=", 0))

    def head_among(self, available: Set[int]) -> Head | None:
        """Return the first due range of those that can begin a lease, as :meth:`head` does."""
        first = {
            kind: next((row for row in rows if row in available), None)
            for kind, rows in self._rows.items()
        }
        heads = [Head(row, kind) for kind, row in first.items() if row is not None]
        if not heads or self.attempts is not None:
            return min(heads, default=None)
        suspects = [row for row in self._rows[SUSPECT] if row in available]
        rest = [row for row in self._rows[REST] if row in available]
        ranges = dict(zip(rest, self.ledger.ranges_at(rest), strict=True))
        fresh = [row for row in rest if ranges[row].delivery_count < ASSUMED_ATTEMPTS]
        heads = [Head(fresh[0], REST)] if fresh else []
        if suspects:
            heads.append(Head(self._longest_due_of(suspects), SUSPECT))
        return min(heads) if heads else Head(self._longest_due_of(rest), REST)

    def _longest_due_of(self, rows: Sequence[int]) -> int:
        def turn(row: int) -> tuple[int, int, int]:
            r = self.ledger.range_at(row)
            return r.available_at or 0, r.delivery_count, row

        return min(rows, key=turn)

    def rows_from(self, head: Head, available: Set[int]) -> list[int]:
        """Return the rows that a lease may take, from its head on, as :meth:`rows_after` does.

        Some may follow messages of their band that the lease takes too. Only a suspect that could
        begin a lease keeps its place.
        """
        rows = self._rows[head.kind]
        after = [row for row in rows if row >= head.row]
        if head.kind == SUSPECT:
            together = set(_failed_together(self.ledger, head.row))
            return [row for row in after if row in together]
        stops = (row for row in self._rows[SUSPECT] if row > head.row and row in available)
        end = next(stops, len(self.ledger))
        return [row for row in after if row < end]


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


def _longest_due(ledger: Ledger, conditions: Sequence[Condition]) -> int:
    """Return the row that is due the longest. The least delivered wins a tie, then the lowest."""
    since = ledger.minimum("available_at", (AVAILABLE,), *conditions)
    longest = (*conditions, ("available_at", "=", since))
    least = ledger.minimum("delivery_count", (AVAILABLE,), *longest)
    return ledger.find((AVAILABLE,), *longest, ("delivery_count", "=", least))[0]


def _failed_together(ledger: Ledger, head: int) -> list[int]:
    """Return the available rows that failed in the same lease as a head, and as often."""
    first = ledger.range_at(head)
    names = ("available_at", "delivery_count", "failure_count", "lease_id", "error")
    values = [(name, getattr(first, name)) for name in names]
    same = [(name, "is null" if value is None else "=", value) for name, value in values]
    return ledger.find((AVAILABLE,), *same)
