"""Walk over a lease's messages, and report messages it does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, normalise, subtract
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, LEASED, SETTLED, Ledger, Range


@dataclass(slots=True)
class SettleOutcome:
    """The outcome of a command."""

    settled: int = 0
    already_settled: int = 0  # before, by any lease
    lost: list[tuple[int, int, str]] = field(default_factory=list)  # (first, last, reason)
    ranges: list[Interval] = field(default_factory=list)  # the settled sequences
    returned: list[Interval] = field(default_factory=list)
    """Sequences that the lease has lost too, because an earlier message of their key waits."""
    states: dict[str, int] = field(default_factory=dict, compare=False)  # for logs
    next_due_at: int | None = field(default=None, compare=False)  # of those that wait
    ended: int = field(default=0, compare=False)
    """Messages that the late command did not settle, because their expiry ended them first."""

    def add_lost(self, first: int, last: int, reason: str) -> None:
        """Add lost sequences. Join them with the last ones if the reason is the same."""
        if self.lost and self.lost[-1][1] + 1 == first and self.lost[-1][2] == reason:
            first = self.lost.pop()[0]
        self.lost.append((first, last, reason))

    def sort_lost(self) -> None:
        lost, self.lost = sorted(self.lost), []
        for first, last, reason in lost:
            self.add_lost(first, last, reason)

    def add(self, r: Range, became: Range) -> None:
        self.settled += r.message_count
        self.ranges.append((r.first, r.last))
        self.states[became.state] = self.states.get(became.state, 0) + r.message_count
        if became.state == AVAILABLE:
            due = became.available_at or 0
            self.next_due_at = due if self.next_due_at is None else min(self.next_due_at, due)


class LeaseWalker:
    """Change messages that a lease holds, and report the others that it is given.

    Intervals that are the `whole` lease may end in a gap.
    """

    def __init__(
        self, ledger: Ledger, index: MessageIndex, lease_id: str, *, whole: bool = False
    ) -> None:
        self.ledger, self.index, self.lease_id = ledger, index, lease_id
        self.editor = LedgerEditor(ledger)
        self.outcome = SettleOutcome()
        self._whole = whole

    def apply(self, r: Range) -> None:
        """Apply the change to a range that the lease holds."""
        raise NotImplementedError

    def visit(self, intervals: Sequence[Interval] | None) -> None:
        """Apply the change to some messages. None for all that the lease holds."""
        if intervals is None or self._are_held(intervals):
            for r in self.editor.remove(self.ledger.rows_held(self.lease_id)):
                self.apply(r)
            return
        wanted, held = normalise(intervals), list[Interval]()
        named = self.index.trim_to_messages(wanted)
        for r in self.editor.cut(named, self.index, (LEASED, AVAILABLE), self._holds):
            self.apply(r)
            held.append((r.first, r.last))
        if named != wanted and not self._whole:
            for first, last in subtract(wanted, named):
                self.outcome.add_lost(first, last, "no message")
        if held != named:
            self._report(subtract(named, held))
        self.outcome.sort_lost()

    def _are_held(self, intervals: Sequence[Interval]) -> bool:
        """Return whether intervals are the ranges that the lease holds, as in most whole leases."""
        if len(intervals) < 2:
            return False
        ledger, rows = self.ledger, self.ledger.rows_held(self.lease_id)
        firsts, lasts = ledger.first_sequences, ledger.last_sequences
        return [(firsts[row], lasts[row]) for row in rows] == list(intervals)

    def _holds(self, r: Range) -> bool:
        return r.lease_id == self.lease_id

    def _report(self, intervals: Sequence[Interval]) -> None:
        """Report messages that the lease does not hold."""
        ledger, end = self.ledger, self.ledger.end_sequence
        touched = [ledger.overlapping(first, last) for first, last in intervals]
        rows = sorted(set().union(*touched))
        ranges = dict(zip(rows, ledger.ranges_at(rows), strict=True))
        for (first, last), of in zip(intervals, touched, strict=True):
            self.count_settled(first, min(last, ledger.head.start_sequence))
            for row in of:
                piece = ranges[row].slice(first, last, self.index)
                if piece.state == SETTLED:
                    self.count_settled(piece.first, piece.last)
                elif piece.message_count:
                    self.outcome.add_lost(piece.first, piece.last, why_lost(piece))
            if last > end:
                self.outcome.add_lost(max(first, end + 1), last, "unread")

    def count_settled(self, first: int, last: int) -> None:
        """Count settled messages. Messages that a seek skipped are lost, not processed."""
        if first > last:
            return
        done = subtract([(first, last)], self.ledger.head.skipped_intervals)
        self.outcome.already_settled += sum(self.index.count(*part) for part in done)
        for low, high in subtract([(first, last)], done):
            if self.index.count(low, high):
                self.outcome.add_lost(low, high, "skipped")


def why_lost(r: Range) -> str:
    if r.state == LEASED:
        return f"leased by {r.lease_id}"
    if r.state == AVAILABLE:
        return "given back"
    return f"{'blocked' if r.state == BLOCKED else 'dead'}: {r.reason}"
