"""Select the messages of a lease: isolation of suspects, alternation of kinds, and caps.

A lease holds messages of one kind. The kinds alternate, so that none starves. See
:class:`AcquireKind`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import format_intervals
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import (
    BLOCKED,
    DEAD,
    LEASED,
    ROUTING,
    UNREAD,
    WAITING,
    Condition,
    Ledger,
    LedgerHeader,
    Range,
)
from spark_mq.ledger.schedule import add_scheduled, split_due
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.taking import limit_bytes, take_unread, take_waiting

__all__ = [
    "AcquireKind",
    "AcquireRequest",
    "Grant",
    "acquire",
    "isolation_size",
]


class AcquireKind(StrEnum):
    """The kinds of messages that a lease may hold. The header stores the next one."""

    #: A piece of one suspect range.
    SUSPECT = "suspect"
    #: Messages on their last attempt. All of them failed by themselves.
    LAST = "last attempt"
    #: Anything else that is due: first waiting, then unread, in sequence order.
    REST = "rest"


_KINDS: Final = tuple(AcquireKind)
SUSPECT: Final = AcquireKind.SUSPECT
LAST: Final = AcquireKind.LAST
REST: Final = AcquireKind.REST

_DEFAULT_ATTEMPTS: Final = 5
"""Attempts that isolation assumes for a group without a limit."""
_MAX_INT32: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What a worker asks for. Instants are microseconds."""

    lease_id: str
    worker_id: str
    max_messages: int
    expires_at: int
    max_bytes: int | None = None
    """Estimated bytes in the data files. None for no limit."""
    reserved_attempts: int = 0
    """Attempts to reserve for a replay. The stream source reserves one."""
    max_sequence: int | None = None
    """The last sequence that may be leased. None for no limit."""
    due_by: int | None = None
    """Only messages that were due at this time. None for now."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The messages of a new lease, or the reason for none."""

    ranges: tuple[Range, ...] = ()
    """In the order of sequence."""
    blocked_because: str = ""
    """The cap or message that stops the group. Empty if nothing is due."""

    @property
    def message_count(self) -> int:
        """Return the number of messages."""
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


def isolation_size(limit: int, deliveries: int, attempts: int) -> int:
    """Return how many messages of a suspect range one lease takes.

    The size is ``max(1, floor(limit ** ((n-1-d)/(n-1))))`` after `d` of `n` deliveries. It falls
    with each delivery, to one message on the last.

    Parameters
    ----------
    limit
        Messages that the lease asks for.
    deliveries
        Deliveries so far.
    attempts
        The group's attempts before isolation must be complete.

    Examples
    --------
    >>> [isolation_size(10_000, d, 5) for d in (1, 2, 3, 4)]
    [1000, 100, 10, 1]
    """
    if attempts <= 1:
        return 1
    exponent = min(1.0, max(0.0, (attempts - 1 - deliveries) / (attempts - 1)))
    return max(1, min(limit, int(limit**exponent + 1e-9)))


def acquire(
    ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, request: AcquireRequest
) -> tuple[Ledger, Grant]:
    """Lease the messages that the rules allow.

    Parameters
    ----------
    ledger
        The group's ledger. The caller has expired leases already.
    index
        The message index.
    now
        The current time in microseconds.
    rules
        The group's settings.
    request
        What the worker asks for.

    Returns
    -------
    tuple of Ledger and Grant
        The next ledger and the lease's messages. The ledger is `ledger` itself without a grant.
    """
    request, blocked = _limit_to_unblocked(ledger, request)
    split = split_due(ledger, index, now, _due_cutoff(now, request))
    acquiring = _Acquiring(split, index, now, rules, request)
    if acquiring.limit < 1:
        return ledger, Grant(blocked_because="max_in_flight" if acquiring.has_due() else "")
    start = (
        _KINDS.index(AcquireKind(ledger.head.next_kind)) if ledger.head.next_kind in _KINDS else 0
    )
    for kind in (*_KINDS[start:], *_KINDS[:start]):
        if (found := acquiring.acquire(kind)) is not None:
            return found
    full = acquiring.full and acquiring.may_read
    return ledger, Grant(blocked_because="max_ledger_ranges" if full else blocked)


