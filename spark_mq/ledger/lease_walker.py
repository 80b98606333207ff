"""Walk over a lease's messages, and report messages it does not hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def add(self, r: Range, became: Range) -> None:
        self.settled += r.message_count
        self.ranges.append((r.first, r.last))
        self.states[became.state] = self.states.get(became.state, 0) + r.message_count
        if became.state == AVAILABLE:
            due = became.available_at or 0
            self.next_due_at = due if self.next_due_at is None else min(self.next_due_at, due)


class LeaseWalker:
    """Change messages that a lease holds, and split ranges at the ends of the intervals.

    Intervals that are the `whole` lease may end in a gap.
    """

    def __init__(
        self, ledger: Ledger, index: MessageIndex, lease_id: str, *, whole: bool = False
    ) -> None:
        self.ledger, self.index, self.lease_id = ledger, index, lease_id
        self.editor = LedgerEditor(ledger)
        self.outcome = SettleOutcome()
        self._whole = whole
        self._begins: dict[int, int] = {}  # where the part after the last split begins, by row

    def apply(self, r: Range) -> None:
        """Apply the change to a range that the lease holds."""
        raise NotImplementedError

    def visit(self, intervals: Sequence[Interval] | None) -> None:
        """Apply the change to some messages. None for all that the lease holds."""
        if intervals is None:
            for r in self.editor.remove(self.ledger.rows_held(self.lease_id)):
                self.apply(r)
            return
        wanted = normalise(intervals)
        held = self.ledger.rows_held(self.lease_id) if len(wanted) > 1 else []
        if held and self._are(held, wanted):
            for r in self.editor.remove(held):
                self.apply(r)
        else:
            self._visit_intervals(wanted)

    def _are(self, rows: Sequence[int], intervals: Sequence[Interval]) -> bool:
        """Return whether some rows are exactly some intervals, as in most whole leases."""
        if len(rows) != len(intervals):
            return False
        firsts, lasts = self.ledger.first_sequences, self.ledger.last_sequences
        return [(firsts[row], lasts[row]) for row in rows] == intervals

    def _visit_intervals(self, intervals: Sequence[Interval]) -> None:
        touched = [self.ledger.overlapping(first, last) for first, last in intervals]
        rows = sorted(set().union(*touched))
        ranges = dict(zip(rows, self.ledger.ranges_at(rows), strict=True))
        self._begins = {row: r.first for row, r in ranges.items()}
        held = [row for row in rows if self._holds(ranges[row])]
        for row in held:
            self.editor.mark_removed(row)
        for (first, last), of in zip(intervals, touched, strict=True):
            self._visit_interval(first, last, [(row, ranges[row]) for row in of])
        for row in held:
            r = ranges[row]
            self.editor.add(r.slice(self._begins[row], r.last, self.index), r)

    def _holds(self, r: Range) -> bool:
        return r.state in (LEASED, AVAILABLE) and r.lease_id == self.lease_id

    def _visit_interval(self, first: int, last: int, ranges: Iterable[tuple[int, Range]]) -> None:
        low: int | None = first
        high: int | None = last
        has_gaps = self.index.count(first, last) <= last - first
        if has_gaps:
            low, high = self.index.first_at_or_after(first), self.index.last_at_or_before(last)
        if low is None or high is None or low > high:
            self._report_gap(first, last)
            return
        self._report_gap(first, low - 1)
        head, frontier = self.ledger.head, self.ledger.end_sequence
        self.count_settled(low, min(high, head.start_sequence))
        for row, r in ranges:
            self._split_at(row, r, (low, high), has_gaps=has_gaps)
        if high > frontier:
            self.outcome.add_lost(max(low, frontier + 1), high, "unread")
        self._report_gap(high + 1, last)

    def count_settled(self, first: int, last: int) -> None:
        """Count settled messages. Messages that a seek skipped are lost, not processed."""
        if first > last:
            return
        done = subtract([(first, last)], self.ledger.head.skipped_intervals)
        self.outcome.already_settled += sum(self.index.count(*part) for part in done)
        for low, high in subtract([(first, last)], done):
            if self.index.count(low, high):
                self.outcome.add_lost(low, high, "skipped")

    def _report_gap(self, first: int, last: int) -> None:
        """Report sequences without a message, unless they end the intervals of a whole lease."""
        if first <= last and not self._whole:
            self.outcome.add_lost(first, last, "no message")

    def _split_at(self, row: int, r: Range, within: Interval, *, has_gaps: bool) -> None:
        """Change the piece of a row within an interval, which is after those before."""
        first, last = max(within[0], r.first), min(within[1], r.last)
        if has_gaps:
            piece = r.slice(first, last, self.index)
        else:
            piece = r.at(first, last, last - first + 1)
        if piece.message_count == 0:
            return
        if r.state == SETTLED:
            self.count_settled(piece.first, piece.last)
        elif not self._holds(r):
            self.outcome.add_lost(piece.first, piece.last, why_lost(r))
        else:
            if (begin := self._begins[row]) < piece.first:
                self.editor.add(r.slice(begin, piece.first - 1, self.index), r)
            self.apply(piece)
            self._begins[row] = piece.last + 1


def why_lost(r: Range) -> str:
    if r.state == LEASED:
        return f"leased by {r.lease_id}"
    if r.state == AVAILABLE:
        return "given back"
    return f"{'blocked' if r.state == BLOCKED else 'dead'}: {r.reason}"
