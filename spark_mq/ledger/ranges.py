"""Ranges of sequences in one state, and the ledger that holds them: the data that the rules in ``ledger.py`` work on.

As in Kafka's share groups (KIP-932), delivery state is kept for ranges over a log, not for each message. A group's ledger is
an Arrow table of its ranges, sorted, without overlaps, neighbours alike in everything being one; all up to the *floor* is
settled and forgotten; what lies past the last range is unread. Pure: no storage, no clock.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex

__all__ = [
    "BLOCKED",
    "DEAD",
    "LEASED",
    "RANGE_SCHEMA",
    "ROUTING",
    "SETTLED",
    "STATES",
    "WAITING",
    "Event",
    "Ledger",
    "LedgerHeader",
    "Range",
]

LEASED: Final = "leased"
WAITING: Final = "waiting"
DEAD: Final = "dead"
BLOCKED: Final = "blocked"
ROUTING: Final = "routing"
SETTLED: Final = "settled"
FLOOR: Final = "floor"
EVENT: Final = "event"
"""Of the stored rows that tell what a commit did; of no range."""
UNREAD: Final = "unread"
"""Of no range in a ledger: what lies past the last one."""
STATES: Final = (LEASED, WAITING, DEAD, BLOCKED, ROUTING, SETTLED)

_INSTANT = pa.timestamp("us", tz="UTC")


class Range(NamedTuple):
    """Messages ``first..last`` (sequences, inclusive; ``message_count`` of them) in one state. Instants in microseconds.

    A named tuple, for settling what lies apart makes some for each message, and a dataclass takes four times as long to make.
    """

    first: int
    last: int
    state: str
    message_count: int
    lease_id: str | None = None
    """leased: its holder; waiting: the lease that expired, as long as it may still settle late; routing: the routing id."""
    worker_id: str | None = None
    leased_at: int | None = None
    expires_at: int | None = None
    lease_size: int | None = None
    """Messages that its lease was granted: one that was alone failed by itself."""
    first_leased_at: int | None = None
    first_failed_at: int | None = None
    delivery_count: int = 0
    failure_count: int = 0
    suspect: bool = False
    """Failed as part of a whole lease, the culprit unknown. While leased: as it was before, so that a release can restore it."""
    available_at: int | None = None
    reason: str | None = None
    """dead, blocked, routing: why."""
    error: str | None = None
    """The last failure in its own words."""

    def alike(self, other: Range) -> bool:
        """Whether both differ in nothing but their place."""
        return bool(_likeness(self) == _likeness(other))

    def part(self, first: int, last: int, index: MessageIndex) -> Range:
        """The piece of this range within ``first..last``."""
        first, last = max(first, self.first), min(last, self.last)
        if (first, last) == (self.first, self.last):
            return self
        count = index.count(first, last)
        if 0 < count <= last - first:  # both ends are messages, never places in a gap between commits
            first, last = index.cut(first, 1), index.at_or_before(last) or last
        return self._replace(first=first, last=last, message_count=count)

    def settled(self) -> Range:
        """This range with all forgotten but that it is settled."""
        return Range(self.first, self.last, SETTLED, self.message_count)


_FIELDS: Final = Range._fields
_likeness: Final = attrgetter(*(name for name in _FIELDS if name not in ("first", "last", "message_count")))
_INSTANTS: Final = ("leased_at", "expires_at", "first_leased_at", "first_failed_at", "available_at")

_TYPES: Final = {
    "first": pa.int64(),
    "last": pa.int64(),
    "message_count": pa.int64(),
    "lease_size": pa.int64(),
    "delivery_count": pa.int32(),
    "failure_count": pa.int32(),
    "suspect": pa.bool_(),
} | dict.fromkeys(_INSTANTS, _INSTANT)
RANGE_SCHEMA: Final = pa.schema([pa.field(name, _TYPES.get(name, pa.string())) for name in _FIELDS])
"""One row a range. The stored table adds consumer_group (partition), revision (of the floor row) and detail."""

Event = tuple[str, Range]
"""What happened to some messages: the event's name, and their range as it was, with the state (reason, counts) that came of it."""


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """What a ledger knows besides its ranges; stored as its floor row.

    ``floor``: all messages up to this sequence are settled. ``forgotten``: how many those were. ``revision`` grows with each
    commit. ``turn``: which kind of message the next lease tries first. ``counters``: messages by outcome since the group began.
    ``skipped``: what seeks have skipped, for whoever settles it still; the newest intervals only.
    """

    floor: int = -1
    forgotten: int = 0
    revision: int = 0
    turn: str = ""
    counters: dict[str, int] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    skipped: tuple[Interval, ...] = ()

    def counted(self, outcomes: Mapping[str, int]) -> LedgerHeader:
        """With so many messages more for each outcome."""
        if not outcomes:
            return self
        return replace(self, counters={**self.counters, **{name: self.counters.get(name, 0) + n for name, n in outcomes.items()}})

    def to_json(self) -> str:
        """What has no column of its own, for the floor row."""
        data = asdict(self)
        return json.dumps({name: data[name] for name in ("turn", "counters", "settings", "skipped")}, sort_keys=True)


