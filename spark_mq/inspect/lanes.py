"""Show the priorities and lanes of a group, and what holds a lane back.

One walk over the unsettled messages gives all of it. It takes about a microsecond for each
run of messages in one slot, which is a priority and a lane. So it ends after a number of runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from operator import attrgetter
from typing import Final

from spark_mq.ledger.budget import MAX_IN_FLIGHT_PER_KEY
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import BLOCKED, DEAD, LEASED, SETTLED, TRANSFERRING, Ledger, Range
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.slots import MAX_PRIORITY
from spark_mq.ledger.states import DELAYED, READY
from spark_mq.ledger.stats import age_at
from spark_mq.ledger.transitions import expire_leases
from spark_mq.ledger.walk import Piece, due_at, walk
from spark_mq.operations.context import GroupLedger
from spark_mq.util.clock import optional_datetime
from spark_mq.util.records import Record
from spark_mq.util.show import show_count, show_time
from spark_mq.util.validation import validate_choice, validate_count

_ORDERS: Final = ("messages", "age")
MAX_RUNS: Final = 1_000_000
"""Runs of messages in one slot that a backlog counts. More would take seconds."""
STATES: Final = (READY, DELAYED, LEASED, BLOCKED, DEAD, TRANSFERRING)
"""The states that are counted. The last two hold nothing back."""
_OUT_OF_ORDER: Final = (DEAD, TRANSFERRING)


@dataclass(frozen=True, slots=True)
class PriorityInfo(Record):
    """The unsettled messages of one priority in a group.

    Attributes
    ----------
    priority
        9 to 0.
    ready, delayed, leased, blocked, dead, transferring
        Messages by state, as in :class:`~spark_mq.GroupStats`.
    oldest_age
        Time since the first of them that is not dead became due, by its publish or its later
        ``deliver_at``. None without one, and if all are scheduled for later.
    """

    priority: int
    ready: int
    delayed: int
    leased: int
    blocked: int
    dead: int
    transferring: int
    oldest_age: timedelta | None


@dataclass(frozen=True, slots=True)
class LaneInfo(Record):
    """The unsettled messages of one lane in a group.

    Attributes
    ----------
    lane
        Its number. None for messages without a key, which nothing holds back.
    messages, share
        Messages that are neither settled nor dead, and their part of those of all lanes (0 to 1).
    ready, delayed, leased, blocked, dead
        Messages by state, as in :class:`~spark_mq.GroupStats`.
    head, head_age
        The first message that is not dead, and the time since it became due, by its publish or its
        later ``deliver_at``. None without one, and without an age while it is scheduled for later.
    held_back
        Due messages that wait for an earlier one of their lane, or for its limit.
    held_by
        "lease", "retry" (a message has failed), "delay" (``deliver_at``), "postponed" (released
        with a delay, or its file is out of reach), "blocked", or "limit"
        (``max_in_flight_per_key``). Empty if nothing holds the lane.
    because
        The same for people.
    sequence
        The message that holds the lane.
    until
        When the hold ends (aware, UTC). None if the owner must act.
    lease_id, worker_id
        The lease that holds the lane, and its holder.
    error
        The text of the last failure of that message.
    """

    lane: int | None
    messages: int
    share: float
    ready: int
    delayed: int
    leased: int
    blocked: int
    dead: int
    head: int | None
    head_age: timedelta | None
    held_back: int = 0
    held_by: str = ""
    because: str = ""
    sequence: int | None = None
    until: datetime | None = None
    lease_id: str | None = None
    worker_id: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LaneSummary(Record):
    """The priorities of a group, and its lanes in numbers.

    Attributes
    ----------
    order
        The group's setting: "none" or "key".
    priorities
        The priorities that have messages, the highest first.
    lanes
        Lanes that have messages. Messages without a key have no lane.
    lanes_leased
        Lanes of which a lease holds messages. 0 in a group without order.
    lanes_held_back, held_back
        Lanes whose due messages wait for a retry, a delay or the owner, and these messages.
    oldest_head_age
        The greatest age of the first message of a lane, as ``head_age``. None without one.
    complete
        False if the backlog is so large that only its start was counted.
    """

    order: str
    priorities: tuple[PriorityInfo, ...]
    lanes: int
    lanes_leased: int
    lanes_held_back: int
    held_back: int
    oldest_head_age: timedelta | None
    complete: bool


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
        self.ledger, self.index, self.rules, self.now = ledger, index, rules, now
        self._ordered, self.layout = is_ordered(index, rules), index.layout
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
        return piece.state == DELAYED and due_at(self.index, piece.first) > self.now

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
        if lane is None or not self._ordered:
            limit = self.rules.max_in_flight_per_key
            full = lane is not None and limit is not None and counts[LEASED] >= limit
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


def _backlog_of(group: GroupLedger) -> LaneBacklog:
    snapshot, now = group.snapshot(), group.now()
    settings = group.settings_in(snapshot)
    ledger = expire_leases(group.ledger_in(snapshot), now, settings)
    return count_lanes(ledger, group.index_for(ledger), settings, now)


def list_priorities(group: GroupLedger) -> list[PriorityInfo]:
    return _priorities(_backlog_of(group))


def _priorities(backlog: LaneBacklog) -> list[PriorityInfo]:
    return [
        PriorityInfo(own.priority, **own.counts, oldest_age=_oldest(backlog, own.firsts))
        for own in backlog.priorities()
    ]


def _oldest(backlog: LaneBacklog, sequences: Iterable[int]) -> timedelta | None:
    """Return the greatest age, without messages that are scheduled for later."""
    # Not by the least sequence, because clocks of publishers differ.
    times = (due_at(backlog.index, sequence) for sequence in sequences if sequence >= 0)
    return age_at(min((at for at in times if at <= backlog.now), default=None), backlog.now)


def list_lanes(group: GroupLedger, top: int | None, by: str) -> list[LaneInfo]:
    order = validate_choice("by", by, _ORDERS)
    most = None if top is None else validate_count("top", top)
    backlog = _backlog_of(group)
    if not backlog.index.layout.lanes:
        return []
    lanes = backlog.lanes()
    total = max(1, sum(lane.messages for lane in lanes))

    def age(lane: LaneStats) -> tuple[bool, int, int]:
        return lane.head < 0, lane.head, -lane.messages

    def size(lane: LaneStats) -> tuple[int, bool, int]:
        return -lane.messages, lane.head < 0, lane.head

    hottest = sorted(lanes, key=age if order == "age" else size)[:most]
    return [_lane(backlog, lane, total) for lane in hottest]


def _lane(backlog: LaneBacklog, lane: LaneStats, total: int) -> LaneInfo:
    counts = {name: n for name, n in lane.counts.items() if name != TRANSFERRING}
    until = optional_datetime(lane.until)
    lease = lane.held_by if lane.holder == Holder.LEASE else None
    return LaneInfo(
        lane=lane.lane,
        messages=lane.messages,
        share=lane.messages / total,
        **counts,
        head=lane.head if lane.head >= 0 else None,
        head_age=_oldest(backlog, [lane.head]),
        held_back=lane.held_back,
        held_by=str(lane.holder),
        because=_because(lane, until, backlog.rules.max_in_flight_per_key),
        sequence=lane.sequence,
        until=until,
        lease_id=None if lease is None else lease.lease_id,
        worker_id=None if lease is None else lease.worker,
        error=None if lane.held_by is None else lane.held_by.error,
    )


def _because(lane: LaneStats, until: datetime | None, limit: int | None) -> str:
    message, at, r = f"message {lane.sequence}", show_time(until), lane.held_by
    waits = {
        Holder.RETRY: "failed, its retry is at",
        Holder.DELAY: "is delayed until",
        Holder.POSTPONED: "was released, or its file is out of reach, until",
    }
    if lane.holder == Holder.LIMIT:
        leased = show_count(lane.counts[LEASED], "message")
        verb = "is" if lane.counts[LEASED] == 1 else "are"
        return f"{leased} {verb} leased: {MAX_IN_FLIGHT_PER_KEY}={limit}"
    if lane.holder == Holder.LEASE and r is not None:
        return f"lease {r.lease_id} of {r.worker} until {at}"
    if lane.holder in waits:
        return f"{message} {waits[lane.holder]} {at}"
    if lane.holder == Holder.BLOCKED:
        return f"{message} is blocked: {r.reason if r is not None else ''}"
    return ""


def summarize_lanes(group: GroupLedger) -> LaneSummary:
    backlog = _backlog_of(group)
    lanes = [lane for lane in backlog.lanes() if lane.lane is not None]
    leased = [lane for lane in lanes if lane.holder == Holder.LEASE]
    by_itself = (Holder.LEASE, Holder.LIMIT)  # ends with the next settles
    held = [lane for lane in lanes if lane.held_back and lane.holder not in by_itself]
    return LaneSummary(
        backlog.rules.order,
        tuple(_priorities(backlog)),
        len(lanes),
        len(leased),
        len(held),
        sum(lane.held_back for lane in held),
        _oldest(backlog, (lane.head for lane in lanes)),
        backlog.counted_to is None,
    )
