"""Select the messages of a lease by their order, the isolation of suspects, and caps.

A lease holds messages of one kind, which the first due message that waits decides. Unread messages
come after all due messages that wait. While suspects are isolated, each fourth lease is of unread
messages, so that they do not starve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import format_intervals
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.order import (
    ASSUMED_ATTEMPTS,
    WHOLE_RETRY_ATTEMPTS,
    AcquireKind,
    DueRanges,
)
from spark_mq.ledger.ranges import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    LEASED,
    TRANSFERRING,
    UNREAD,
    Ledger,
    LedgerHeader,
    Range,
)
from spark_mq.ledger.schedule import TimeSplit, add_scheduled
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.taking import limit_bytes, take_available, take_unread

__all__ = [
    "MAX_PASSED_OVER",
    "AcquireRequest",
    "Acquisition",
    "Grant",
    "add_leased",
    "blocked_by",
    "due_cutoff",
    "isolation_size",
    "last_readable",
    "with_passed_over",
]

MAX_PASSED_OVER: Final = 3
"""Leases in a row that may isolate suspects while unread messages are due."""


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A worker's request for a lease. Instants are microseconds."""

    lease_id: str
    worker_id: str
    max_messages: int
    expires_at: int
    max_bytes: int | None = None  # estimated bytes in the data files
    reserved_attempts: int = 0  # for a replay; the stream source reserves one
    max_sequence: int | None = None
    due_by: int | None = None  # only messages that were due at this time; None for now


@dataclass(frozen=True, slots=True)
class Grant:
    """The messages of a new lease, or the reason for none."""

    ranges: tuple[Range, ...] = ()  # in the order of sequence
    blocked_because: str = ""  # the cap, message, pause or breaker; empty if nothing is due
    blocked_for_now: bool = field(default=False, compare=False)
    """Whether the reason ends without the owner, or is the owner's pause."""

    @property
    def message_count(self) -> int:
        return sum(r.message_count for r in self.ranges)

    def commit_info(self, request: AcquireRequest) -> dict[str, Any]:
        """Return the commit's metadata, for DESCRIBE HISTORY."""
        return {
            "operation": "lease",
            "lease_id": request.lease_id,
            "worker_id": request.worker_id,
            "messages": self.message_count,
            "ranges": format_intervals([(r.first, r.last) for r in self.ranges]),
        }


def isolation_size(limit: int, deliveries: int, attempts: int, failed: int | None = None) -> int:
    """Return how many suspects one lease takes, out of messages that failed together.

    After `d` of `n` deliveries that is ``max(1, floor(limit ** ((n-1-d)/(n-2))))``. So with four
    attempts or more, the first failure is retried whole. With fewer, the divisor is ``n-1``. A
    piece is also smaller than the lease that `failed`, in the same measure, if `limit` is much
    larger.
    """
    if attempts <= 1:
        return 1
    steps = attempts - 2 if attempts >= WHOLE_RETRY_ATTEMPTS else attempts - 1
    left = min(steps, max(0, attempts - 1 - deliveries))
    size: float = limit ** (left / steps)
    if failed is not None and left < steps:
        size = min(size, failed ** (left / (left + 1)))
    return max(1, min(limit, int(size + 1e-9)))