class Ledger:
    """One group's ranges and head. Immutable; changes are made through a :class:`Draft`.

    ``events``: what has happened to messages on the way from the ledger that was read to this one.
    """

    def __init__(self, head: LedgerHeader, ranges: pa.Table | None = None, events: Sequence[Event] = ()) -> None:
        table = RANGE_SCHEMA.empty_table() if ranges is None else ranges
        self.head = head
        self.events = events
        self.ranges: pa.Table = table.combine_chunks()
        self._masks: dict[str, pa.ChunkedArray] = {}  # by state

    @classmethod
    def of(cls, head: LedgerHeader, ranges: Iterable[Range], events: Sequence[Event] = ()) -> Ledger:
        """From ranges in order."""
        return cls(head, to_table(ranges), events)

    def __len__(self) -> int:
        return int(self.ranges.num_rows)

    @cached_property
    def firsts(self) -> Sequence[int]:
        """The first sequence of each range, as a view that bisect can search without making Python objects of all."""
        return _longs(self.ranges, "first")

    @cached_property
    def lasts(self) -> Sequence[int]:
        """The last sequence of each range, as a view."""
        return _longs(self.ranges, "last")

    @cached_property
    def counts(self) -> Sequence[int]:
        """The messages in each range, as a view."""
        return _longs(self.ranges, "message_count")

    @cached_property
    def _columns(self) -> list[pa.Array]:
        """The columns, as plain arrays: reading one row of these is ten times as fast as slicing the table."""
        return [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in _plain(self.ranges)]

    @cached_property
    def frontier(self) -> int:
        """The last sequence that is not unread."""
        return self.lasts[-1] if len(self) else self.head.floor

    def at(self, row: int) -> Range:
        """The range in a row."""
        return Range(*(column[row].as_py() for column in self._columns))

    def state_at(self, row: int) -> str:
        """The state of the range in a row."""
        return cast(str, self._columns[_FIELDS.index("state")][row].as_py())

    def where(self, mask: pa.Array | pa.ChunkedArray) -> list[int]:
        """The rows for which the mask holds, ascending; those where it is null are left out."""
        return cast(list[int], pc.indices_nonzero(mask).to_pylist())

    def select(self, rows: Sequence[int]) -> list[Range]:
        """The ranges in some rows."""
        return list(_ranges(self.ranges.take(pa.array(rows, pa.int64())))) if rows else []

    def __iter__(self) -> Iterator[Range]:
        return _ranges(self.ranges)

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of the ranges, for vectorised conditions."""
        return self.ranges[name]

    def is_state(self, *states: str) -> pa.ChunkedArray:
        """A mask of the rows in one of some states."""
        for state in states:
            if state not in self._masks:
                self._masks[state] = pc.equal(self.ranges["state"], state)  # a fifth of the time of is_in
        return reduce(pc.or_, [self._masks[state] for state in states])

    def count(self, mask: pa.ChunkedArray | None = None) -> int:
        """How many messages lie in the ranges for which the mask holds (all, without one)."""
        table = self.ranges if mask is None else self.ranges.filter(mask)
        return pc.sum(table["message_count"]).as_py() or 0

    def held_by(self, lease_id: str) -> pa.ChunkedArray:
        """A mask of what a lease holds: leased, or expired and not leased again."""
        return pc.and_(self.is_state(LEASED, WAITING), pc.equal(self.ranges["lease_id"], lease_id))

    def held(self, lease_id: str) -> list[Range]:
        """The ranges that a lease holds."""
        return self.select(self.where(self.held_by(lease_id)))

    def overlapping(self, first: int, last: int) -> range:
        """The rows of the ranges that share a sequence with ``first..last``, or span a gap in it; none where `last` is before `first`."""
        if last < first:
            return range(0)
        start = bisect_right(self.firsts, first) - 1
        if start < 0 or self.lasts[start] < first:
            start += 1
        return range(start, bisect_left(self.firsts, last + 1))


def _longs(table: pa.Table, name: str) -> Sequence[int]:
    chunks = table[name].chunks
    if not chunks or not len(chunks[0]):
        return ()
    array = chunks[0]
    view = memoryview(array.buffers()[1]).cast("q")
    return cast(Sequence[int], view[array.offset : array.offset + len(array)])


def to_table(ranges: Iterable[Range]) -> pa.Table:
    """An Arrow table of ranges."""
    columns = []
    for name, kind, values in zip(_FIELDS, RANGE_SCHEMA.types, list(zip(*ranges, strict=True)) or [()] * len(_FIELDS), strict=True):
        # Instants go in as int64 and are viewed as timestamps: no datetime object is made.
        columns.append(pa.array(values, pa.int64()).cast(kind) if name in _INSTANTS else pa.array(values, kind))
    return pa.table(columns, schema=RANGE_SCHEMA)


def _plain(table: pa.Table) -> list[pa.ChunkedArray]:
    """The columns in the order of Range's fields, with instants as integers."""
    return [table[name].cast(pa.int64()) if name in _INSTANTS else table[name] for name in _FIELDS]


def _ranges(table: pa.Table) -> Iterator[Range]:
    for values in zip(*(column.to_pylist() for column in _plain(table)), strict=True):
        yield Range(*values)
