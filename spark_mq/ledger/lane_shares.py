"""Divide leases between lanes: by weight in a fair group, and within the limit of each key.

The shares follow a virtual time, as in weighted fair queueing. Each lane gets a burst of messages
at equal distances of it, which are shorter for a greater weight. A lease gets the next bursts of
the lanes with due messages, and moves the time on. So the ledger keeps one number for all lanes,
and a lane without messages saves up nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from heapq import merge
from operator import or_
from typing import Final

from spark_mq.ledger.budget import MAX_IN_FLIGHT_PER_KEY, Budget
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.lane_walk import Candidates, LaneWalk, Visit
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LEASED, Ledger
from spark_mq.ledger.selection import MAX_PIECES, Selection
from spark_mq.ledger.settings import GroupSettings
from spark_mq.util.show import show_some

BURSTS: Final = 16
"""Bursts in one lease. There aren't more, because each becomes some ranges of the ledger."""
MAX_ROUNDS: Final = 4
"""Rounds in which lanes with few messages leave the rest to others. Then the oldest go first."""
_ALL: Final = 1 << 62
_SHOWN: Final = 3  # lanes that a reason names
_UNIT: Final = 1 << 20  # of virtual time: the distance of single messages of weight 1


def divides_lanes(index: MessageIndex, rules: GroupSettings) -> bool:
    wanted = rules.order == "fair" or rules.max_in_flight_per_key is not None
    return wanted and index.layout.lanes > 0


class LaneShares:
    """What one lease may take of each lane.

    A lane is a number, which is that of the queue's lanes for messages without a key. These have no
    limit, and share as one lane of weight 1.
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
        lanes = [f"lane {lane}" for lane in _numbers(self.full_lanes)]
        shown = show_some(lanes, _SHOWN)
        return f"{MAX_IN_FLIGHT_PER_KEY}: {self._limit} leased of each key in {shown}"

    def left(self, slot: int) -> int:
        """Return how many more messages of a slot the lease may have."""
        most, lane = self._portions.get(slot, 0) if self._divided else _ALL, slot % self._width
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
            self._portions = self._divide(_numbers(due), messages, burst)
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
        width, period = self._width, max(1, int(_UNIT / rate))
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
        self._max_pieces = MAX_PIECES  # of a slot
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
        lanes = 1 if self.fair_time is None else max(1, due.bit_count())
        self._max_pieces = max(1, MAX_PIECES // lanes)
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
        if not shares.left(slot) or pieces >= self._max_pieces:
            self._open &= ~(1 << slot)


def _numbers(slots: int) -> list[int]:
    """Return the numbers of a set of slots, in order."""
    if not slots:
        return []
    lowest = (slots & -slots).bit_length() - 1
    bits = reversed(f"{slots >> lowest:b}")
    return [number for number, bit in enumerate(bits, lowest) if bit == "1"]
