"""Count a group's messages by priority and lane, and find why a lane is held back.

One pass over the unsettled ranges gives all of it. It takes about a microsecond for each run of
messages in one band, so it ends after a number of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from spark_mq.ledger.bands import MAX_PRIORITY
from spark_mq.ledger.key_order import is_ordered
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, DEAD, LEASED, TRANSFERRING, Ledger, Range
from spark_mq.ledger.schedule import split_by_time, split_due, unread_range
from spark_mq.ledger.settings import GroupSettings

__all__ = [
    "KINDS",
    "MAX_RUNS",
    "BandCensus",
    "Holder",
    "LaneStats",
    "PriorityStats",
    "count_bands",
]

MAX_RUNS: Final = 1_000_000
"""Runs of messages in one band that a census counts. More would take seconds."""
READY: Final = "ready"
DELAYED: Final = "delayed"
KINDS: Final = (READY, DELAYED, LEASED, BLOCKED, DEAD, TRANSFERRING)
"""The kinds of messages, for people. The last two hold nothing back."""
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


class _Head(NamedTuple):
    """The first message of a band that is not settled, dead or in transfer."""

    sequence: int
    kind: str
    row: int | None  # of its range; None if it is unread
    until: int | None


@dataclass(frozen=True, slots=True)
class PriorityStats:
    """The unsettled messages of one priority."""

    priority: int
    counts: dict[str, int]  # messages by kind, see KINDS
    first: int  # the first that is not dead or in transfer, or -1


@dataclass(frozen=True, slots=True)
class LaneStats:
    """The unsettled messages of one lane, and why it is held back."""

    lane: int | None  # None for messages without a key
    counts: dict[str, int]  # messages by kind, see KINDS
    head: int  # the first that is not dead or in transfer, or -1
    held_back: int = 0
    """Due messages that wait for an earlier message of their key, or for a lease."""
    holder: Holder = Holder.NOTHING
    sequence: int | None = None  # the message that holds the lane back
    until: int | None = None  # microseconds; None if the owner must act
    held_by: Range | None = None  # the range of that message; None if it is unread

    @property
    def messages(self) -> int:
        """Return the number of messages that are not settled, dead or in transfer."""
        return sum(self.counts[kind] for kind in KINDS if kind not in _OUT_OF_ORDER)


class BandCensus:
    """The unsettled messages of a group by band, and the first message of each band."""

    def __init__(
        self, ledger: Ledger, index: MessageIndex, *, ordered: bool, max_runs: int = MAX_RUNS
    ) -> None:
        self.ledger, self.index, self.ordered = ledger, index, ordered
        self.layout = index.layout
        bands = self.layout.width * (MAX_PRIORITY + 1)
        self.counts = {kind: [0] * bands for kind in KINDS}  # by kind, then by band
        self._heads: dict[int, _Head] = {}
        self._leased: dict[int, _Head] = {}  # by lane
        self._runs_left = max_runs
        self.counted_to: int | None = None  # the last message counted; None if all were

    def add(self, kind: str, row: int | None, first: int, last: int, until: int | None) -> bool:
        """Count a range, which comes after all before. Return whether there may be more."""
        tally, heads, index = self.counts[kind], self._heads, self.index
        holds = kind not in _OUT_OF_ORDER
        if not index.files.banded:
            number = self.layout.number(0, None)
            tally[number] += index.count(first, last)
            if holds:
                self._note(kind, row, first, until, number)
            return True
        for begins, bands, low, high in index.banded_pieces(first, last):
            if self._runs_left < 1:
                return False
            for number, start, end in bands.between(low, high):
                tally[number] += end - start + 1
                self._runs_left -= 1
                if holds and (kind == LEASED or number not in heads):
                    self._note(kind, row, begins + start, until, number)
            self.counted_to = begins + high
        return True

    def _note(self, kind: str, row: int | None, seq: int, until: int | None, number: int) -> None:
        """Note a message if it is the first of its band, or the first leased one of its lane."""
        head = _Head(seq, kind, row, until)
        self._heads.setdefault(number, head)
        if kind == LEASED:
            self._leased.setdefault(number % self.layout.width, head)

    def priorities(self) -> list[PriorityStats]:
        """Return the priorities that have messages, the highest first."""
        found, width = list[PriorityStats](), self.layout.width
        for priority in range(MAX_PRIORITY, -1, -1):
            start = self.layout.number(priority, 0 if self.layout.lanes else None)
            counts = {kind: sum(self.counts[kind][start : start + width]) for kind in KINDS}
            if any(counts.values()):
                own = (h.sequence for n, h in self._heads.items() if start <= n < start + width)
                found.append(PriorityStats(priority, counts, min(own, default=-1)))
        return found

    def lanes(self) -> list[LaneStats]:
        """Return the lanes that have messages, in order. The last one is that without a key."""
        width = self.layout.width
        tallies = list(self.counts.items())
        every = (self._lane(at, {kind: sum(n[at::width]) for kind, n in tallies})
                 for at in range(width))  # fmt: skip
        return [one for one in every if any(one.counts.values())]

    def _lane(self, at: int, counts: dict[str, int]) -> LaneStats:
        lane = self.layout.lane_of(at)
        numbers = range(at, self.layout.width * (MAX_PRIORITY + 1), self.layout.width)
        heads = [(n, self._heads[n]) for n in numbers if n in self._heads]
        head = min((one.sequence for _, one in heads), default=-1)
        if lane is None or not self.ordered:
            return LaneStats(lane, counts, head)
        if at in self._leased:
            return self._held(lane, counts, head, counts[READY], self._leased[at])
        closed = [(n, one) for n, one in heads if one.kind != READY]
        if not closed:
            return LaneStats(lane, counts, head)
        behind = sum(self.counts[READY][n] for n, _ in closed)
        first = min((one for _, one in closed), key=_sequence)
        return self._held(lane, counts, head, behind, first)

    def _held(
        self, lane: int, counts: dict[str, int], head: int, behind: int, by: _Head
    ) -> LaneStats:
        r = None if by.row is None else self._ranges[by.row]
        until = by.until
        if r is not None and by.kind == LEASED:
            until = r.expires_at
        elif r is not None and by.kind == DELAYED:
            until = r.available_at
        holder = self._holder(by, r)
        return LaneStats(lane, counts, head, behind, holder, by.sequence, until, r)

    def _holder(self, by: _Head, r: Range | None) -> Holder:
        if by.kind == LEASED:
            return Holder.LEASE
        if by.kind == BLOCKED:
            return Holder.BLOCKED
        if r is None:
            return Holder.DELAY
        if r.failure_count:
            return Holder.RETRY
        timed = not r.delivery_count and self.index.has_times(by.sequence, by.sequence)
        return Holder.DELAY if timed else Holder.POSTPONED

    @cached_property
    def _ranges(self) -> dict[int, Range]:
        """Return the ranges of all heads, read in one pass."""
        every = (*self._heads.values(), *self._leased.values())
        rows = sorted({one.row for one in every if one.row is not None})
        return dict(zip(rows, self.ledger.ranges_at(rows), strict=True))


def _sequence(head: _Head) -> int:
    return head.sequence


def count_bands(
    ledger: Ledger, index: MessageIndex, rules: GroupSettings, now: int, max_runs: int = MAX_RUNS
) -> BandCensus:
    """Count the unsettled messages of a group by priority and lane, up to `max_runs` runs.

    The caller has expired leases already.
    """
    ledger = split_due(ledger, index, now, now)
    census = BandCensus(ledger, index, ordered=is_ordered(index, rules), max_runs=max_runs)
    for found in (*_tracked(ledger, now), *_unread(ledger, index, now)):
        if not census.add(*found):
            return census
    census.counted_to = None
    return census


_Found = tuple[str, int | None, int, int, int | None]
"""A kind, the row, the first and last sequence, and until when an unread message waits."""


def _tracked(ledger: Ledger, now: int) -> Iterator[_Found]:
    kinds: dict[int, str] = {}
    for state, kind in (
        (AVAILABLE, READY), *((state, state) for state in (LEASED, BLOCKED, DEAD, TRANSFERRING)),
    ):  # fmt: skip
        kinds.update(dict.fromkeys(ledger.find((state,)), kind))
    later = ledger.find((AVAILABLE,), ("available_at", ">", now))
    kinds.update(dict.fromkeys(later, DELAYED))
    firsts, lasts = ledger.first_sequences, ledger.last_sequences
    for row in sorted(kinds):
        yield kinds[row], row, firsts[row], lasts[row], None


def _unread(ledger: Ledger, index: MessageIndex, now: int) -> Iterable[_Found]:
    """Return the unread messages that have not expired, in order."""
    unread = unread_range(ledger, index)
    if unread is None:
        return []
    pieces = split_by_time(unread, index, now, now)
    found: list[_Found] = [(READY, None, r.first, r.last, None) for r in pieces.due]
    found += [(DELAYED, None, r.first, r.last, r.available_at) for r in pieces.later]
    return sorted(found, key=_first)


def _first(found: _Found) -> int:
    return found[2]
