"""Order the messages that wait: which of them the next lease takes.

Due messages go in the order of sequence. Messages that failed together stay together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.ranges import WAITING, Ledger

__all__ = ["ASSUMED_ATTEMPTS", "WHOLE_RETRY_ATTEMPTS", "AcquireKind", "DueRanges", "Head"]


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

ASSUMED_ATTEMPTS: Final = 5
"""Attempts that isolation assumes for a group without a limit."""
WHOLE_RETRY_ATTEMPTS: Final = 4
"""With so many attempts, the first failure of a whole lease is retried whole."""
_MAX_INT32: Final = 2**31 - 1


class Head(NamedTuple):
    """The waiting range that the next lease begins with."""

    row: int
    kind: AcquireKind


class DueRanges:
    """The ranges of a ledger that wait and are due.

    Parameters
    ----------
    ledger
        The group's ledger.
    cutoff
        Ranges with an ``available_at`` up to this time are due. Microseconds.
    max_sequence
        The last sequence that counts. None for no limit.
    attempts
        The group's attempts before isolation must be complete, or None.
    """

    def __init__(
        self, ledger: Ledger, cutoff: int, max_sequence: int | None, attempts: int | None
    ) -> None:
        self.ledger, self.attempts = ledger, attempts
        self._rows = _due_rows(ledger, cutoff, max_sequence, attempts)

    @property
    def count(self) -> int:
        """Return the number of ranges."""
        return sum(len(rows) for rows in self._rows.values())

    def head(self) -> Head | None:
        """Return the first due range that waits.

        In a group without a limit, suspects take turns: the one that is due the longest goes
        first. Messages that were delivered very often come last. A message that fails forever
        would otherwise starve those behind it.
        """
        firsts = {kind: rows[0].as_py() for kind, rows in self._rows.items() if len(rows)}
        if not firsts:
            return None
        if self.attempts is not None:
            kind = min(firsts, key=lambda one: firsts[one])
            return Head(firsts[kind], kind)
        return self._head_without_limit()

    def _head_without_limit(self) -> Head:
        suspects, rest = self._rows[SUSPECT], self._rows[REST]
        count = self.ledger.column("delivery_count").take(rest)
        fresh = rest.filter(pc.less(count, ASSUMED_ATTEMPTS))
        heads = [Head(fresh[0].as_py(), REST)] if len(fresh) else []
        if len(suspects):
            heads.append(Head(_longest_due(self.ledger, suspects), SUSPECT))
        return min(heads) if heads else Head(_longest_due(self.ledger, rest), REST)

    def rows_after(self, head: Head, limit: int) -> list[int]:
        """Return the rows that a lease may take after its head, in order."""
        rows = self._rows[head.kind]
        if head.kind == SUSPECT:
            rows = _failed_together(self.ledger, rows, head.row)
        else:
            rows = rows.filter(pc.greater_equal(rows, head.row))
            suspects = self._rows[SUSPECT]
            behind = suspects.filter(pc.greater(suspects, head.row))
            if len(behind):  # a suspect keeps its place
                rows = rows.filter(pc.less(rows, behind[0]))
        return cast(list[int], rows.slice(0, limit).to_pylist())

    def is_isolation(self, head: Head) -> bool:
        """Return whether leases like that of the head may go on for long."""
        deliveries = self.ledger.range_at(head.row).delivery_count
        if head.kind != SUSPECT:
            return self.attempts is None and deliveries >= ASSUMED_ATTEMPTS
        whole = (self.attempts or ASSUMED_ATTEMPTS) >= WHOLE_RETRY_ATTEMPTS and deliveries == 1
        return not whole


def _due_rows(
    ledger: Ledger, cutoff: int, max_sequence: int | None, attempts: int | None
) -> dict[AcquireKind, pa.Array]:
    """Return the waiting rows that are due, by kind, in order."""
    available_at = ledger.column("available_at").cast(pa.int64())
    due = pc.and_(ledger.is_state(WAITING), pc.less_equal(available_at, cutoff))
    if max_sequence is not None:
        due = pc.and_(due, pc.less_equal(ledger.column("first"), max_sequence))
    suspect = ledger.column("suspect")
    count = ledger.column("delivery_count")
    before_last = _MAX_INT32 if attempts is None else attempts - 1
    last = pc.and_(pc.greater(count, 0), pc.greater_equal(count, before_last))
    # A message without a failure can be on its last attempt, after a replay and a release.
    # It goes alone, because it is innocent so far.
    innocent = pc.and_(last, pc.equal(ledger.column("failure_count"), 0))
    suspect = pc.or_(suspect, innocent)
    clear = pc.and_(due, pc.invert(suspect))
    masks = {
        SUSPECT: pc.and_(due, suspect),
        LAST: pc.and_(clear, last),
        REST: pc.and_(clear, pc.invert(last)),
    }
    return {kind: pc.indices_nonzero(mask) for kind, mask in masks.items()}


def _longest_due(ledger: Ledger, rows: pa.Array) -> int:
    """Return the row that is due the longest. The least delivered wins a tie, then the lowest."""
    due = ledger.column("available_at").cast(pa.int64()).take(rows)
    count = ledger.column("delivery_count").take(rows)
    longest = pc.equal(due, pc.min(due))
    least = pc.and_(longest, pc.equal(count, pc.min(count.filter(longest))))
    return cast(int, rows[pc.index(least, True).as_py()].as_py())


def _failed_together(ledger: Ledger, rows: pa.Array, head: int) -> pa.Array:
    """Return the rows of the suspects that failed in the same lease as a head, and as often."""
    first = ledger.range_at(head)
    rows = rows.filter(pc.greater_equal(rows, head))
    for name in ("available_at", "delivery_count", "failure_count", "lease_id", "error"):
        column, value = ledger.column(name).take(rows), getattr(first, name)
        if name == "available_at":
            column = column.cast(pa.int64())
        alike = pc.is_null(column) if value is None else pc.equal(column, value)
        rows = rows.filter(pc.fill_null(alike, False))
    return rows
