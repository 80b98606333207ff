"""Count a group's messages by priority and lane, and find why a lane is held back.

One walk over the unsettled messages gives all of it. It takes about a microsecond for each run of
messages in one slot, which is a priority and a lane. So it ends after a number of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Final

from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, TRANSFERRING, Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.slots import MAX_PRIORITY
from spark_mq.ledger.states import DELAYED, READY, SETTLED
from spark_mq.ledger.walk import Piece, due_at, walk

MAX_RUNS: Final = 1_000_000
"""Runs of messages in one slot that a backlog counts. More would take seconds."""
STATES: Final = (READY, DELAYED, LEASED, BLOCKED, DEAD, TRANSFERRING)
"""The states that are counted. The last two hold nothing back."""
_OUT_OF_ORDER: Final = (DEAD, TRANSFERRING)


class Holder(StrEnum):
    """The reason why a lane is held back."""

    #: Nothing. The lane's first message may be leased.
    NOTHING = ""
    #: A lease holds a message of the lane.
    LEASE = "lease"
    #: A message has failed and waits for its retry.
    RETRY = "retry"
    #: A message has a later ``deliver_at``.
    DELAY = "delay"
    #: A message was released with a delay, or its file is out of reach.
    POSTPONED = "postponed"
    #: A message is past a limit, and the group blocks.
    BLOCKED = "blocked"
    #: So many messages of the lane are leased that its limit is reached.
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class PriorityStats:
    """The unsettled messages of one priority."""

    priority: int
    counts: dict[str, int]  # messages by state, see STATES
    firsts: tuple[int, ...]
    """Of each lane, the first that is neither dead, nor in transfer, nor scheduled for later."""


@dataclass(frozen=True, slots=True)
class LaneStats:
    """The unsettled messages of one lane, and why it is held back."""

    lane: int | None  # None for messages without a key
    counts: dict[str, int]  # messages by state, see STATES
    head: int  # the first that is not dead or in transfer, or -1
    held_back: int = 0
    """Due messages that wait for an earlier message of their key, for a lease or for a limit."""
    holder: Holder = Holder.NOTHING
    sequence: int | None = None  # the message that holds the lane back
    until: int | None = None  # microseconds; None if the owner must act
    held_by: Range | None = None  # the range of that message; None if it is unread

    @property
    def messages(self) -> int:
        """Return the number of messages that are not settled, dead or in transfer."""
        return sum(n for state, n in self.counts.items() if state not in _OUT_OF_ORDER)


class LaneBacklog:
    """The unsettled messages of a group by slot, and the first piece of each slot."""

    def __init__(
        self, ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int, max_runs: int
    ) -> None:
        self.ledger, self.index, self._now = ledger, index, now
        self.ordered, self._limit = is_ordered(index, rules), rules.max_in_flight_per_key
        self.layout = index.layout
        slots = self.layout.width * (MAX_PRIORITY + 1)
        self.counts = {state: [0] * slots for state in STATES}  # by state, then by slot
        self._heads: dict[int, Piece] = {}  # from the slot's first message on
        self._firsts: dict[int, int] = {}  # the slot's first message that is not for later
        self._leased: dict[int, Piece] = {}  # by lane
        self._runs_left = max_runs
        self.counted_to: int | None = None  # the last message counted; None if all were

    def add(self, piece: Piece) -> bool:
        """Count a piece, which comes after all before. Return whether there may be more."""
        tally, heads, index = self.counts[piece.state], self._heads, self.index
        leased, holds = piece.state == LEASED, piece.state not in _OUT_OF_ORDER
        firsts = self._firsts if holds and not self._is_later(piece) else None
        if not index.files.with_slots:
            slot = self.layout.number(0, None)
            tally[slot] += index.count(piece.first, piece.last)
            if holds:
                self._note(piece, slot)
            if firsts is not None:
                firsts.setdefault(slot, piece.first)
            return True
        for begins, slots, low, high in index.pieces_with_slots(piece.first, piece.last):
            if self._runs_left < 1:
                return False
            for slot, start, end in slots.between(low, high):
                tally[slot] += end - start + 1
                self._runs_left -= 1
                if holds and (leased or slot not in heads):
                    self._note(piece._replace(first=begins + start), slot)
                if firsts is not None and slot not in firsts:
                    firsts[slot] = begins + start
            self.counted_to = begins + high
        return True

    def _is_later(self, piece: Piece) -> bool:
        return piece.state == DELAYED and due_at(self.index, piece.first) > self._now

    def _note(self, piece: Piece, slot: int) -> None:
        """Note a piece if it is the first of its slot, or the first leased one of its lane."""
        self._heads.setdefault(slot, piece)
        if piece.state == LEASED:
            self._leased.setdefault(slot % self.layout.width, piece)

    def priorities(self) -> list[PriorityStats]:
        """Return the priorities that have messages, the highest first."""
        stats, width = list[PriorityStats](), self.layout.width
        for priority in range(MAX_PRIORITY, -1, -1):
            start = self.layout.number(priority, 0 if self.layout.lanes else None)
            counts = {state: sum(n[start : start + width]) for state, n in self.counts.items()}
            if any(counts.values()):
                own = (n for n in range(start, start + width) if n in self._firsts)
                firsts = tuple(self._firsts[n] for n in own)
                stats.append(PriorityStats(priority, counts, firsts))
        return stats

    def lanes(self) -> list[LaneStats]:
        """Return the lanes that have messages, in order. The last one is that without a key."""
        width = self.layout.width
        tallies = list(self.counts.items())
        lanes = (self._lane(at, {state: sum(n[at::width]) for state, n in tallies})
                 for at in range(width))  # fmt: skip
        return [lane for lane in lanes if any(lane.counts.values())]

    def _lane(self, at: int, counts: dict[str, int]) -> LaneStats:
        lane = self.layout.lane_of(at)
        numbers = range(at, self.layout.width * (MAX_PRIORITY + 1), self.layout.width)
        heads = [(n, self._heads[n]) for n in numbers if n in self._heads]
        head = min((piece.first for _, piece in heads), default=-1)
        if lane is None or not self.ordered:
            full = lane is not None and self._limit is not None and counts[LEASED] >= self._limit
            later = counts[READY] if full else 0
            return LaneStats(lane, counts, head, later, Holder.LIMIT if later else Holder.NOTHING)
        if at in self._leased:
            return self._held(lane, counts, head, counts[READY], self._leased[at])
        closed = [(n, piece) for n, piece in heads if piece.state != READY]
        if not closed:
            return LaneStats(lane, counts, head)
        later = sum(self.counts[READY][n] for n, _ in closed)
        first = min((piece for _, piece in closed), key=attrgetter("first"))
        return self._held(lane, counts, head, later, first)

    def _held(
        self, lane: int, counts: dict[str, int], head: int, later: int, by: Piece
    ) -> LaneStats:
        r = None if by.row is None else self._ranges[by.row]
        until = by.due_at
        if r is not None and by.state == LEASED:
            until = r.expires_at
        elif r is not None and by.state == DELAYED and until is None:
            until = r.available_at
        return LaneStats(lane, counts, head, later, self._holder(by, r), by.first, until, r)

    def _holder(self, by: Piece, r: Range | None) -> Holder:
        if by.state == LEASED:
            return Holder.LEASE
        if by.state == BLOCKED:
            return Holder.BLOCKED
        if r is None:
            return Holder.DELAY
        if r.failure_count:
            return Holder.RETRY
        timed = not r.delivery_count and self.index.has_times(by.first, by.first)
        return Holder.DELAY if timed else Holder.POSTPONED

    @cached_property
    def _ranges(self) -> dict[int, Range]:
        """Return the ranges of all heads, read in one pass."""
        pieces = (*self._heads.values(), *self._leased.values())
        rows = sorted({piece.row for piece in pieces if piece.row is not None})
        return dict(zip(rows, self.ledger.ranges_at(rows), strict=True))


def count_lanes(
    ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int, max_runs: int = MAX_RUNS
) -> LaneBacklog:
    """Count the unsettled messages of a group by priority and lane, up to `max_runs` runs."""
    backlog = LaneBacklog(ledger, index, rules, now, max_runs)
    for piece in walk(ledger, index, now, ledger.head.start_sequence + 1):
        if piece.state != SETTLED and not backlog.add(piece):
            return backlog
    backlog.counted_to = None
    return backlog
