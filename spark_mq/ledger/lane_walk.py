"""Take the candidates of a lease whose slots are open, in order.

Candidates are the ranges that wait, then the unread messages. A slot is open if no earlier message
of it must be delivered first, and if no other lease holds its lane.
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
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import split_by_time
from spark_mq.ledger.selection import Selection
from spark_mq.ledger.slots import FileSlots, lowest_of

Part = tuple[int, int, int]
"""The first and last sequence of messages, and the slots that they close.

No slots stand for messages that a lease may take. Only those that it may not take close slots.
"""
FilePiece = tuple[int, FileSlots, int, int]
"""The first sequence of a file, its slots, and the first and last row of a part of it."""
Visit = tuple[int, int]
"""The slots that a walk takes from, and the first sequence that it looks at."""

_CHUNK: Final = 500  # rows whose slots are looked up at once
_first_of: Final = attrgetter("first")


class Candidates:
    """The messages up to `end` that a lease may take, of `named` intervals alone if it is given.

    In an `ordered` group, all others that wait close their slots. Instants are microseconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        index: MessageIndex,
        *,
        now: int,
        cutoff: int,
        end: int,
        ordered: bool,
        named: Sequence[Interval] | None = None,
    ) -> None:
        self.ledger, self.index, self.end = ledger, index, end
        self._now, self._cutoff, self.named = now, cutoff, named
        self.unread_from = ledger.end_sequence + 1
        self._closing = ledger.find((AVAILABLE, BLOCKED)) if ordered else None

    def with_slots(self, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield rows and their slots. In an ordered group, these are all rows that close slots."""
        firsts, lasts = self.ledger.first_sequences, self.ledger.last_sequences
        rows = rows if self._closing is None else self._closing
        for at in range(0, len(rows), _CHUNK):
            some = rows[at : at + _CHUNK]
            yield from zip(some, self.index.slots_of(firsts, lasts, some), strict=True)

    def slots_in(self, rows: Sequence[int]) -> int:
        ledger = self.ledger
        slots = self.index.slots_of(ledger.first_sequences, ledger.last_sequences, rows)
        return reduce(or_, slots, 0)

    def open_in(self, row: int, slots: int, is_open: int) -> int:
        """Return the open slots of a row from which a lease may take messages."""
        if self.named is None:
            return slots & is_open
        open_slots, ledger = 0, self.ledger
        no_lane = self.index.layout.without_lane
        for low, high, closed in self.of_row(row, ledger.first_sequences[row]):
            if closed:
                is_open &= ~closed | no_lane
            else:
                open_slots |= self.index.slots_in(low, high) & is_open
        return open_slots

    def of_row(self, row: int, first: int) -> Iterable[Part]:
        """Return the parts of a row from a sequence on."""
        return self._parts(first, self.ledger.last_sequences[row])

    def of_unread(self, first: int, last: int) -> Iterable[Part]:
        """Return the parts of unread messages, which lie in one file if some of them have times."""
        timed = self.index.has_times(first, last)
        return self._by_time(first, last) if timed else self._parts(first, last)

    def _by_time(self, first: int, last: int) -> Iterator[Part]:
        unread = Range(first, last, UNREAD, last - first + 1)
        split = split_by_time(unread, self.index, self._now, self._cutoff)
        later = {r.first for r in split.later}
        for r in sorted((*split.due, *split.later), key=_first_of):
            parts = self._closed if r.first in later else self._parts
            yield from parts(r.first, r.last)

    def _parts(self, first: int, last: int) -> Iterable[Part]:
        if self.named is None and last <= self.end:
            return ((first, last, 0),)
        return self._split(first, last)

    def _split(self, first: int, last: int) -> Iterator[Part]:
        """Split messages into those that a lease may take, and those that only close slots."""
        end = min(last, self.end)
        named = ((first, end),) if self.named is None else self.named
        for is_named, low, high in split_at(named, first, end):
            if is_named:
                yield low, high, 0
            else:
                yield from self._closed(low, high)
        if last > end:
            yield from self._closed(end + 1, last)

    def _closed(self, first: int, last: int) -> Iterator[Part]:
        """Yield messages that a lease may not take, if that closes their slots."""
        if self._closing is not None and (slots := self.index.slots_in(first, last)):
            yield first, last, slots


class LaneWalk:
    """Take from slots in groups without order, one priority after the other."""

    alike = False  # whether all messages are of one slot
    reach = -1  # all unread messages up to here that are due were taken
    lanes = 0  # the set of the lanes that an ordered walk has taken from
    fair_time: int | None = None  # how far a fair group has shared leases between lanes

    def __init__(self, candidates: Candidates, selection: Selection, is_open: int) -> None:
        self.candidates, self.selection = candidates, selection
        self._index = candidates.index
        self.all_open = is_open
        self._open = is_open  # the slots that are still open in this visit

    def take(self, slots: int, rows: Sequence[int], *, reads: bool, all_lanes: bool) -> None:
        """Take the open messages of some slots, the available rows before unread messages."""
        taken, visits = self.selection.taken, 0
        begun = len(taken)
        for visit in self._visits(slots & self.all_open, rows, reads=reads, all_lanes=all_lanes):
            self._visit(visit, rows, reads=reads)
            visits += 1
        if visits > 1:  # Pieces of a higher priority stay in front.
            taken[begun:] = sorted(taken[begun:], key=_first_of)

    def _visits(
        self, slots: int, rows: Sequence[int], *, reads: bool, all_lanes: bool
    ) -> Iterable[Visit]:
        """Yield what to visit for the messages of some slots."""
        return ((slots, 0),)

    def _visit(self, visit: Visit, rows: Sequence[int], *, reads: bool) -> None:
        self._open, start = visit
        self._take_waiting(rows, start, to_end=reads)
        if reads and self._open:
            self._take_unread(max(start, self.candidates.unread_from))

    def _take_waiting(self, rows: Sequence[int], start: int, *, to_end: bool) -> None:
        """Take from some rows. Others between them, and `to_end` also after them, close slots."""
        chosen, last_row = set(rows), rows[-1] if rows else -1
        ledger, selection = self.candidates.ledger, self.selection
        firsts, lasts = ledger.first_sequences, ledger.last_sequences
        for row, slots in self._with_slots(rows):
            if row > last_row and not to_end:
                return
            if not slots & self._open or lasts[row] < start:
                if not self._open:
                    return
                continue
            if selection.full:
                return
            if row in chosen:
                self._take_parts(row, self.candidates.of_row(row, max(start, firsts[row])))
            else:
                self._close(slots)

    def _take_unread(self, start: int) -> None:
        for first, last, *_ in self._unread_files(start, self.candidates.end):
            if self.selection.full or not self._open:
                return
            self._take_parts(None, self.candidates.of_unread(first, last))

    def _take_parts(self, row: int | None, parts: Iterable[Part]) -> None:
        for first, last, closed in parts:
            if self.selection.full or not self._open:
                return
            if closed:
                self._close(closed)
            else:
                self._take_part(row, first, last)

    def _with_slots(self, rows: Sequence[int]) -> Iterable[tuple[int, int]]:
        return self.candidates.with_slots(rows)

    def _unread_files(self, first: int, last: int) -> Iterable[Sequence[int]]:
        """Yield the bounds of unread files that may have messages of the priority of a visit."""
        priority = self._index.layout.priorities_in(self._open).bit_length() - 1
        return self._index.files_with(priority, first, last)

    def _take_part(self, row: int | None, first: int, last: int) -> None:
        """Take the messages of open slots. The others close their slots."""
        for piece in self._index.pieces_with_slots(first, last):
            if self.selection.full or not self._open:
                return
            if piece[1].is_sorted:
                self._take_stretches(row, piece)
            else:
                self._take_runs(row, piece)

    def _take_stretches(self, row: int | None, piece: FilePiece) -> None:
        begins, slots, low, high = piece
        present = slots.mask_of(low, high)
        if wanted := self._admitted(present & self._open, piece):
            for start, end in slots.stretches(low, high, wanted):
                if self.selection.full:
                    return
                self.selection.take(row, begins, (begins + start, begins + end))
        self._close(present & ~wanted)

    def _take_runs(self, row: int | None, piece: FilePiece) -> None:
        """Take from a file whose slots are not sorted, run by run."""
        begins, slots, low, high = piece
        for number, start, end in slots.between(low, high):
            if self.selection.full or not self._open:
                return
            slot = 1 << number
            if self._admitted(slot & self._open, piece):
                self.selection.take(row, begins, (begins + start, begins + end))
            else:
                self._close(slot)

    def _admitted(self, wanted: int, piece: FilePiece) -> int:
        """Return those of some open slots of a file that the lease may take from now."""
        return wanted

    def _close(self, slots: int) -> None:
        """Close slots because the lease leaves messages of them. Without order, none is closed."""


class OneLaneWalk(LaneWalk):
    """Take messages that are all alike, so that no slot is looked at."""

    alike = True

    def __init__(self, candidates: Candidates, selection: Selection) -> None:
        super().__init__(candidates, selection, 1)

    def _with_slots(self, rows: Sequence[int]) -> Iterable[tuple[int, int]]:
        return zip(rows, repeat(1))

    def _unread_files(self, first: int, last: int) -> Iterator[Sequence[int]]:
        timed = self._index.has_times(first, last)
        for file in self._index.files_with(0, first, last) if timed else ((first, last),):
            yield file
            if not self.selection.full and self.candidates.named is None:
                self.reach = file[1]

    def _take_part(self, row: int | None, first: int, last: int) -> None:
        self.selection.take_all(row, first, last)


class OrderedWalk(LaneWalk):
    """Take from slots in a group that keeps the order of keys.

    The lanes are cut into `blocks` of neighbouring lanes. A lease takes from one block, and leaves
    the others to other leases.
    """

    def __init__(
        self, candidates: Candidates, selection: Selection, is_open: int, *, blocks: int
    ) -> None:
        super().__init__(candidates, selection, is_open)
        self._no_lane = self._index.layout.without_lane
        self._blocks = blocks
        self._block = 0  # the lanes that the lease may take from
        self._own = self._no_lane  # the slots of the lanes that were taken from
        self._hot_slots = _HotSlots()

    def leaves(self, slots: int, rows: Sequence[int], *, reads: bool) -> bool:
        """Return whether messages are due in lanes that the last :meth:`take` left to others."""
        rest = copy(self)
        rest.selection = self.selection.emptied(Budget(self._index, 1))
        rest.take(slots & ~self._own, rows, reads=reads, all_lanes=True)
        return bool(rest.selection.taken)

    def _visits(
        self, slots: int, rows: Sequence[int], *, reads: bool, all_lanes: bool
    ) -> Iterator[Visit]:
        blocks, messages = self._blocks, self.selection.budget.messages
        if all_lanes:
            self._blocks, self._block = 1, 0
            yield slots, 0
            self._blocks = blocks
            return
        share = 2 * messages * blocks // max(1, self._index.layout.lanes)
        self._hot_slots.quota = max(1, min(share, messages // 2))
        yield slots, 0
        for visit in self._hot_slots.deferred():
            if self.selection.full:
                return
            yield visit

    def _close(self, slots: int) -> None:
        self._open &= ~slots | self._no_lane

    def _admitted(self, wanted: int, piece: FilePiece) -> int:
        slots = piece[1]
        if wanted & ~self._own:
            wanted = self._with_new_lanes(wanted, slots)
        if slots.is_sorted and wanted & slots.skewed:
            wanted &= ~self._hot_slots.over_quota(wanted & slots.skewed, piece)
        return wanted

    def _with_new_lanes(self, wanted: int, slots: FileSlots) -> int:
        """Return the slots of neighbouring lanes that the lease may take from, and note them."""
        layout = self._index.layout
        new, most = layout.lanes_in(wanted) & ~self.lanes, -(-layout.lanes // self._blocks)
        if not self._block:
            sparse = layout.lanes_in(slots.mask).bit_count() <= most
            self._block = layout.every_lane if sparse else layout.block_of(new, self._blocks)
        spare = most - self.lanes.bit_count()
        self.lanes |= lowest_of(new & self._block, max(0, spare))
        self._own = layout.of_lanes(self.lanes) | self._no_lane
        rest = self._block if self.lanes.bit_count() < most else self.lanes
        self._open &= layout.of_lanes(rest) | self._own
        return wanted & self._own


class _HotSlots:
    """The slots with far more rows of a file than the mean, such as that of a hot key.

    A hot key would fill the lease, and the other keys of its block would wait for it. So a lease
    takes no more than a `quota` of each such slot before it has visited all others.
    """

    def __init__(self) -> None:
        self.quota: int | None = None  # None for no limit
        self._rows: dict[int, int] = {}  # that were visited, by slot
        self._deferred: dict[int, int] = {}  # where a slot goes on, by slot

    def over_quota(self, hot: int, piece: FilePiece) -> int:
        """Count the rows of hot slots. Return the slots of which the lease has enough for now."""
        begins, slots, low, high = piece
        if self.quota is None:
            return 0
        enough = 0
        for slot, start, end in slots.between(low, high):
            if hot >> slot & 1:
                before = self._rows.get(slot, 0)
                self._rows[slot] = before + end - start + 1
                if before >= self.quota:
                    enough |= 1 << slot
                    self._deferred[slot] = begins + start
        return enough

    def deferred(self) -> list[Visit]:
        """Return visits of the slots that had to wait, in order. They have no quota."""
        visits = [(1 << slot, start) for slot, start in self._deferred.items()]
        self.quota = None
        self._deferred.clear()
        return sorted(visits, key=itemgetter(1))
