"""Ranges of sequences in one state, and the ledger that holds them.

Delivery state belongs to ranges over a log, as in Kafka's share groups (KIP-932).
A group's ledger is an Arrow table of its ranges. The ranges are sorted and do not overlap.
Adjacent ranges in the same state are one range. All messages up to the *floor* are settled.
All messages after the last range are unread.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.states import (
    BLOCKED,
    DEAD,
    LEASED,
    ROUTING,
    SETTLED,
    STATES,
    UNREAD,
    WAITING,
    State,
    validate_transition,
)

__all__ = [
    "BLOCKED",
    "DEAD",
    "EVENT",
    "FLOOR",
    "LEASED",
    "RANGE_SCHEMA",
    "ROUTING",
    "SETTLED",
    "STATES",
    "UNREAD",
    "WAITING",
    "Event",
    "Ledger",
    "LedgerHeader",
    "LogMark",
    "Range",
    "State",
    "to_table",
    "validate_transition",
]


FLOOR: Final = "floor"
"""Mark of the stored header row."""
EVENT: Final = "event"
"""Mark of the stored rows that record what a commit did."""

_INSTANT = pa.timestamp("us", tz="UTC")


class Range(NamedTuple):
    """Messages ``first..last`` (inclusive sequences) in one state. Instants are microseconds."""

    # A named tuple: a settle of single messages makes several ranges for each, and a dataclass
    # takes four times as long to make.

    first: int
    last: int
    state: str
    message_count: int
    lease_id: str | None = None
    """The lease that holds it. While waiting: the expired lease, if that may still settle.
    While routing: the routing id."""
    worker_id: str | None = None
    leased_at: int | None = None
    expires_at: int | None = None
    lease_size: int | None = None
    """Messages in the lease. A message that was alone in its lease failed by itself."""
    first_leased_at: int | None = None
    first_failed_at: int | None = None
    delivery_count: int = 0
    failure_count: int = 0
    suspect: bool = False
    """Failed as part of a whole lease, so the culprit is unknown. A lease keeps the value, because
    a release restores it."""
    available_at: int | None = None
    reason: str | None = None
    """Why the range is dead, blocked or routing."""
    error: str | None = None
    """The text of the last failure."""

    def same_state_as(self, other: Range) -> bool:
        """Return whether both ranges differ only in their place."""
        return bool(_state_fields(self) == _state_fields(other))

    def slice(self, first: int, last: int, index: MessageIndex) -> Range:
        """Return the piece of this range within ``first..last``. It may be empty."""
        first, last = max(first, self.first), min(last, self.last)
        if (first, last) == (self.first, self.last):
            return self
        count = index.count(first, last)
        if 0 < count <= last - first:  # both ends must be messages, not gaps between commits
            first, last = index.nth_from(first, 1), index.last_at_or_before(last) or last
        return self._replace(first=first, last=last, message_count=count)

    def as_settled(self) -> Range:
        """Return this range as settled, without any other detail."""
        return Range(self.first, self.last, SETTLED, self.message_count)


_FIELDS: Final = Range._fields
_state_fields: Final = attrgetter(
    *(name for name in _FIELDS if name not in ("first", "last", "message_count"))
)
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
"""One row for each range. The stored table adds consumer_group, revision and detail."""

Event = tuple[str, Range]
"""The name of an event, and the old range with its new state, reason and counts."""


class LogMark(NamedTuple):
    """A data file of ``messages/`` that a ledger has reached."""

    first: int
    """The sequence of its first message."""
    path: str


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The state of a ledger that belongs to no range. The store keeps it in the floor row."""

    ack_floor: int = -1
    """All messages up to this sequence are settled."""
    settled_count: int = 0
    """The number of messages up to the ack floor."""
    revision: int = 0
    """Grows by one with each commit."""
    next_kind: str = ""
    """The kind of message that the next lease tries first."""
    counters: dict[str, int] = field(default_factory=dict)
    """Settled messages by outcome since the group began."""
    settings: dict[str, Any] = field(default_factory=dict)
    skipped_intervals: tuple[Interval, ...] = ()
    """The newest intervals that a seek skipped. A later settle of them is refused."""
    marks: tuple[LogMark, ...] = ()
    """Some data files that the ledger has reached, in order. They identify the log."""

    def counted(self, outcomes: Mapping[str, int]) -> LedgerHeader:
        """Return a header with some messages more for each outcome."""
        if not outcomes:
            return self
        added = {name: self.counters.get(name, 0) + n for name, n in outcomes.items()}
        return replace(self, counters={**self.counters, **added})

    def to_json(self) -> str:
        """Return the fields without a column of their own as JSON."""
        data = {
            "turn": self.next_kind,
            "counters": self.counters,
            "settings": self.settings,
            "skipped": self.skipped_intervals,
            "marks": self.marks,
        }
        return json.dumps(data, sort_keys=True)


