"""Settle the messages of a lease: ack, nack, reject and release.

The lease id is the right to settle. A lease may settle after its deadline what no other lease
holds. See :func:`settle`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, LEASED, SETTLED, WAITING, Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.transitions import (
    exhaust,
    exhausted_limit,
    expired,
    is_late,
    record_expired_leases,
    record_failure,
    rejected,
    to_waiting,
    with_failure,
)
from spark_mq.util.validation import truncate_error

__all__ = [
    "ACK",
    "NACK",
    "REJECT",
    "REJECTED",
    "RELEASE",
    "SettleCommand",
    "SettleOutcome",
    "settle",
]

ACK: Final = "ack"
NACK: Final = "nack"
REJECT: Final = "reject"
RELEASE: Final = "release"

REJECTED: Final = "rejected"
_EVENTS: Final = {ACK: "acked", NACK: "nacked", REJECT: "rejected", RELEASE: "released"}


@dataclass(frozen=True, slots=True)
class SettleCommand:
    """What to do with a lease, or with some messages of it."""

    verb: str
    """ACK, NACK, REJECT or RELEASE."""
    lease_id: str
    intervals: Sequence[Interval] | None = None
    """Sequences, inclusive. None for all messages that the lease holds."""
    whole: bool = False
    """The intervals are the whole lease and name no message, so a nack knows no culprit."""
    delay: int | None = None
    """Microseconds until nacked messages are due. None for the group's retry policy."""
    error: str | None = None
    """The failure as text. It is truncated."""
    reason: str = REJECTED
    """Why rejected messages are dead."""
    jitter: float = 0.0
    """The share of the policy's jitter, 0 to 1. It is drawn once for each command."""
    handler_failed: bool = False
    """A reject because the handler failed. It counts as a failure for the breaker."""

    def __post_init__(self) -> None:
        if self.error is not None:
            object.__setattr__(self, "error", truncate_error(self.error))


@dataclass(slots=True)
class SettleOutcome:
    """What a command did."""

    settled: int = 0
    """Messages that the command settled."""
    already_settled: int = 0
    """Messages that were settled before, by any lease."""
    lost: list[tuple[int, int, str]] = field(default_factory=list)
    """``(first, last, reason)`` of the sequences that the lease did not hold."""
    ranges: list[Interval] = field(default_factory=list)
    """The settled sequences."""
    states: dict[str, int] = field(default_factory=dict, compare=False)
    """How many messages went to which state, for logs."""
    next_due_at: int | None = field(default=None, compare=False)
    """When the first of those that wait is due again, in microseconds."""
    ended: int = field(default=0, compare=False)
    """Messages that the late command did not settle, because their expiry ended them first."""

    def add_lost(self, first: int, last: int, reason: str) -> None:
        """Add lost sequences, joined with the last ones if the reason is the same."""
        if self.lost and self.lost[-1][1] + 1 == first and self.lost[-1][2] == reason:
            first = self.lost.pop()[0]
        self.lost.append((first, last, reason))

    def add(self, r: Range, became: Range) -> None:
        """Count a range that was settled, and what became of it."""
        self.settled += r.message_count
        self.ranges.append((r.first, r.last))
        self.states[became.state] = self.states.get(became.state, 0) + r.message_count
        if became.state == WAITING:
            due = became.available_at or 0
            self.next_due_at = due if self.next_due_at is None else min(self.next_due_at, due)


def settle(
    ledger: Ledger, index: MessageIndex, now: int, rules: GroupSettings, command: SettleCommand
) -> tuple[Ledger, SettleOutcome]:
    """Apply one settle command.

    A lease may hold messages after its deadline, until another lease takes them. Then ack and
    reject count as usual. A nack or release expires them first and then gives up the lease's
    claim. So it does the same if another operation has expired them before. Messages that are
    settled already, by any lease, are counted and stay as they are.

    Parameters
    ----------
    ledger
        The group's ledger. The caller has expired the other leases already.
    index
        The message index.
    now
        The current time in microseconds.
    rules
        The group's settings.
    command
        What to do.

    Returns
    -------
    tuple of Ledger and SettleOutcome
        The next ledger, and what the command did. ``lost`` lists all other sequences.
    """
    settling = _Settling(ledger, index, now, rules, command)
    if command.intervals is None:
        for r in settling.editor.remove(ledger.rows_held(command.lease_id)):
            settling.apply(r)
    else:
        settling.settle_intervals(normalise(command.intervals))
    return settling.finish(), settling.outcome


