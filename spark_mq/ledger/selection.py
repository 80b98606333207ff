"""Define the request for a lease, and select from its candidates what the budget allows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Final, NamedTuple

from spark_mq.errors import SparkMQError
from spark_mq.ledger.budget import Budget, is_stopped
from spark_mq.ledger.intervals import Interval, split_at
from spark_mq.ledger.message_filter import RowRuns
from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.ledger.ranges import AVAILABLE, BLOCKED, LEASED, UNREAD, Ledger, Range
from spark_mq.ledger.schedule import DUE, LATER, split_by_time
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.sink_writes import SinkWrite, with_write

FILTERED: Final = "filtered"  # the event of messages that a filter does not match
REPLACED: Final = "replaced"  # and of those that a later one replaces
OTHER_GROUP: Final = "other_group"  # and of those that were published for another group alone
MAX_PIECES: Final = 1_000  # more pieces in one lease would make its commit large
MAX_FILTERED_PIECES: Final = 4_000
"""Pieces that a lease and what it skips may have. More would make its commit large."""
MAX_FILTERED_FILES: Final = 1_000  # with messages that one lease skips, so that it commits soon

Part = tuple[int, int, int]
"""The first and last sequence of messages, and the slots that they close.

No slots stand for messages that a lease may take. Only those that it may not take close slots.
"""
_CHUNK: Final = 500  # rows whose slots are looked up at once


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """A worker's request for a lease. Instants are microseconds."""

    lease_id: str
    worker_id: str
    max_messages: int
    expires_at: int
    max_bytes: int | None = None  # estimated bytes in the data files
    reserved_attempts: int = 0  # for a replay; the stream source reserves one
    max_sequence: int | None = None
    due_by: int | None = None  # only messages that were due at this time; None for now
    sink_write: SinkWrite | None = None  # in a group with a sink
    intervals: Sequence[Interval] | None = None  # only these messages; None for any
    matches: Mapping[str, RowRuns] | None = None  # of the group's filter, by path of the file


@dataclass(frozen=True, slots=True)
class Grant:
    """The messages of a new lease, or the reason for none. Without ranges there is no lease."""

    ranges: tuple[Range, ...] = ()  # in the order of sequence
    blocked_because: str = ""  # the cap, message, pause or breaker; empty if nothing is due
    blocked_for_now: bool = field(default=False, compare=False)
    """Whether the reason ends without the owner, or is the owner's pause."""
    lease_id: str = ""
    expires_at: int = 0
    error: SparkMQError | None = None  # why nothing is granted, if payload files are out of reach
    unfinished: bool = False  # files must be checked before the next try
    acked: int = 0  # messages of earlier batches of a stream
    skipped: Mapping[str, int] = field(default_factory=dict, compare=False)
    """The messages that the lease skipped, by event."""
    sink_key: str | None = field(default=None, compare=False)  # the group's, at the time
    wait_until: int | None = None  # by the rate limit

    @property
    def message_count(self) -> int:
        return sum(r.message_count for r in self.ranges)

    @property
    def breaker_stops(self) -> bool:
        """Return whether a pause or the breaker is the reason."""
        return self.blocked_for_now and is_stopped(self.blocked_because)


def blocked_by(r: Range) -> str:
    """Return a blocked range as the reason why a group stops."""
    return f"message {r.first} is past its limit ({r.reason})"


