"""Select the messages of a lease by priority and order of keys.

The rules of :mod:`spark_mq.ledger.acquisition` hold within each priority. In an ordered group only
messages of open bands count as due, see :mod:`spark_mq.ledger.band_walk`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_mq.ledger.acquisition import (
    MAX_PASSED_OVER,
    AcquireRequest,
    Acquisition,
    Grant,
    add_leased,
    blocked_by,
    due_cutoff,
    isolation_size,
    last_readable,
    with_passed_over,
)
from spark_mq.ledger.band_walk import BandWalk, Piece
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, subtract
from spark_mq.ledger.key_order import claims_on_lanes, held_lanes, is_ordered, leases_held
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.message_range import range_between
from spark_mq.ledger.order import ASSUMED_ATTEMPTS, AcquireKind, BandedRanges, Head
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, LEASED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import add_scheduled, split_by_time
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.taking import fitting_bytes

__all__ = ["BandedAcquisition", "has_priorities"]


def has_priorities(ledger: Ledger, index: MessageIndex) -> bool:
    """Return whether unsettled messages may have a priority above 0."""
    return index.priorities_after(ledger.head.ack_floor) != 1


@dataclass(slots=True)
class _Level:
    """The messages of one priority that may be leased."""

    bands: int
    head: Head | None
    rows: list[int]  # that a lease takes, from its head on
    alone: bool  # whether no message of another kind is due

    @property
    def mixes(self) -> bool:
        """Return whether a lease may hold its messages together with other priorities."""
        return self.head is None or self.head.kind == AcquireKind.REST


class BandedAcquisition(Acquisition):
    """One acquisition by bands."""

    due: BandedRanges
    find_due = BandedRanges

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        now: int,
        rules: GroupSettings,
        request: AcquireRequest,
    ) -> None:
        super().__init__(ledger, index, now, rules, request)
        self._ordered = is_ordered(index, rules)
        layout = index.layout
        self._is_open = layout.everything
        shares = 1
        if self._ordered:
            self._is_open &= ~layout.of_lanes(held_lanes(ledger, index))
            shares = leases_held(ledger) + 2
        self._walk = BandWalk(
            ledger,
            index,
            now=now,
            cutoff=due_cutoff(now, request),
            end=last_readable(index, request),
            limit=self.limit,
            is_open=self._is_open,
            ordered=self._ordered,
            shares=shares,
        )
        self._available = self._find_available()

    def _find_available(self) -> dict[int, int]:
        """Return the due rows that a lease could begin with, and their available bands."""
        found, is_open = dict[int, int](), self._is_open
        due = set(self.due.rows())
        if not due:
            return found
        no_lane = self.index.layout.without_lane
        for row, in_row in self._walk.visited(sorted(due)):
            if not is_open:
                break
            bands = is_open & in_row
            if bands and row in due:
                found[row] = bands
            if self._ordered:
                is_open &= ~bands | no_lane
        return found

    def acquire(self) -> tuple[Ledger, Grant] | None:
        priorities = self.index.priorities_after(self.ledger.head.ack_floor)
        passes_over, above = False, None
        for priority in range(priorities.bit_length() - 1, -1, -1):
            if not priorities >> priority & 1:
                continue
            if self._walk.full or (above is not None and self._leaves(above)):
                break
            level = self._level(priority)
            if self._walk.taken and not level.mixes:
                break
            passes_over |= self._take(level)
            above = level
        return self._finish(passes_over) if self._walk.taken else None

    def _leaves(self, level: _Level) -> bool:
        """Return whether a lease with messages leaves some of a priority to other leases."""
        if not self._walk.taken:
            return False
        if not (level.mixes and level.alone):
            return True
        reads = self.may_read and not self.full
        return self._ordered and self._walk.leaves(level.bands, level.rows, reads=reads)

    def nothing(self, blocked: str) -> Grant:
        if not self._ordered:
            return super().nothing(blocked)
        ledger = self.ledger
        stopped = ledger.find((BLOCKED,)) if BLOCKED in ledger.states else []
        later = ("available_at", ">", self.now)
        goes_on = ledger.find((LEASED,)) or ledger.find((AVAILABLE,), later)
        if goes_on or not self.has_due():
            return Grant()
        return super().nothing(blocked_by(ledger.range_at(stopped[0])) if stopped else "")

    def _level(self, priority: int) -> _Level:
        bands = self.index.layout.of_priority(priority)
        available = {row for row, found in self._available.items() if found & bands}
        head = self.due.head_among(available)
        rows = [] if head is None else self.due.rows_from(head, available)
        alone = available.issubset(self.due.rows(AcquireKind.REST))
        return _Level(bands, head, rows, alone)

    def _take(self, level: _Level) -> bool:
        """Take the messages of a priority. Return whether it passed over undelivered messages."""
        reads = self.may_read and not self.full
        if level.head is None:
            self._walk.take(level.bands, [], reads=reads, all_lanes=False)
            return False
        fresh = self.due.fresh() if self.due.is_isolation(level.head) else []
        isolates = self.due.is_isolation(level.head) and (reads or bool(fresh))
        if isolates and self.ledger.head.passed_over >= MAX_PASSED_OVER:
            self._walk.take(level.bands, fresh, reads=reads, all_lanes=False)
            if self._walk.taken:
                level.alone = False  # the head is left for a later lease
                return False
        if level.head.kind == AcquireKind.SUSPECT:
            self._isolate(level)
        else:
            reads = reads and level.head.kind == AcquireKind.REST and level.alone
            self._walk.take(level.bands, level.rows, reads=reads, all_lanes=False)
        return isolates

    def _isolate(self, level: _Level) -> None:
        """Take messages that failed together, of all the lanes that their lease had."""
        assert level.head is not None
        r, walk = self.ledger.range_at(level.head.row), self._walk
        attempts, before = self.attempts or ASSUMED_ATTEMPTS, walk.limit
        walk.limit = isolation_size(before, r.delivery_count, attempts, r.lease_size)
        walk.take(level.bands, level.rows, reads=False, all_lanes=True)
        walk.limit = 0

    def _finish(self, passes_over: bool) -> tuple[Ledger, Grant]:
        editor = LedgerEditor(self.ledger)
        pieces = self._walk.taken
        lost = set(claims_on_lanes(self.ledger, self.index, self._walk.lanes))
        rows = sorted({*lost, *(piece.row for piece in pieces if piece.row is not None)})
        ranges = dict(zip(rows, editor.remove(rows), strict=True))
        taken = [_range_of(piece, ranges) for piece in pieces]
        if self.request.max_bytes is not None:
            taken = fitting_bytes(taken, self.index, self.request.max_bytes)
        by_row: dict[int | None, list[Interval]] = {}
        for piece, r in zip(pieces, taken, strict=False):  # without those that do not fit
            by_row.setdefault(piece.row, []).append((r.first, r.last))
        self._add_skipped(editor, by_row.pop(None, []))
        for row, r in ranges.items():
            left = r._replace(lease_id=None) if row in lost else r
            for first, last in subtract([(r.first, r.last)], by_row.get(row, ())):
                editor.add(left.slice(first, last, self.index), r)
        taken.sort(key=_first_of)
        fresh = any(not r.delivery_count for r in taken)
        passed = min(MAX_PASSED_OVER, self.ledger.head.passed_over + 1) if passes_over else None
        editor.head = with_passed_over(self.ledger.head, passed, fresh=fresh)
        granted = add_leased(editor, taken, self.now, self.request)
        return editor.build(), Grant(granted)

    def _add_skipped(self, editor: LedgerEditor, taken: list[Interval]) -> None:
        """Add the unread messages that lie before others that the lease took."""
        if not taken:
            return
        reach = (self.ledger.tracked_up_to + 1, max(last for _, last in taken))
        timed = self.index.has_times(*reach)
        for first, last in subtract([reach], taken):
            skipped = range_between(self.index, first, last, UNREAD)
            if skipped is None:
                continue
            for piece in self._scheduled(skipped) if timed else (_due_since_ever(skipped),):
                add_scheduled(editor, piece, skipped)

    def _scheduled(self, skipped: Range) -> Iterable[Range]:
        """Yield skipped messages as available, due already or later, or as expired."""
        cutoff = due_cutoff(self.now, self.request)
        found = split_by_time(skipped, self.index, self.now, cutoff)
        for r in found.due:
            yield _due_since_ever(r)
        yield from (*found.later, *found.expired)


def _range_of(piece: Piece, ranges: Mapping[int, Range]) -> Range:
    if piece.row is None:
        return Range(piece.first, piece.last, UNREAD, piece.messages)
    r = ranges[piece.row]
    if piece.messages == r.message_count:
        return r
    return r._replace(first=piece.first, last=piece.last, message_count=piece.messages)


def _due_since_ever(r: Range) -> Range:
    return r._replace(state=AVAILABLE, available_at=0)


def _first_of(r: Range) -> int:
    return r.first