class _Settling:
    """One command in progress. It splits the ranges of the command's intervals."""

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        now: int,
        rules: GroupSettings,
        command: SettleCommand,
    ) -> None:
        self.ledger, self.index, self.now = ledger, index, now
        self.rules, self.command = rules, command
        self.editor = LedgerEditor(ledger)
        self.outcome = SettleOutcome()
        self._rest: dict[int, Range] = {}  # by row: the part after the last split
        self._last: Range | None = None  # the last settled piece, and the result for it
        self._result: Range | None = None
        self._failed: Range | None = None  # the first leased piece that failed
        self._expired: list[Range] = []  # the late pieces, as they were leased
        explicit = command.reason == REJECTED and not command.handler_failed
        self._succeeds = command.verb == ACK or (command.verb == REJECT and explicit)
        self._fails = command.verb == NACK or command.handler_failed
        self._expires_first = command.verb in (NACK, RELEASE)

    def settle_intervals(self, intervals: Sequence[Interval]) -> None:
        """Settle the messages of some intervals in ascending order."""
        touched = [self.ledger.overlapping(first, last) for first, last in intervals]
        rows = sorted(set().union(*touched))
        self._rest = dict(zip(rows, self.ledger.ranges_at(rows), strict=True))
        held = [row for row in rows if self._holds(self._rest[row])]
        self.editor.remove(held)
        for (first, last), of in zip(intervals, touched, strict=True):
            self._settle_interval(first, last, of)
        for row in held:
            if row in self._rest:
                self.editor.add(self._rest[row], self._rest[row])

    def _holds(self, r: Range) -> bool:
        return r.state in (LEASED, WAITING) and r.lease_id == self.command.lease_id

    def _settle_interval(self, first: int, last: int, rows: range) -> None:
        low = self.index.first_at_or_after(first)
        high = self.index.last_at_or_before(last)
        if low is None or high is None or low > high:
            self._report_gap(first, last)
            return
        self._report_gap(first, low - 1)
        head, frontier = self.ledger.head, self.ledger.tracked_up_to
        self._count_settled(low, min(high, head.ack_floor))
        for row in rows:
            self._split_at(row, low, high)
        if high > frontier:
            self.outcome.add_lost(max(low, frontier + 1), high, "unread")
        self._report_gap(high + 1, last)

    def _count_settled(self, first: int, last: int) -> None:
        """Count settled messages. Messages that a seek skipped are lost, not processed."""
        if first > last:
            return
        done = subtract([(first, last)], self.ledger.head.skipped_intervals)
        self.outcome.already_settled += sum(self.index.count(*part) for part in done)
        for low, high in subtract([(first, last)], done):
            if self.index.count(low, high):
                self.outcome.add_lost(low, high, "skipped")

    def _report_gap(self, first: int, last: int) -> None:
        """Report sequences without a message, unless the command names a whole lease.

        The intervals of a whole lease may end in a gap.
        """
        if first <= last and not self.command.whole:
            self.outcome.add_lost(first, last, "no message")

    def _split_at(self, row: int, low: int, high: int) -> None:
        """Settle the piece of a row within ``low..high``."""
        r = self._rest.get(row)
        if r is None or (piece := r.slice(low, high, self.index)).message_count == 0:
            return
        if r.state == SETTLED:
            self._count_settled(piece.first, piece.last)
        elif not self._holds(r):
            self.outcome.add_lost(piece.first, piece.last, _why_lost(r))
        else:
            if r.first < piece.first:
                self.editor.add(r.slice(r.first, piece.first - 1, self.index), r)
            self.apply(piece)
            if piece.last < r.last:
                self._rest[row] = r.slice(piece.last + 1, r.last, self.index)
            else:
                del self._rest[row]

    def apply(self, r: Range) -> None:
        """Apply the command to a range that the lease holds."""
        late = r.state == LEASED and self._expires_first and is_late(r, self.now, self.rules)
        if late:
            r = self._expire(r)
        elif r.state == LEASED and self._fails:
            self._failed = self._failed or r
        if r.state not in (LEASED, WAITING):
            self._report_ended(r)
            return
        if self._succeeds:
            self._close_breaker(r)
        # Computed once for all pieces of a range: the result depends on its state only.
        if self._last is None or self._result is None or not r.same_state_as(self._last):
            self._result = self._after(r)
        self._last = r
        self.outcome.add(r, self._result)
        piece = self._result._replace(first=r.first, last=r.last, message_count=r.message_count)
        self.editor.add(piece, r, _EVENTS[self.command.verb])

    def _expire(self, r: Range) -> Range:
        """Expire a piece, as any other operation would have done before."""
        after = expired(r, self.rules)
        self._expired.append(r)
        if after.state == WAITING:
            self.editor.record_event("lease_expired", after)
        else:
            self.editor.add(after, r, "lease_expired")
            self.outcome.ended += r.message_count
        return after

    def _report_ended(self, r: Range) -> None:
        """Report a piece that its expiry has ended. A command for all held messages skips it."""
        if self.command.intervals is None:
            return
        if r.state == SETTLED:
            self._count_settled(r.first, r.last)
        else:
            self.outcome.add_lost(r.first, r.last, _why_lost(r))

    def _close_breaker(self, r: Range) -> None:
        editor, before = self.editor, self.editor.head.breaker
        after = before.with_success([(r.first, r.last)])
        if after is not before:
            editor.head = replace(editor.head, breaker=after)
            if before.opened_at is not None:
                editor.record_event("breaker_closed", r)

    def finish(self) -> Ledger:
        """Return the next ledger. A lease that ends as failed counts for the breaker."""
        after = self.editor.build()
        if not (self._failed or self._expired):
            return after
        if after.rows_held(self.command.lease_id):
            return after
        editor = LedgerEditor(after)
        if self._expired:
            record_expired_leases(editor, self._expired, self.rules)
        elif self._failed is not None:
            first = self._failed.first
            found = after.ranges_at(list(after.overlapping(first, first)))
            failed = self._failed._replace(state=found[0].state if found else SETTLED)
            record_failure(editor, failed, self.command.error, self.now, self.rules)
        return editor.build()

    def _after(self, r: Range) -> Range:
        command, rules = self.command, self.rules
        if command.verb == ACK:
            return Range(r.first, r.last, SETTLED, r.message_count)
        if command.verb == REJECT:
            return rejected(r, rules, command.reason, command.error)
        if command.verb == NACK:
            return _nacked(r, self.now, rules, command)
        if r.state == WAITING:
            lease_size = r.lease_size if r.suspect else None
            return r._replace(lease_id=None, worker_id=None, leased_at=None, lease_size=lease_size)
        return _released(r, self.now)


def _why_lost(r: Range) -> str:
    if r.state == LEASED:
        return f"leased by {r.lease_id}"
    if r.state == WAITING:
        return "given back"
    return f"{'blocked' if r.state == BLOCKED else 'dead'}: {r.reason}"


def _nacked(r: Range, now: int, rules: GroupSettings, command: SettleCommand) -> Range:
    by_name = command.intervals is not None and not command.whole
    live = r.state == LEASED  # an expiry has counted the failure already
    error = command.error or r.error
    r = with_failure(r, now) if live else r
    if reason := exhausted_limit(r, rules, now, own=by_name or r.lease_size == 1):
        return exhaust(r, rules, reason, error)
    delay = command.delay
    if delay is None:
        delay = rules.delay(r.failure_count, command.jitter) if live else 0
    suspect = not by_name and r.lease_size != 1
    lease_size = r.lease_size if suspect else None
    return to_waiting(r, now + delay, error)._replace(suspect=suspect, lease_size=lease_size)


def _released(r: Range, now: int) -> Range:
    back = to_waiting(r, now, r.error)
    count = r.delivery_count - 1
    first = r.first_leased_at if count else None
    return back._replace(delivery_count=count, first_leased_at=first)
