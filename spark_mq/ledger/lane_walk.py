"""Take the unsettled messages of open slots, in order.

A slot is open if no earlier message of it must be delivered first, and if no other lease holds its
lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import reduce
from itertools import repeat
from operator import attrgetter, itemgetter, or_
from typing import Final

from spark_mq.ledger.budget import Budget
from spark_mq.ledger.intervals import Interval, split_at
from spark_mq.ledger.lane_shares import LaneShares
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import split_by_time
from spark_mq.ledger.slots import FileSlots, lowest_of
from spark_mq.ledger.walk_filter import SelectedPiece, WalkFilter, add_joined

__all__ = ["MAX_PIECES", "LaneWalk"]

MAX_PIECES: Final = 1_000  # more pieces in one lease would make its commit large
_CHUNK: Final = 500
_first_of: Final = attrgetter("first")


class LaneWalk:
    """Take the messages of a lease, one priority after the other.

    In an `ordered` walk, a message that is not taken closes its slot. The lanes are divided into
    `shares` blocks of neighbouring lanes, of which a lease takes one. In a `plain` walk all
    messages are of one slot. With `lane_shares`, which an ordered walk has not, each lane has a
    limit. The `filter` says what is skipped. Given `named` intervals, it takes no other messages.
    Instants are microseconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        *,
        now: int,
        cutoff: int,
        end: int,
        budget: Budget,
        is_open: int,
        ordered: bool,
        plain: bool,
        shares: int,
        lane_shares: LaneShares | None = None,
        filter: WalkFilter | None = None,
        named: Sequence[Interval] | None = None,
    ) -> None:
        self._ledger, self._index, self._now, self.cutoff = ledger, index, now, cutoff
        self._end, self.budget, self._is_open = end, budget, is_open
        self._ordered, self.plain, self._shares = ordered, plain, shares
        self._no_lane = is_open if plain else index.layout.without_lane
        self.taken: list[SelectedPiece] = []
        self.lanes = 0  # the set of the lanes that were taken from
        self._block = 0  # the lanes that the lease may take from
        self._own = self._no_lane  # the slots of the lanes that were taken from
        self._allowed = is_open  # the slots that the lease may still take from
        self._quota: int | None = None  # messages of one skewed slot, None for no limit
        self._skewed: dict[int, int] = {}  # what was taken of skewed slots
        self._deferred: dict[int, int] = {}  # where skewed slots go on, by slot
        self._from = 0  # the first sequence of the walk
        self.lane_shares, self.filter, self._named = lane_shares, filter, named
        self._goes_on: dict[int, int] = {}  # where a slot with a share goes on, by slot
        self._most_pieces = MAX_PIECES  # of a slot with a share
        self._pieces: dict[int, int] = {}  # of slots with a share
        self.skips = False  # whether unread messages may lie before others that were taken
        self.reach = -1  # up to here a plain walk has taken all unread messages that are due
        self._unsettled = ledger.find((AVAILABLE, BLOCKED)) if ordered else []
        self._slots: dict[int, int] = {}  # of the rows that were visited

    @property
    def full(self) -> bool:
        if self.filter is not None and self.filter.is_full(len(self.taken)):
            return True
        return self.budget.messages < 1 or (len(self.taken) >= MAX_PIECES and not self.plain)

    def take(self, slots: int, rows: Sequence[int], *, reads: bool, all_lanes: bool) -> None:
        """Take the open messages of some slots, the available rows before unread messages."""
        begun = len(self.taken)
        if self.lane_shares is not None:
            self._take_shares(self.lane_shares, slots, rows, reads=reads, fair=not all_lanes)
            self.taken[begun:] = sorted(self.taken[begun:], key=_first_of)
            return
        shares, spares = self._shares, self._ordered and not all_lanes
        if all_lanes:
            self._shares, self._block, self._allowed = 1, 0, self._is_open
        # A hot key would fill the lease, and the other keys of its block would wait for it.
        messages = self.budget.messages
        share = 2 * messages * shares // max(1, self._index.layout.lanes)
        self._quota = max(1, min(share, messages // 2)) if spares else None
        self._visit(self._is_open & slots, rows, reads=reads)
        for slot, start in sorted(self._deferred.items(), key=itemgetter(1)):
            if self.full:
                break
            self._quota, self._from = None, start
            self._visit(1 << slot, rows, reads=reads)
        if self._deferred:  # Pieces of a higher priority stay in front.
            self.taken[begun:] = sorted(self.taken[begun:], key=_first_of)
        self._shares, self._quota, self._from = shares, None, 0
        self._deferred.clear()

    def _take_shares(
        self, shares: LaneShares, slots: int, rows: Sequence[int], *, reads: bool, fair: bool
    ) -> None:
        """Take the share of each lane. Lanes with fewer messages leave the rest to others."""
        due, start = reduce(or_, (found for _, found in self.visited(rows)), 0), self._end
        if rows:
            start = self._ledger.first_sequences[rows[0]]
        elif reads:
            start = self._ledger.end_sequence + 1
        expected = self.budget.expected(start, self._end)
        if reads:
            start = self._ledger.end_sequence + 1
            due = reduce(or_, (found for *_, found in self._index.blocks(start, self._end)), due)
        due &= slots & self._is_open
        # Otherwise the pieces of one lane could use up those of a fair lease.
        lanes = 1 if shares.fair_time is None else max(1, due.bit_count())
        self._most_pieces = max(1, MAX_PIECES // lanes)
        self._goes_on.clear()
        self._pieces.clear()
        for wanted in shares.rounds(due, self.budget, expected, fair=fair):
            self._visit(wanted, rows, reads=reads)

    def leaves(self, slots: int, rows: Sequence[int], *, reads: bool) -> bool:
        """Return whether messages are due in lanes that the last :meth:`take` left to others."""
        rest = copy(self)
        rest.taken, rest.budget = [], Budget(self._index, 1)
        rest.filter = None if self.filter is None else self.filter.without_skipped()
        own = self._index.layout.of_lanes(self.lanes) | self._no_lane
        rest.take(slots & ~own, rows, reads=reads, all_lanes=True)
        return bool(rest.taken)

    def _visit(self, is_open: int, rows: Sequence[int], *, reads: bool) -> None:
        slots = is_open
        is_open = self._visit_rows(is_open, rows, to_end=reads)
        if reads and not self.full and is_open:
            self._visit_unread(is_open, slots)

    def _visit_rows(self, is_open: int, rows: Sequence[int], *, to_end: bool) -> int:
        """Take from some rows. The others close their slots. Return what is open after them."""
        chosen = set(rows)
        last = rows[-1] if rows else -1
        firsts, lasts = self._ledger.first_sequences, self._ledger.last_sequences
        for row, slots in self.visited(rows):
            if self.full or not is_open or (row > last and not to_end):
                break
            if not slots & is_open or lasts[row] < self._from:
                continue
            if row in chosen:
                is_open = self._take_range(row, max(firsts[row], self._from), lasts[row], is_open)
            else:
                is_open = self._closed(is_open, slots)
        return is_open

    def visited(self, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield each row that a walk visits, and its slots. If ordered, all rows close slots."""
        if self.plain:
            yield from zip(rows, repeat(self._no_lane))
            return
        index, known = self._index, self._slots
        firsts, lasts = self._ledger.first_sequences, self._ledger.last_sequences
        rows = self._unsettled if self._ordered else rows
        for at in range(0, len(rows), _CHUNK):
            some = rows[at : at + _CHUNK]
            if new := [row for row in some if row not in known]:
                known.update(zip(new, index.slots_of(firsts, lasts, new), strict=True))
            yield from ((row, known[row]) for row in some)

    def _closed(self, is_open: int, slots: int) -> int:
        """Return the open slots after messages that are not taken."""
        return is_open & ~(slots & ~self._no_lane) if self._ordered else is_open

    def open_in(self, row: int, slots: int, is_open: int) -> int:
        """Return the open slots of a row from which the lease may take messages."""
        if self._named is None:
            return slots & is_open
        ledger, found = self._ledger, 0
        first, last = ledger.first_sequences[row], ledger.last_sequences[row]
        for is_named, low, high in split_at(self._named, first, last):
            if is_named:
                found |= self._index.slots_in(low, high) & is_open
            elif self._ordered:
                is_open = self._closed(is_open, self._index.slots_in(low, high))
        return found

    def _take_range(self, row: int | None, first: int, last: int, is_open: int) -> int:
        """Take the open runs of a range. Return what is open after it."""
        if self._named is None:
            return self._take_interval(row, first, last, is_open)
        for is_named, low, high in split_at(self._named, first, last):
            if self.full or not is_open:
                break
            if is_named:
                is_open = self._take_interval(row, low, high, is_open)
            elif self._ordered:
                is_open = self._closed(is_open, self._index.slots_in(low, high))
        return is_open

    def _take_interval(self, row: int | None, first: int, last: int, is_open: int) -> int:
        end = min(last, self._end)
        if self.plain:
            self._take_plain(row, first, end)
            return is_open
        if self.lane_shares is not None:
            return self._take_open(self.lane_shares, row, (first, end), is_open)
        for begins, slots, low, high in self._index.pieces_with_slots(first, end):
            if self.full or not is_open:
                return is_open
            is_open = self._take_piece(row, begins, slots, (low, high), is_open)
        if last > end:
            is_open = self._closed(is_open, self._index.slots_in(end + 1, last))
        return is_open

    def _take_open(
        self, shares: LaneShares, row: int | None, messages: Interval, is_open: int
    ) -> int:
        """Take the portions of open slots. Return the slots that may have more."""
        for start, end, found in self._index.blocks(*messages):
            if not found & is_open:
                continue
            for begins, slots, low, high in self._index.pieces_with_slots(start, end):
                for slot, run_low, run_high in slots.runs_of(is_open, low, high):
                    if self.full or not is_open:
                        return 0
                    first = max(begins + run_low, self._goes_on.get(slot, 0))
                    if first > begins + run_high:
                        continue
                    run, before = (first, begins + run_high), len(self.taken)
                    taken, last = self._take_run(row, begins, run, shares.left(slot))
                    pieces = self._pieces.get(slot, 0) + len(self.taken) - before
                    self._pieces[slot], self._goes_on[slot] = pieces, last + 1
                    shares.take(slot, taken)
                    if not shares.left(slot) or pieces >= self._most_pieces:
                        is_open &= ~(1 << slot)
        return is_open

    def _take_run(
        self, row: int | None, begins: int, run: Interval, most: int | None = None
    ) -> tuple[int, int]:
        """Take from a run of one file. Return how many messages, and the last one looked at."""
        if self.filter is None:
            taken = self._add(row, begins, *run, most)
            return taken, run[0] + taken - 1
        taken, at = 0, run[0] - 1
        for event, first, last in self.filter.runs(row, *run):
            if taken == most or self.full:
                break
            if event:
                at = last
                self.filter.skip(row, begins, (first, last), event)
            else:
                fits = self._add(row, begins, first, last, None if most is None else most - taken)
                at, taken = first + fits - 1, taken + fits
        return taken, at

    def _take_plain(self, row: int | None, first: int, last: int) -> None:
        index = self._index
        if self.filter is not None:
            for begins, _, low, high in index.pieces_with_slots(first, last):
                if self.full:
                    return
                self._take_run(row, begins, (begins + low, begins + high))
        elif count := self.budget.take(first, last):
            if row is not None and count == self._ledger.message_counts[row]:
                self.taken.append(SelectedPiece(row, first, last, count))
                return
            begins = index.first_at_or_after(first) or first
            self.taken.append(SelectedPiece(row, begins, index.nth_from(begins, count), count))

    def _take_piece(
        self, row: int | None, begins: int, slots: FileSlots, rows: Interval, is_open: int
    ) -> int:
        """Take the open runs of some rows of a file. Return what is open after them."""
        if not slots.is_sorted:
            return self._take_runs(row, begins, slots, rows, is_open)
        found = slots.mask_of(*rows)
        wanted = found & is_open
        if wanted & ~self._own and self._ordered:
            wanted = self._admitted(wanted, slots)
        if self._quota is not None and wanted & slots.skewed:
            wanted &= ~self._over_quota(wanted & slots.skewed, begins, slots, rows)
        if wanted:
            for low, high in slots.stretches(*rows, wanted):
                if self.full:
                    return is_open
                self._take_run(row, begins, (begins + low, begins + high))
        return self._closed(is_open, found & ~wanted) & self._allowed

    def _over_quota(self, skewed: int, begins: int, slots: FileSlots, rows: Interval) -> int:
        """Count rows of skewed slots. Return the slots of which the lease has enough for now."""
        found = 0
        for slot, low, high in slots.between(*rows):
            if skewed >> slot & 1:
                had = self._skewed.get(slot, 0)
                self._skewed[slot] = had + high - low + 1
                if had >= (self._quota or 0):
                    found |= 1 << slot
                    self._deferred[slot] = begins + low
        return found

    def _admitted(self, wanted: int, slots: FileSlots) -> int:
        """Return the slots of neighbouring lanes that the lease may take from, and note them."""
        layout = self._index.layout
        more, most = layout.lanes_in(wanted) & ~self.lanes, -(-layout.lanes // self._shares)
        if not self._block:
            sparse = layout.lanes_in(slots.mask).bit_count() <= most
            self._block = layout.every_lane if sparse else layout.block_of(more, self._shares)
        spare = most - self.lanes.bit_count()
        self.lanes |= lowest_of(more & self._block, max(0, spare))
        self._own = layout.of_lanes(self.lanes) | self._no_lane
        rest = self._block if self.lanes.bit_count() < most else self.lanes
        self._allowed = layout.of_lanes(rest) | self._own
        return wanted & self._own

    def _take_runs(
        self, row: int | None, begins: int, slots: FileSlots, rows: Interval, is_open: int
    ) -> int:
        """Take the open runs of an unsorted file, one by one. Return what is open after them."""
        for number, low, high in slots.between(*rows):
            if self.full or not is_open:
                return is_open
            bit = 1 << number
            admitted = bit & is_open
            if admitted & ~self._own and self._ordered:
                admitted = self._admitted(bit, slots)
            if admitted:
                self._take_run(row, begins, (begins + low, begins + high))
            else:
                is_open = self._closed(is_open, bit)
        return is_open

    def _add(
        self, row: int | None, begins: int, first: int, last: int, most: int | None = None
    ) -> int:
        """Add what fits of a run of a file from `begins` on, and return how many messages.

        They are joined with the last piece if they touch.
        """
        if fits := self.budget.take(first, last, most):
            add_joined(self.taken, self._index, row, begins, (first, first + fits - 1))
        return fits

    def _visit_unread(self, is_open: int, slots: int) -> None:
        """Take from the unread messages of the one priority that some slots have."""
        index = self._index
        start = max(self._ledger.end_sequence + 1, self._from)
        end = self._end
        timed = index.has_times(start, end)
        if self.plain and not timed and self._named is None:
            self._take_range(None, start, end, is_open)
            return
        self.skips = True
        files: Iterable[Sequence[int]]
        if self.lane_shares is not None:
            files = (block for block in index.blocks(start, end) if block[2] & slots)
        else:
            priority = 0 if self.plain else index.layout.priorities_in(slots).bit_length() - 1
            files = index.files_with(priority, start, end)
        for first, last, *_ in files:
            if self.full or not is_open:
                return
            if timed and index.has_times(first, last):
                is_open = self._visit_timed(first, last, is_open)
            else:
                is_open = self._take_range(None, first, last, is_open)
            if self.plain and not self.full and self._named is None:
                self.reach = last

    def _visit_timed(self, first: int, last: int, is_open: int) -> int:
        """Take from an unread file with times. Messages that are due later close their slots."""
        unread = Range(first, last, UNREAD, last - first + 1)
        found = split_by_time(unread, self._index, self._now, self.cutoff)
        later = {r.first for r in found.later}
        for r in sorted((*found.due, *found.later), key=_first_of):
            if r.first in later:
                is_open = self._closed(is_open, self._index.slots_in(r.first, r.last))
            else:
                is_open = self._take_range(None, r.first, r.last, is_open)
        return is_open