def leased(r: Range, now: int, request: AcquireRequest, size: int) -> Range:
    """Return a range as part of a new lease of `size` messages. The delivery is counted."""
    write = request.sink_write
    return r._replace(
        state=LEASED,
        lease_id=request.lease_id,
        worker_id=request.worker_id,
        leased_at=now,
        expires_at=request.expires_at,
        lease_size=size,
        first_leased_at=r.first_leased_at or now,
        delivery_count=r.delivery_count + 1,
        available_at=None,
        sink_writes=r.sink_writes if write is None else with_write(r, write),
    )


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
        ledger = self.ledger
        if self.named is None and ledger.last_sequences[row] <= self.end:
            return slots & is_open
        open_slots, no_lane = 0, self.index.layout.without_lane
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
        for when, r in split_by_time(unread, self.index, self._now, self._cutoff):
            if when == DUE:
                yield from self._parts(r.first, r.last)
            elif when == LATER:
                yield from self._closed(r.first, r.last)

    def _parts(self, first: int, last: int) -> Iterable[Part]:
        if self.named is None and last <= self.end:
            return ((first, last, 0),)
        return self._split(first, last)

    def _split(self, first: int, last: int) -> Iterator[Part]:
        """Split messages into those that a lease may take, and those that only close slots.

        Those after the end close none, because nothing is taken behind them.
        """
        end = min(last, self.end)
        named = ((first, end),) if self.named is None else self.named
        for is_named, low, high in split_at(named, first, end):
            if is_named:
                yield low, high, 0
            else:
                yield from self._closed(low, high)

    def _closed(self, first: int, last: int) -> Iterator[Part]:
        if self._closing is not None and (slots := self.index.slots_in(first, last)):
            yield first, last, slots


class SelectedPiece(NamedTuple):
    """Messages that a lease takes, or skips."""

    row: int | None  # of the ledger; None for unread messages
    first: int
    last: int
    messages: int
    event: str = ""  # that settles messages which the lease skips


def _add_joined(
    taken: list[SelectedPiece],
    index: MessageIndex,
    row: int | None,
    begins: int,
    run: Interval,
    *,
    event: str = "",
) -> None:
    """Add a run of a file from `begins` on. Join it with the last piece if they touch."""
    (first, last), before = run, taken[-1] if taken else None
    count = last - first + 1
    if before is not None and (before.row, before.event) == (row, event):
        near = before.last + 1 == first or first == begins
        if near and before.last < first and not index.count(before.last + 1, first - 1):
            first, count = before.first, before.messages + count
            taken.pop()
    taken.append(SelectedPiece(row, first, last, count, event))


class WalkFilter:
    """The messages of a walk that a lease takes, and those that it skips.

    It skips messages that were published for another group alone, those that later ones replace,
    and those that the group's filter does not match.
    Messages of files that no check has read count as matching. Messages that were leased before are
    never skipped.
    """

    def __init__(
        self,
        matches: Mapping[str, RowRuns] | None,
        replaced: Mapping[int, Sequence[Interval]],
        ledger: Ledger,
        index: MessageIndex,
        room: int,
    ) -> None:
        self._matches, self._index = {} if matches is None else matches, index
        self._replaced, self._group = replaced, ledger.head.group
        self._most = max(2, min(MAX_FILTERED_PIECES, room))
        delivered = ("first_leased_at", "is set", None)
        self._delivered_rows = frozenset(ledger.find((AVAILABLE,), delivered))
        self.skipped: list[SelectedPiece] = []
        self._files = set[int]()  # those with skipped messages, by first sequence

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        index: MessageIndex,
        rules: GroupSettings,
        matches: Mapping[str, RowRuns] | None,
    ) -> WalkFilter | None:
        """Return the filter of a lease, or None if the group gets all messages."""
        start = ledger.head.start_sequence
        replaced = index.replaced_after(start)
        if matches is None and not replaced and not index.is_addressed_after(start):
            return None
        room = rules.max_tracked_ranges - ledger.size
        return cls(matches, replaced, ledger, index, room)

    def is_full(self, pieces: int) -> bool:
        """Return whether a lease of some pieces must end."""
        full = pieces + len(self.skipped) >= self._most
        return full or len(self._files) >= MAX_FILTERED_FILES

    def runs(self, row: int | None, first: int, last: int) -> Iterator[tuple[str, int, int]]:
        """Yield the bounds of each run of some messages of one file, with the event that skips it.

        The event of messages that a lease may take is an empty text.
        """
        file = self._index.file_at(first)
        if row in self._delivered_rows:
            yield "", first, last
            return
        if file.group not in ("", self._group):
            yield OTHER_GROUP, first, last
            return
        replaced = self._replaced.get(file.first, ())
        for is_replaced, low, high in split_at(replaced, first, last):
            if is_replaced:
                yield REPLACED, low, high
            else:
                yield from self._filtered(file, low, high)

    def _filtered(self, file: DataFile, first: int, last: int) -> Iterator[tuple[str, int, int]]:
        runs = self._matches.get(file.path)
        if runs is None or runs.all_match:
            yield "", first, last
            return
        for matches, low, high in runs.between(first - file.first, last - file.first):
            yield "" if matches else FILTERED, file.first + low, file.first + high

    def skip(self, row: int | None, begins: int, run: Interval, event: str) -> None:
        """Note messages of the file from `begins` on that the lease skips."""
        self._files.add(begins)
        _add_joined(self.skipped, self._index, row, begins, run, event=event)

    def without_skipped(self) -> WalkFilter:
        """Return the same filter for another walk."""
        other = copy(self)
        other.skipped, other._files = [], set()
        return other