class _Acquiring:
    """One acquisition: what is due of each kind, and the limits."""

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
        self.due = _due_conditions(now, request)
        self.waiting = _due_rows(ledger, self.due, self.attempts)
        self.may_read = _has_unread(ledger, index, request)
        self.full = _is_full(ledger, now, rules)

    def has_due(self) -> bool:
        """Return whether any message may be leased."""
        return self.may_read or any(self.waiting.values())

    def acquire(self, kind: AcquireKind) -> tuple[Ledger, Grant] | None:
        """Lease messages of one kind. Return None if there are none."""
        if kind != REST and not self.waiting[kind]:
            return None
        editor, scheduled, reach = LedgerEditor(self.ledger), list[Range](), -1
        taken = self._take(editor, kind)
        if kind == REST and self.may_read and not self.full:
            limit = self.limit - sum(r.message_count for r in taken)
            unread, reach = take_unread(
                self.ledger,
                self.index,
                limit=limit,
                end=_end(self.index, self.request),
                now=self.now,
                cutoff=_due_cutoff(self.now, self.request),
            )
            taken += unread.due
            scheduled = [*unread.later, *unread.expired]
        if not taken:
            return None
        if self.request.max_bytes is not None:
            fitting = limit_bytes(editor, taken, self.index, self.request.max_bytes)
            if fitting is not taken:
                taken, reach = fitting, fitting[-1].last
        editor.head = _with_next_kind(self.ledger.head, kind)
        granted = _add_leased(editor, taken, self.now, self.request)
        for r in scheduled:
            if r.last <= reach:  # messages behind an unread message that is due stay unread too
                add_scheduled(editor, r, r._replace(state=UNREAD))
        return editor.build(), Grant(granted)

    def _take(self, editor: LedgerEditor, kind: AcquireKind) -> list[Range]:
        """Take waiting messages of one kind."""
        rows, limit = self.waiting[kind], self.limit
        if not rows:
            return []
        if kind == SUSPECT:
            row = rows[0] if self.attempts is not None else _longest_due(self.ledger, self.due)
            deliveries = self.ledger.range_at(row).delivery_count
            limit = isolation_size(limit, deliveries, self.attempts or _DEFAULT_ATTEMPTS)
            rows = [row]
        return take_waiting(editor, rows, limit, self.request.max_sequence, self.index)


def _with_next_kind(head: LedgerHeader, kind: AcquireKind) -> LedgerHeader:
    return replace(head, next_kind=str(_KINDS[(_KINDS.index(kind) + 1) % len(_KINDS)]))


def _limit_to_unblocked(ledger: Ledger, request: AcquireRequest) -> tuple[AcquireRequest, str]:
    """Return the request for the messages before the first blocked one, and why it ends there."""
    blocked = ledger.find((BLOCKED,)) if BLOCKED in ledger.states else []
    if not blocked:
        return request, ""
    first = ledger.range_at(blocked[0])
    before = first.first - 1
    max_sequence = before if request.max_sequence is None else min(before, request.max_sequence)
    return replace(
        request, max_sequence=max_sequence
    ), f"message {first.first} is past its limit ({first.reason})"


def _due_rows(
    ledger: Ledger, due: Sequence[Condition], attempts: int | None
) -> dict[AcquireKind, list[int]]:
    """Return the waiting rows that are due, by kind."""
    if WAITING not in ledger.states or not ledger.find((WAITING,), *due):
        return {kind: [] for kind in _KINDS}
    before_last = _MAX_INT32 if attempts is None else max(1, attempts - 1)
    clear = (*due, ("suspect", "=", False))
    last = (*clear, ("delivery_count", ">=", before_last))
    suspect = ledger.find((WAITING,), *due, ("suspect", "=", True))
    # A message without a failure can be on its last attempt, after a replay and a release.
    # It goes alone, because it is innocent so far.
    innocent = ledger.find((WAITING,), *last, ("failure_count", "=", 0))
    return {
        SUSPECT: sorted([*suspect, *innocent]),
        LAST: ledger.find((WAITING,), *last, ("failure_count", ">", 0)),
        REST: ledger.find((WAITING,), *clear, ("delivery_count", "<", before_last)),
    }


def _longest_due(ledger: Ledger, due: Sequence[Condition]) -> int:
    """Return the suspect range that is due the longest, in a group without a limit.

    The least delivered one wins a tie, then the lowest. With a limit the lowest always goes
    first, because it is settled or dead at last. Without one it would starve the others.
    """
    suspect = (*due, ("suspect", "=", True))
    since = ledger.minimum("available_at", (WAITING,), *suspect)
    longest = (*suspect, ("available_at", "=", since))
    least = ledger.minimum("delivery_count", (WAITING,), *longest)
    return ledger.find((WAITING,), *longest, ("delivery_count", "=", least))[0]


def _is_full(ledger: Ledger, now: int, rules: GroupSettings) -> bool:
    """Return whether the ledger may take no more unread messages.

    Delayed ranges do not count, and neither do ranges that wait for the sweep or the owner.
    """
    if ledger.size < rules.max_ledger_ranges:
        return False
    excluded = len(ledger.find((DEAD, BLOCKED, ROUTING)))
    delayed = len(ledger.find((WAITING,), ("available_at", ">", now)))
    return ledger.size - excluded - delayed >= rules.max_ledger_ranges


def _end(index: MessageIndex, request: AcquireRequest) -> int:
    """Return the last sequence that a request may read."""
    last = index.last_sequence
    return last if request.max_sequence is None else min(last, request.max_sequence)


def _has_unread(ledger: Ledger, index: MessageIndex, request: AcquireRequest) -> bool:
    return index.count(ledger.tracked_up_to + 1, _end(index, request)) > 0


def _due_cutoff(now: int, request: AcquireRequest) -> int:
    return now if request.due_by is None else min(now, request.due_by)


def _due_conditions(now: int, request: AcquireRequest) -> list[Condition]:
    """Return the conditions for waiting ranges that a request may lease."""
    due: list[Condition] = [("available_at", "<=", _due_cutoff(now, request))]
    if request.max_sequence is not None:
        due.append(("first", "<=", request.max_sequence))
    return due


def _add_leased(
    editor: LedgerEditor, taken: Sequence[Range], now: int, request: AcquireRequest
) -> tuple[Range, ...]:
    """Add the messages of a lease to the ledger and return their ranges."""
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