class Ledger:
    """One group's ranges and header. Immutable: a :class:`LedgerEditor` makes the next one.

    Parameters
    ----------
    head
        The state that belongs to no range.
    ranges
        A table with ``RANGE_SCHEMA``, in order. None for no ranges.
    events
        The events between the ledger that was read and this one.
    """

    def __init__(
        self,
        head: LedgerHeader,
        ranges: pa.Table | None = None,
        events: Sequence[Event] = (),
    ) -> None:
        table = RANGE_SCHEMA.empty_table() if ranges is None else ranges
        self.head = head
        self.events = events
        self.ranges: pa.Table = table.combine_chunks()
        self._masks: dict[str, pa.ChunkedArray] = {}  # by state

    @classmethod
    def from_ranges(
        cls, head: LedgerHeader, ranges: Iterable[Range], events: Sequence[Event] = ()
    ) -> Ledger:
        """Create a ledger from ranges in order."""
        return cls(head, to_table(ranges), events)

    def __len__(self) -> int:
        return int(self.ranges.num_rows)

    @cached_property
    def first_sequences(self) -> Sequence[int]:
        """Return the first sequence of each range, as a view for bisect."""
        return _longs(self.ranges, "first")

    @cached_property
    def last_sequences(self) -> Sequence[int]:
        """Return the last sequence of each range, as a view."""
        return _longs(self.ranges, "last")

    @cached_property
    def message_counts(self) -> Sequence[int]:
        """Return the number of messages in each range, as a view."""
        return _longs(self.ranges, "message_count")

    @cached_property
    def _columns(self) -> list[pa.Array]:
        """Return the columns as arrays: reading one row is ten times as fast as from a table."""
        return [
            column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            for column in _plain(self.ranges)
        ]

    @cached_property
    def tracked_up_to(self) -> int:
        """Return the last sequence that is not unread."""
        return self.last_sequences[-1] if len(self) else self.head.ack_floor

    def range_at(self, row: int) -> Range:
        """Return the range in a row."""
        return Range(*(column[row].as_py() for column in self._columns))

    def state_at(self, row: int) -> str:
        """Return the state of the range in a row."""
        return cast(str, self._columns[_FIELDS.index("state")][row].as_py())

    def rows_where(self, mask: pa.Array | pa.ChunkedArray) -> list[int]:
        """Return the rows for which the mask is true, in order. Null counts as false."""
        return cast(list[int], pc.indices_nonzero(mask).to_pylist())

    def ranges_at(self, rows: Sequence[int]) -> list[Range]:
        """Return the ranges in some rows."""
        return list(_ranges(self.ranges.take(pa.array(rows, pa.int64())))) if rows else []

    def __iter__(self) -> Iterator[Range]:
        return _ranges(self.ranges)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of the ranges, for vectorised conditions."""
        return self.ranges[name]

    def is_state(self, *states: str) -> pa.ChunkedArray:
        """Return a mask of the rows in one of some states."""
        for state in states:
            if state not in self._masks:
                # equal takes a fifth of the time of is_in.
                self._masks[state] = pc.equal(self.ranges["state"], state)
        return reduce(pc.or_, [self._masks[state] for state in states])

    def count(self, mask: pa.ChunkedArray | None = None) -> int:
        """Count the messages of the ranges in a mask, or of all ranges."""
        table = self.ranges if mask is None else self.ranges.filter(mask)
        return pc.sum(table["message_count"]).as_py() or 0

    def held_mask(self, lease_id: str) -> pa.ChunkedArray:
        """Return a mask of the ranges that a lease holds. It may hold expired ranges too."""
        own = pc.equal(self.ranges["lease_id"], lease_id)
        return pc.and_(self.is_state(LEASED, WAITING), own)

    def held(self, lease_id: str) -> list[Range]:
        """Return the ranges that a lease holds."""
        return self.ranges_at(self.rows_where(self.held_mask(lease_id)))

    def overlapping(self, first: int, last: int) -> range:
        """Return the rows of the ranges that overlap ``first..last``, as sequences.

        Returns no rows if `last` is before `first`.
        """
        if last < first:
            return range(0)
        start = bisect_right(self.first_sequences, first) - 1
        if start < 0 or self.last_sequences[start] < first:
            start += 1
        return range(start, bisect_left(self.first_sequences, last + 1))


def _longs(table: pa.Table, name: str) -> Sequence[int]:
    chunks = table[name].chunks
    if not chunks or not len(chunks[0]):
        return ()
    array = chunks[0]
    view = memoryview(array.buffers()[1]).cast("q")
    return cast(Sequence[int], view[array.offset : array.offset + len(array)])


def to_table(ranges: Iterable[Range]) -> pa.Table:
    """Return an Arrow table of ranges."""
    columns = []
    by_field = list(zip(*ranges, strict=True)) or [()] * len(_FIELDS)
    for name, kind, values in zip(_FIELDS, RANGE_SCHEMA.types, by_field, strict=True):
        # Instants go in as int64 and are cast, so that no datetime objects are made.
        if name in _INSTANTS:
            columns.append(pa.array(values, pa.int64()).cast(kind))
        else:
            columns.append(pa.array(values, kind))
    return pa.table(columns, schema=RANGE_SCHEMA)


def _plain(table: pa.Table) -> list[pa.ChunkedArray]:
    """Return the columns in the order of Range's fields, with instants as integers."""
    return [table[name].cast(pa.int64()) if name in _INSTANTS else table[name] for name in _FIELDS]


def _ranges(table: pa.Table) -> Iterator[Range]:
    for values in zip(*(column.to_pylist() for column in _plain(table)), strict=True):
        yield Range(*values)