class Selection:
    """The pieces that a lease takes, and those that it skips by its `filter`."""

    def __init__(
        self,
        index: MessageIndex,
        budget: Budget,
        filter: WalkFilter | None,
        max_pieces: int | None = MAX_PIECES,
    ) -> None:
        self.index, self.budget, self.filter = index, budget, filter
        self._max_pieces = max_pieces
        self.taken: list[SelectedPiece] = []

    @property
    def skipped(self) -> list[SelectedPiece]:
        return [] if self.filter is None else self.filter.skipped

    @property
    def full(self) -> bool:
        if self.filter is not None and self.filter.is_full(len(self.taken)):
            return True
        if self.budget.messages < 1:
            return True
        return self._max_pieces is not None and len(self.taken) >= self._max_pieces

    def emptied(self, budget: Budget) -> Selection:
        """Return a selection of nothing with another budget."""
        row_filter = None if self.filter is None else self.filter.without_skipped()
        return Selection(self.index, budget, row_filter, self._max_pieces)

    def take(
        self, row: int | None, begins: int, run: Interval, most: int | None = None
    ) -> tuple[int, int]:
        """Take up to `most` messages of a run of the file from `begins` on.

        Return how many it took, and the last message that it has taken or skipped.
        """
        if self.filter is None:
            taken = self._add(row, begins, run, most)
            return taken, run[0] + taken - 1
        taken, last_seen = 0, run[0] - 1
        for event, first, last in self.filter.runs(row, *run):
            if taken == most or self.full:
                break
            if event:
                self.filter.skip(row, begins, (first, last), event)
                last_seen = last
            else:
                left = None if most is None else most - taken
                fits = self._add(row, begins, (first, last), left)
                taken, last_seen = taken + fits, first + fits - 1
        return taken, last_seen

    def take_all(self, row: int | None, first: int, last: int) -> None:
        """Take the messages of a range, which may span files."""
        if self.filter is not None:
            for begins, _, low, high in self.index.pieces_with_slots(first, last):
                if self.full:
                    return
                self.take(row, begins, (begins + low, begins + high))
        elif count := self.budget.take(first, last):
            if count <= last - first:  # there are gaps, or more messages
                first = self.index.first_at_or_after(first) or first
                last = self.index.nth_from(first, count)
            self.taken.append(SelectedPiece(row, first, last, count))

    def _add(self, row: int | None, begins: int, run: Interval, most: int | None) -> int:
        """Add what fits of a run of one file, and return how many messages."""
        if fits := self.budget.take(*run, most):
            run = (run[0], run[0] + fits - 1)
            _add_joined(self.taken, self.index, row, begins, run)
        return fits