class Acquisition:
    """One acquisition, with the due messages of each kind and the limits."""

    find_due: type[DueRanges] = DueRanges

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        now: int,
        rules: GroupSettings,
        request: AcquireRequest,
    ) -> None:
        self.ledger, self.index, self.now, self.request = ledger, index, now, request
        self.attempts = rules.attempts_before_isolation(request.reserved_attempts)
        self.limit = 1 if self.attempts == 1 else request.max_messages
        if rules.max_in_flight is not None:
            in_flight = ledger.count((LEASED,))
            self.limit = min(self.limit, rules.max_in_flight - in_flight)
        cutoff = due_cutoff(now, request)
        self.due = self.find_due(ledger, cutoff, request.max_sequence, self.attempts)
        self.may_read = _has_unread(ledger, index, request)
        self.full = _is_full(ledger, now, rules)

    def nothing(self, blocked: str) -> Grant:
        """Return a grant without messages, with a reason if only the owner can change that.

        `blocked` names the message that stops the group, or is empty.
        """
        full = self.full and self.may_read
        return Grant(blocked_because="max_tracked_ranges" if full else blocked)

    def has_due(self) -> bool:
        return self.may_read or self.due.count > 0

    def acquire(self) -> tuple[Ledger, Grant] | None:
        """Lease the messages whose turn it is, or return None."""
        head = self.due.head()
        reads = self.may_read and not self.full
        if head is None:
            return self._lease([], AcquireKind.UNREAD) if reads else None
        isolates = reads and self.due.is_isolation(head)
        if isolates and self.ledger.head.passed_over >= MAX_PASSED_OVER:
            found = self._lease([], AcquireKind.UNREAD)
            if found is not None:
                return found
        rows, limit = self.due.rows_after(head, self.limit), self.limit
        if head.kind == AcquireKind.SUSPECT:
            r, attempts = self.ledger.range_at(head.row), self.attempts or ASSUMED_ATTEMPTS
            limit = isolation_size(limit, r.delivery_count, attempts, r.lease_size)
        return self._lease(rows, head.kind, limit, passes_over=isolates)

    def _lease(
        self, rows: list[int], kind: AcquireKind, limit: int = 0, *, passes_over: bool = False
    ) -> tuple[Ledger, Grant] | None:
        """Lease the messages of some rows, and unread messages if it is their turn."""
        editor, scheduled, reach = LedgerEditor(self.ledger), list[Range](), -1
        taken = take_available(editor, rows, limit, self.request.max_sequence, self.index)
        if self._takes_unread(kind, rows):
            unread, reach = self._take_unread(self.limit - sum(r.message_count for r in taken))
            taken += unread.due
            scheduled = [*unread.later, *unread.expired]
        if not taken:
            return None
        if self.request.max_bytes is not None:
            fitting = limit_bytes(editor, taken, self.index, self.request.max_bytes)
            if fitting is not taken:
                taken, reach = fitting, fitting[-1].last
        passed = min(MAX_PASSED_OVER, self.ledger.head.passed_over + 1) if passes_over else None
        fresh = any(r.state == UNREAD for r in taken)
        editor.head = with_passed_over(self.ledger.head, passed, fresh=fresh)
        granted = add_leased(editor, taken, self.now, self.request)
        for r in scheduled:
            if r.last <= reach:  # messages after an unread message that is due stay unread too
                add_scheduled(editor, r, r._replace(state=UNREAD))
        return editor.build(), Grant(granted)

    def _takes_unread(self, kind: AcquireKind, rows: list[int]) -> bool:
        """Return whether unread messages may fill up a lease of some rows."""
        if not self.may_read or self.full:
            return False
        if kind == AcquireKind.UNREAD:
            return True
        return kind == AcquireKind.REST and len(rows) == self.due.count

    def _take_unread(self, limit: int) -> tuple[TimeSplit, int]:
        return take_unread(
            self.ledger,
            self.index,
            limit=limit,
            end=last_readable(self.index, self.request),
            now=self.now,
            cutoff=due_cutoff(self.now, self.request),
        )


def with_passed_over(head: LedgerHeader, passed: int | None, *, fresh: bool) -> LedgerHeader:
    """Return the header with a new count of leases that passed over unread messages.

    A lease of messages that were never delivered (`fresh`) sets it to zero. None keeps it.
    """
    if fresh:
        return replace(head, passed_over=0)
    return head if passed is None else replace(head, passed_over=passed)


def blocked_by(r: Range) -> str:
    """Return a blocked range as the reason why a group stops."""
    return f"message {r.first} is past its limit ({r.reason})"


def _is_full(ledger: Ledger, now: int, rules: GroupSettings) -> bool:
    """Return whether the ledger may take no more unread messages.

    Delayed ranges do not count, and neither do ranges that wait for the sweep or the owner.
    """
    if ledger.size < rules.max_tracked_ranges:
        return False
    excluded = len(ledger.find((DEAD, BLOCKED, TRANSFERRING)))
    delayed = len(ledger.find((AVAILABLE,), ("available_at", ">", now)))
    return ledger.size - excluded - delayed >= rules.max_tracked_ranges


def last_readable(index: MessageIndex, request: AcquireRequest) -> int:
    last = index.last_sequence
    return last if request.max_sequence is None else min(last, request.max_sequence)


def _has_unread(ledger: Ledger, index: MessageIndex, request: AcquireRequest) -> bool:
    return index.count(ledger.tracked_up_to + 1, last_readable(index, request)) > 0


def due_cutoff(now: int, request: AcquireRequest) -> int:
    return now if request.due_by is None else min(now, request.due_by)


def add_leased(
    editor: LedgerEditor, taken: Sequence[Range], now: int, request: AcquireRequest
) -> tuple[Range, ...]:
    """Add a lease's messages to the ledger and return their ranges."""
    size = sum(r.message_count for r in taken)
    granted = tuple(_leased(r, now, request, size) for r in taken)
    for before, r in zip(taken, granted, strict=True):
        editor.add(r, before, "leased")
    return granted


def _leased(r: Range, now: int, request: AcquireRequest, size: int) -> Range:
    return r._replace(
        state=LEASED,
        lease_id=request.lease_id,
        worker_id=request.worker_id,
        leased_at=now,
        expires_at=request.expires_at,
        lease_size=size,
        first_leased_at=r.first_leased_at or now,
        delivery_count=r.delivery_count + 1,
        available_at=None,
    )
