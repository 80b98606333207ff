"""Select the messages of a lease by priority, order of keys, isolation of suspects, and caps.

A lease holds messages of one kind, which the first due message that waits decides. Unread messages
come after all due messages that wait. While suspects are isolated, each fourth lease is of messages
that were never delivered, so that they do not starve. These rules hold within each priority. While
the breaker is open, such messages of any priority come first, then suspects. In an ordered group
only messages of open slots count as due, see :mod:`spark_mq.ledger.lane_walk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from spark_mq.ledger.budget import LAST_ATTEMPT, Budget
from spark_mq.ledger.editor import LedgerEditor
from spark_mq.ledger.intervals import Interval, intersect, subtract
from spark_mq.ledger.isolation import (
    ASSUMED_ATTEMPTS,
    AcquireKind,
    DueRanges,
    Head,
    failed_together,
    holds_last_attempt,
    holds_leases,
    is_last_attempt,
    isolation_size,
    settled_since,
)
from spark_mq.ledger.key_order import (
    claims_on_lanes,
    held_lanes,
    is_ordered,
    leases_held,
    return_behind,
)
from spark_mq.ledger.lane_walk import (
    LaneShares,
    LaneWalk,
    OneLaneWalk,
    OrderedWalk,
    SharedWalk,
)
from spark_mq.ledger.message_index import MessageIndex
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
    range_between,
)
from spark_mq.ledger.schedule import DUE, add_scheduled, split_by_time
from spark_mq.ledger.selection import (
    OTHER_GROUP,
    AcquireRequest,
    Candidates,
    Grant,
    SelectedPiece,
    Selection,
    WalkFilter,
    blocked_by,
    leased,
)
from spark_mq.ledger.settings import GroupSettings

MAX_LEASES_WITHOUT_FRESH: Final = 3
"""Leases in a row that may isolate suspects while unread messages are due."""
_ALONE: Final = "a message that may end its worker is leased alone"


@dataclass(slots=True)
class _Level:
    """The messages of one priority that may be leased."""

    slots: int
    head: Head | None
    rows: list[int]  # that a lease takes, from its head on
    covers_all_due: bool
    reads: bool  # whether unread messages may fill up the lease
    mixes: bool  # whether a lease may hold its messages together with other priorities


class LaneSelector:
    """The selection of one lease.

    In an unordered group all messages of a priority are one lane. Without priorities either, which
    is most queues, all messages are alike, and no slot of a file is looked at.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        now: int,
        rules: GroupSettings,
        request: AcquireRequest,
        *,
        budget: Budget,
        cutoff: int,
    ) -> None:
        self._ledger, self._index, self._now, self._request = ledger, index, now, request
        self._rules, self._budget, self._cutoff = rules, budget, cutoff
        self._attempts = rules.attempts_before_isolation(request.reserved_attempts)
        # A stream has one lease at a time. Who names messages has chosen.
        self._minds_others = request.reserved_attempts == 0 and request.intervals is None
        self._must_wait = self._minds_others and holds_last_attempt(
            ledger, request.worker_id, self._attempts
        )
        if self._attempts == 1:
            budget.messages = min(1, budget.messages)
        end = index.last_sequence
        if request.max_sequence is not None:
            end = min(end, request.max_sequence)
        named = None if request.intervals is None else index.trim_to_messages(request.intervals)
        self._due = DueRanges(
            ledger, cutoff, request.max_sequence, self._attempts, sink=rules.sink is not None,
            named=named,
        )  # fmt: skip
        start = ledger.end_sequence + 1
        unread = [(start, end)] if named is None else intersect(named, [(start, end)])
        self._may_read = any(index.count(*interval) > 0 for interval in unread)
        self._full = _is_full(ledger, now, rules)
        self._priorities = index.priorities_after(ledger.head.start_sequence)
        self._ordered = is_ordered(index, rules)
        divides = rules.order == "fair" or rules.max_in_flight_per_key is not None
        divides = divides and index.layout.lanes > 0 and not self._ordered
        self._shares = LaneShares(ledger, index, rules) if divides else None
        self._candidates = Candidates(
            ledger, index, now=now, cutoff=cutoff, end=end, ordered=self._ordered, named=named
        )
        self._walk = self._new_walk(WalkFilter.of(ledger, index, rules, request.matches))

    def _new_walk(self, row_filter: WalkFilter | None) -> LaneWalk:
        ledger, index, candidates = self._ledger, self._index, self._candidates
        if not (self._ordered or self._shares or self._priorities > 1):
            return OneLaneWalk(candidates, Selection(index, self._budget, row_filter, None))
        selection, is_open = Selection(index, self._budget, row_filter), index.layout.everything
        if self._ordered:
            is_open &= ~index.layout.of_lanes(held_lanes(ledger, index))
            blocks = leases_held(ledger) + 2 if candidates.named is None else 1
            return OrderedWalk(candidates, selection, is_open, blocks=blocks)
        if self._shares is not None:
            is_open &= ~index.layout.of_lanes(self._shares.full_lanes)
            return SharedWalk(candidates, selection, is_open, self._shares)
        return LaneWalk(candidates, selection, is_open)

    @property
    def _reads(self) -> bool:
        return self._may_read and not self._full

    def has_due(self) -> bool:
        return self._may_read or self._due.count > 0

    def nothing(self, blocked: str) -> Grant:
        """Return a grant without messages, and with a reason if only the owner can help."""
        if self._must_wait and (self._reads or self._due.count):
            return Grant((), f"{LAST_ATTEMPT}: {_ALONE}", blocked_for_now=True)
        if self._ordered:
            later = (AVAILABLE,), ("available_at", ">", self._now)
            if self._ledger.find((LEASED,)) or self._ledger.find(*later) or not self.has_due():
                return Grant()
            stopped = self._ledger.find((BLOCKED,))
            blocked = blocked_by(self._ledger.range_at(stopped[0])) if stopped else ""
        full = self._full and self._may_read
        shares = self._shares
        if not (blocked or full) and shares is not None and shares.full_lanes and self.has_due():
            return Grant((), shares.why_full(), blocked_for_now=True)
        return Grant(blocked_because="max_tracked_ranges" if full else blocked)

    def acquire(self, *, undelivered_first: bool = False) -> tuple[Ledger, Grant] | None:
        """Lease the messages whose turn it is, and skip others. Return None if none are.

        With `undelivered_first`, it is only the turn of messages that were never delivered, or of
        suspects if there are none.
        """
        if self._must_wait:
            return None
        available = self._find_available()
        passes_over, above = False, None
        levels = reversed(range(self._priorities.bit_length()))
        for priority in (level for level in levels if self._priorities >> level & 1):
            if above is not None and (self._walk.selection.full or self._leaves(above)):
                break
            level = self._level(priority, available)
            if self._walk.selection.taken and not level.mixes:
                break
            if undelivered_first:
                rows = self._due.undelivered()
                if not (rows or self._reads):
                    rows = self._due.suspects()
                self._walk.take(level.slots, rows, reads=self._reads)
            else:
                passes_over |= self._take(level)
            if self._must_wait:
                return None
            above = level
        if not (self._walk.selection.taken or self._walk.selection.skipped):
            return None
        return self._grant(passes_over=passes_over)

    def _find_available(self) -> dict[int, int] | None:
        """Return the due rows that a lease could begin with, and their open slots. None for all."""
        walk, is_open = self._walk, self._walk.all_open
        all_open = is_open == self._index.layout.everything
        if walk.alike or (all_open and self._priorities == 1 and not self._ordered):
            return None
        available, due = dict[int, int](), set(self._due.rows())
        if not due:
            return available
        no_lane = self._index.layout.without_lane
        for row, slots in self._candidates.with_slots(sorted(due)):
            if not is_open:
                break
            if row in due and (open_slots := self._candidates.open_in(row, slots, is_open)):
                available[row] = open_slots
            if self._ordered:
                is_open &= ~slots | no_lane
        return available

    def _leaves(self, level: _Level) -> bool:
        """Return whether a lease leaves some of a priority to others, or to its next try."""
        selection = self._walk.selection
        if selection.taken and not (level.mixes and level.covers_all_due):
            return True
        # If a filter skips all that it finds in the lanes of its block, others may have more.
        may_leave = bool(selection.taken or selection.skipped)
        return (
            may_leave
            and isinstance(self._walk, OrderedWalk)
            and self._walk.leaves(level.slots, level.rows, reads=self._reads)
        )

    def _level(self, priority: int, available: Mapping[int, int] | None) -> _Level:
        slots, rows = self._walk.all_open, None
        if available is not None:
            slots = self._index.layout.of_priority(priority)
            rows = {row for row, open_slots in available.items() if open_slots & slots}
        head = self._due.head(rows) if self._due.count else None
        if head is None:
            return _Level(slots, None, [], True, self._reads, not self._due.written)
        taken = self._due.rows_from(head, rows)
        if self._walk.alike:
            taken = taken[: self._budget.messages]  # each row has a message at least
        is_rest, covers_all_due = head.kind == AcquireKind.REST, self._due.are_all(taken, rows)
        reads = self._reads and is_rest and covers_all_due and self._due.reads_after(head)
        mixes = is_rest and not self._due.written
        return _Level(slots, head, taken, covers_all_due, reads, mixes)

    def _take(self, level: _Level) -> bool:
        """Take the messages of a priority. Return whether it passed over undelivered messages."""
        passes_over = level.head is not None and self._passes_over(level.head)
        if passes_over and self._ledger.head.leases_without_fresh >= MAX_LEASES_WITHOUT_FRESH:
            self._walk.take(level.slots, self._undelivered(), reads=self._reads)
            if self._walk.selection.taken:
                level.covers_all_due = False  # the head is left for a later lease
                return passes_over
        if level.head is not None and level.head.kind == AcquireKind.SUSPECT:
            self._isolate(level.head, level)
        else:
            self._walk.take(level.slots, level.rows, reads=level.reads)
        return passes_over

    def _passes_over(self, head: Head) -> bool:
        """Return whether undelivered messages wait for many leases such as that of a head."""
        takes_any = self._request.intervals is None  # else the caller has chosen
        isolates = takes_any and self._due.is_isolation(head)
        return isolates and (self._reads or bool(self._undelivered()))

    def _undelivered(self) -> list[int]:
        return [] if self._walk.alike else self._due.undelivered()  # else no lease skips any

    def _isolate(self, head: Head, level: _Level) -> None:
        """Take messages that failed together, of all the lanes that their lease had."""
        r, budget = self._ledger.range_at(head.row), self._budget
        if self._minds_others and is_last_attempt(r, self._attempts):
            # So that it does not wait for ever, its worker gets nothing until it holds nothing.
            self._must_wait = holds_leases(self._ledger, self._request.worker_id)
            if self._must_wait:
                return
        attempts = self._attempts or ASSUMED_ATTEMPTS
        budget.messages = isolation_size(
            budget.messages, r.delivery_count, attempts, r.lease_size,
            settled=settled_since(self._ledger, r),
            waiting=self._ledger.count((AVAILABLE,), *failed_together(r)),
        )  # fmt: skip
        self._walk.take(level.slots, level.rows, reads=False, all_lanes=True)

    def _grant(self, *, passes_over: bool) -> tuple[Ledger, Grant]:
        """Lease the pieces that the walk has taken, and settle what it has skipped."""
        ledger, index, request, walk = self._ledger, self._index, self._request, self._walk
        pieces, skipped = walk.selection.taken, walk.selection.skipped
        editor, lost = LedgerEditor(ledger), set[int]()
        if self._ordered:
            lost = set(claims_on_lanes(ledger, index, [(p.first, p.last) for p in pieces]))
        rows = sorted({*lost, *(p.row for p in (*pieces, *skipped) if p.row is not None)})
        ranges = dict(zip(rows, editor.remove(rows), strict=True))
        taken = [_range_of(piece, ranges) for piece in pieces]
        by_row: dict[int | None, list[Interval]] = {}
        for piece, r in zip(pieces, taken, strict=True):
            by_row.setdefault(piece.row, []).append((r.first, r.last))
        by_event = dict[str, int]()
        for piece in skipped:
            by_row.setdefault(piece.row, []).append((piece.first, piece.last))
            by_event[piece.event] = by_event.get(piece.event, 0) + piece.messages
            before = _range_of(piece, ranges)
            editor.add(before.as_settled(), before, piece.event)
        if unread := by_row.pop(None, []):
            self._add_passed_over(editor, unread)
        for row, r in ranges.items():
            if by_row.get(row) == [(r.first, r.last)]:
                continue  # all of it is taken
            left = r._replace(lease_id=None) if row in lost else r
            for first, last in subtract([(r.first, r.last)], by_row.get(row, ())):
                editor.add(left.slice(first, last, index), r)
        taken.sort(key=attrgetter("first"))
        if taken and request.intervals is None:  # else the caller has chosen: it is nobody's turn
            fresh = any(r.state == UNREAD if walk.alike else not r.delivery_count for r in taken)
            editor.head = _with_leases_without_fresh(ledger.head, passes_over, fresh=fresh)
        if walk.fair_time is not None:
            editor.head = replace(editor.head, fair_time=walk.fair_time)
        if request.sink_write is not None and taken:
            editor.head = replace(editor.head, last_sink_write=request.sink_write.number)
        size = sum(r.message_count for r in taken)
        granted = tuple(leased(r, self._now, request, size) for r in taken)
        for before, r in zip(taken, granted, strict=True):
            editor.add(r, before, "leased")
        after = editor.build()
        # What such a lease has extended may now stand behind what it lost.
        for lease_id in dict.fromkeys(ranges[row].lease_id or "" for row in sorted(lost)):
            after, _ = return_behind(after, index, self._now, lease_id)
        return after, Grant(granted, skipped=by_event)

    def _add_passed_over(self, editor: LedgerEditor, taken: list[Interval]) -> None:
        """Add the unread messages between those of the lease, and up to where the walk reached."""
        index, begin = self._index, self._ledger.end_sequence + 1
        end = max([self._walk.reach, *(last for _, last in taken)])
        if len(taken) == 1 and not index.count(begin, taken[0][0] - 1) and taken[0][1] == end:
            return  # nothing is passed over
        # Those that only other groups get are settled.
        others = subtract(index.for_others(begin, end, self._ledger.head.group), taken)
        for interval in others:
            if unread := range_between(index, *interval, UNREAD):
                editor.add(unread.as_settled(), unread, OTHER_GROUP)
        for interval in subtract([(begin, end)], [*taken, *others]):
            if not (unread := range_between(index, *interval, UNREAD)):
                continue
            for when, piece in split_by_time(unread, index, self._now, self._cutoff):
                if when == DUE:
                    editor.add(piece._replace(state=AVAILABLE, available_at=0), unread)
                else:
                    add_scheduled(editor, piece, unread, self._rules)


def _with_leases_without_fresh(
    head: LedgerHeader, passes_over: bool, *, fresh: bool
) -> LedgerHeader:
    """Count a lease that passes over undelivered messages. A lease of such messages ends this."""
    count = 0 if fresh else head.leases_without_fresh + passes_over
    count = min(MAX_LEASES_WITHOUT_FRESH, count)
    same = count == head.leases_without_fresh
    return head if same else replace(head, leases_without_fresh=count)


def _range_of(piece: SelectedPiece, ranges: Mapping[int, Range]) -> Range:
    if piece.row is None:
        return Range(piece.first, piece.last, UNREAD, piece.messages)
    r = ranges[piece.row]
    if piece.messages == r.message_count:
        return r
    return r.at(piece.first, piece.last, piece.messages)


def _is_full(ledger: Ledger, now: int, rules: GroupSettings) -> bool:
    # Delayed ranges do not count, and neither do ranges that wait for the sweep or the owner.
    if ledger.size < rules.max_tracked_ranges:
        return False
    excluded = len(ledger.find((DEAD, BLOCKED, TRANSFERRING)))
    delayed = len(ledger.find((AVAILABLE,), ("available_at", ">", now)))
    return ledger.size - excluded - delayed >= rules.max_tracked_ranges
