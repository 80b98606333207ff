"""Take the candidates of a lease whose slots are open, in order or by shares of lanes.

Candidates are the ranges that wait, then the unread messages. A slot is open if no earlier message
of it must be delivered first, and if no other lease holds its lane.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property, reduce
from heapq import merge
from itertools import repeat
from operator import itemgetter, or_
from typing import Final

from spark_mq.ledger.budget import MAX_IN_FLIGHT_PER_KEY, Budget
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LEASED, Ledger
from spark_mq.ledger.selection import MAX_PIECES, Candidates, Part, Selection
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.slots import FileSlots, lowest_of, numbers_in
from spark_mq.util.show import show_some

FilePiece = tuple[int, FileSlots, int, int]
"""The first sequence of a file, its slots, and the first and last row of a part of it."""
Visit = tuple[int, int]
"""The slots that a walk takes from, and the first sequence that it looks at."""

BURSTS: Final = 16
"""Bursts in one lease. There aren't more, because each becomes some ranges of the ledger."""
MAX_ROUNDS: Final = 4
"""Rounds in which lanes with few messages leave the rest to others. Then the oldest go first."""
_ALL: Final = 1 << 62
_SHOWN: Final = 3  # lanes that a reason names
_UNIT: Final = 1 << 20  # of virtual time: the distance of single messages of weight 1


class LaneWalk:
    """Take from slots in groups without order, one priority after the other."""

    alike = False  # whether all messages are of one slot
    reach = -1  # all unread messages up to here that are due were taken
    fair_time: int | None = None  # how far a fair group has shared leases between lanes

    def __init__(self, candidates: Candidates, selection: Selection, is_open: int) -> None:
        self.candidates, self.selection = candidates, selection
        self._index = candidates.index
        self.all_open = is_open
        self._open = is_open  # the slots that are still open in this visit

    def take(
        self, slots: int, rows: Sequence[int], *, reads: bool, all_lanes: bool = False
    ) -> None:
        """Take the open messages of some slots, the available rows before unread messages."""
        for visit in self._visits(slots & self.all_open, rows, reads=reads, all_lanes=all_lanes):
            self._visit(visit, rows, reads=reads)

    def _visits(
        self, slots: int, rows: Sequence[int], *, reads: bool, all_lanes: bool
    ) -> Iterable[Visit]:
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
        """Yield the bounds of unread files that may have messages for a visit."""
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
        if wanted := self._admitted(slots.mask_of(low, high) & self._open, piece):
            for start, end in slots.stretches(low, high, wanted):
                if self.selection.full:
                    return
                self.selection.take(row, begins, (begins + start, begins + end))

    def _take_runs(self, row: int | None, piece: FilePiece) -> None:
        """Take from a file whose slots are not sorted, run by run."""
        begins, slots, low, high = piece
        for number, start, end in slots.between(low, high):
            if self.selection.full or not self._open:
                return
            if self._admitted(1 << number & self._open, piece):
                self.selection.take(row, begins, (begins + start, begins + end))

    def _admitted(self, wanted: int, piece: FilePiece) -> int:
        """Return the open slots of a file that the lease may take from now. Close the others."""
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
        self._lanes = 0  # those of them that it was let into, even if its budget was full then
        self._own = self._no_lane  # the slots of these lanes
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
        share = 2 * messages * blocks // self._index.layout.lanes
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
        if hot := wanted & slots.skewed:
            enough = self._hot_slots.over_quota(hot, piece)
            self._open &= ~enough
            wanted &= ~enough
        return wanted

    def _with_new_lanes(self, wanted: int, slots: FileSlots) -> int:
        """Return the slots of neighbouring lanes that the lease may take from, and note them."""
        layout = self._index.layout
        new, most = layout.lanes_in(wanted) & ~self._lanes, -(-layout.lanes // self._blocks)
        if not self._block:
            sparse = layout.lanes_in(slots.mask).bit_count() <= most
            self._block = layout.every_lane if sparse else layout.block_of(new, self._blocks)
        spare = most - self._lanes.bit_count()
        self._lanes |= lowest_of(new & self._block, max(0, spare))
        self._own = layout.of_lanes(self._lanes) | self._no_lane
        rest = self._block if self._lanes.bit_count() < most else self._lanes
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


class LaneShares:
    """What one lease may take of each lane: by weight in a fair group, and within a key's limit.

    A lane is a number, which is that of the queue's lanes for messages without a key. These have no
    limit, and share as one lane of weight 1.

    The shares follow a virtual time, as in weighted fair queueing. Each lane gets a burst of
    messages at equal distances of it, which are shorter for a greater weight. A lease gets the next
    bursts of the lanes with due messages, and moves the time on. So the ledger keeps one number for
    all lanes, and a lane without messages saves up nothing.
    """

    def __init__(self, ledger: Ledger, index: MessageIndex, rules: GroupSettings) -> None:
        self._layout, self._limit = index.layout, rules.max_in_flight_per_key
        self._width = index.layout.width
        self.fair_time = ledger.head.fair_time if rules.order == "fair" else None
        self._weights: dict[int | None, float] = {}
        for key, weight in (rules.weights or {}).items():
            lane = index.layout.lane(key)
            self._weights[lane] = max(weight, self._weights.get(lane, 0))
        self._held: dict[int, int] = {}  # messages under lease by lane
        if self._limit is not None:
            for r in ledger.ranges_at(ledger.find((LEASED,))):
                for slot, first, last in index.slot_runs(r.first, r.last):
                    self._hold(slot, last - first + 1)
        self._divided = False
        self._portions: dict[int, int] = {}  # what is left of a divided lease, by slot

    def _hold(self, slot: int, messages: int) -> None:
        lane = slot % self._width
        self._held[lane] = self._held.get(lane, 0) + messages

    @property
    def full_lanes(self) -> int:
        limit = self._limit
        if limit is None:
            return 0
        lanes = (lane for lane, held in self._held.items() if held >= limit)
        return sum(1 << lane for lane in lanes if lane != self._layout.lanes)

    def why_full(self) -> str:
        """Return the reason why the group leases nothing if its due lanes are at their limit."""
        lanes = [f"lane {lane}" for lane in numbers_in(self.full_lanes)]
        shown = show_some(lanes, _SHOWN)
        return f"{MAX_IN_FLIGHT_PER_KEY}: {self._limit} leased of each key in {shown}"

    def left(self, slot: int) -> int:
        """Return how many more messages of a slot the lease may have."""
        most, lane = self._portions[slot] if self._divided else _ALL, slot % self._width
        if self._limit is None or lane == self._layout.lanes:
            return most
        return min(most, self._limit - self._held.get(lane, 0))

    def take(self, slot: int, messages: int) -> None:
        if self._divided:
            self._portions[slot] -= messages
        if self._limit is not None:
            self._hold(slot, messages)

    def rounds(self, due: int, budget: Budget, expected: int, *, fair: bool) -> Iterator[int]:
        """Yield sets of slots from which the caller takes what is `left` of each, meanwhile.

        `due` are the slots of one priority that have messages. The lease is `expected` to have so
        many messages. A limit of bytes may end it at any message. So each turn is a round then, and
        a slot that gets nothing keeps its turn.
        """
        due &= ~self._layout.of_lanes(self.full_lanes)
        self._divided = fair and self.fair_time is not None
        burst, in_turn = max(1, expected // BURSTS), budget.bytes is not None
        rounds = (MAX_ROUNDS - 1) * (BURSTS if in_turn else 1) if self._divided else 0
        for _ in range(rounds):
            if not due or budget.messages < 1:
                return
            before, messages = self.fair_time, min(budget.messages, burst if in_turn else expected)
            self._portions = self._divide(numbers_in(due), messages, burst)
            given = {slot: self.left(slot) for slot in self._portions}
            yield sum(1 << slot for slot in given)
            rest = {slot: self.left(slot) for slot in given}
            if budget.out_of_bytes and rest == given:
                self.fair_time = before
            # The others have no more messages, or are at their limit.
            due &= ~sum(1 << slot for slot, some in rest.items() if some)
            due &= ~self._layout.of_lanes(self.full_lanes)
        self._divided = False
        yield due

    def _divide(self, slots: list[int], messages: int, burst: int) -> dict[int, int]:
        """Return the slots that get messages, and how many. Move the virtual time on."""
        shares = dict[int, int]()
        by_weight: dict[float, list[int]] = {1.0: slots}
        if self._weights:
            by_weight.clear()
            for slot in slots:
                weight = self._weights.get(slot % self._width, 1.0)
                by_weight.setdefault(weight, []).append(slot)
        turns = (self._turns(alike, weight / burst) for weight, alike in by_weight.items())
        for at, slot in merge(*turns):
            some = min(burst, messages)
            shares[slot] = shares.get(slot, 0) + some
            self.fair_time, messages = at, messages - some
            if not messages:
                break
        return shares

    def _turns(self, slots: list[int], rate: float) -> Iterator[tuple[int, int]]:
        """Yield the instants of virtual time at which slots get a burst, from now on, for ever."""
        # All lanes of a rate have their turns in the order of their numbers. The number of the lane
        # makes each instant another one.
        width, period = self._width, int(_UNIT / rate)
        start, time = self.fair_time or 0, period * self._width
        phases = [(period * (lane := slot % width) // width) * width + lane for slot in slots]
        cycle, at = divmod(start, time)
        first = bisect_right(phases, at)
        while True:
            for place in range(first, len(slots)):
                yield cycle * time + phases[place], slots[place]
            first, cycle = 0, cycle + 1


class SharedWalk(LaneWalk):
    """Take the share of each lane. Lanes with fewer messages leave the rest to others."""

    def __init__(
        self, candidates: Candidates, selection: Selection, is_open: int, shares: LaneShares
    ) -> None:
        super().__init__(candidates, selection, is_open)
        self._shares = shares
        self._sharing = 0  # the slots of a fair lease, which share its pieces
        self._pieces: dict[int, int] = {}  # by slot
        self._goes_on: dict[int, int] = {}  # where a slot goes on, by slot

    @property
    def fair_time(self) -> int | None:  # type: ignore[override]
        return self._shares.fair_time

    def _visits(
        self, slots: int, rows: Sequence[int], *, reads: bool, all_lanes: bool
    ) -> Iterator[Visit]:
        candidates, budget = self.candidates, self.selection.budget
        unread_from, end = candidates.unread_from, candidates.end
        start = unread_from if reads else end
        if rows:
            start = candidates.ledger.first_sequences[rows[0]]
        expected = budget.expected(start, end)
        due = candidates.slots_in(rows)
        if reads:
            due = reduce(or_, (present for *_, present in self._unread_blocks), due)
        due &= slots
        # Otherwise the pieces of one lane could use up those of a fair lease.
        if self.fair_time is not None:
            self._sharing = due.bit_count()
        self._goes_on.clear()
        self._pieces.clear()
        for wanted in self._shares.rounds(due, budget, expected, fair=not all_lanes):
            yield wanted, 0

    @cached_property
    def _unread_blocks(self) -> list[tuple[int, int, int]]:
        """Return the bounds and slots of neighbouring unread files, which each round visits."""
        return list(self._index.blocks(self.candidates.unread_from, self.candidates.end))

    def _unread_files(self, first: int, last: int) -> Iterator[Sequence[int]]:
        return (block for block in self._unread_blocks if block[2] & self._open)

    def _take_part(self, row: int | None, first: int, last: int) -> None:
        for start, end, present in self._index.blocks(first, last):
            if not present & self._open:
                continue
            for begins, slots, low, high in self._index.pieces_with_slots(start, end):
                for slot, run_low, run_high in slots.runs_of(self._open, low, high):
                    if self.selection.full or not self._open:
                        return
                    self._take_share(row, begins, slot, (begins + run_low, begins + run_high))

    def _take_share(self, row: int | None, begins: int, slot: int, run: Interval) -> None:
        """Take from a run of a file what is left of the share of its slot."""
        first, shares = max(run[0], self._goes_on.get(slot, 0)), self._shares
        if first > run[1]:
            return
        before = len(self.selection.taken)
        left = shares.left(slot)
        taken, last_seen = self.selection.take(row, begins, (first, run[1]), left)
        pieces = self._pieces.get(slot, 0) + len(self.selection.taken) - before
        self._pieces[slot], self._goes_on[slot] = pieces, last_seen + 1
        shares.take(slot, taken)
        if not shares.left(slot) or pieces * self._sharing >= MAX_PIECES:
            self._open &= ~(1 << slot)
