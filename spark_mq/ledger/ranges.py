"""Hold a group's ledger: ranges of sequences in one state, and a header.

Delivery state belongs to ranges over a log, as in Kafka's share groups (KIP-932). The ranges are
sorted and do not overlap. Adjacent ranges in the same state are one range. All messages up to the
*start sequence* are settled, and all messages after the last range are unread.
"""

from __future__ import annotations

import json
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.intervals import Interval, intersect
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.states import (
    AVAILABLE,
    BLOCKED,
    DEAD,
    LEASED,
    SETTLED,
    STATES,
    TRANSFERRING,
    UNREAD,
    State,
)
from spark_mq.util.user import process_of, worker_label

__all__ = [
    "AVAILABLE",
    "BLOCKED",
    "DEAD",
    "LEASED",
    "SETTLED",
    "STATES",
    "TRANSFERRING",
    "UNREAD",
    "State",
]

HEADER: Final = "header"  # state of the stored header row
EVENT: Final = "event"  # state of the stored rows that record a commit's events

_INSTANT = pa.timestamp("us", tz="UTC")


_new_tuple: Final = tuple.__new__
_AFTER_COUNT: Final = 4  # the place of the field after the messages and the state


class Range(NamedTuple):
    """Messages ``first..last`` (inclusive sequences) in one state. Instants are microseconds."""

    # A named tuple. A settle of single messages makes several ranges for each, and a dataclass
    # takes four times as long to make.

    first: int
    last: int
    state: str
    message_count: int
    lease_id: str | None = None
    """The lease that holds it, an expired one that may still settle, or the transfer id."""
    worker_id: str | None = None
    leased_at: int | None = None
    expires_at: int | None = None
    lease_size: int | None = None
    """Messages in its lease, or for an available suspect in the failed one. 1 blames it alone, so
    it is all that its worker held if another lease of that worker has expired meanwhile."""
    first_leased_at: int | None = None
    first_failed_at: int | None = None
    delivery_count: int = 0
    failure_count: int = 0
    suspect: bool = False
    """Failed as part of a whole lease: the culprit is unknown. A lease keeps it for a release."""
    available_at: int | None = None
    reason: str | None = None  # why it is dead, blocked, in transfer, or due before its time
    error: str | None = None  # of the last failure
    sink_writes: str | None = None
    """The writes under which the group's sink may have it, oldest first, as ``writer:number``.
    While a lease holds it, the last one is of the lease. See :mod:`spark_mq.ledger.sink_writes`."""

    @property
    def worker(self) -> str | None:
        """Return the worker's name. ``worker_id`` also tells its process from all others."""
        return worker_label(self.worker_id)

    def same_state_as(self, other: Range) -> bool:
        """Return whether both ranges differ only in their place."""
        # Slices, because a settle of single messages compares each of them.
        return self.state == other.state and self[_AFTER_COUNT:] == other[_AFTER_COUNT:]

    def at(self, first: int, last: int, message_count: int) -> Range:
        """Return other messages in the same state."""
        # Six times as fast as ``_replace``.
        fields = (first, last, self.state, message_count, *self[_AFTER_COUNT:])
        return _new_tuple(Range, fields)

    def slice(self, first: int, last: int, index: MessageIndex) -> Range:
        """Return the piece of this range within ``first..last``. It may be empty."""
        first, last = max(first, self.first), min(last, self.last)
        if (first, last) == (self.first, self.last):
            return self
        count = index.count(first, last)
        if 0 < count <= last - first:  # both ends must be messages, not gaps between commits
            first = index.first_at_or_after(first) or first
            last = index.last_at_or_before(last) or last
        return self.at(first, last, count)

    def within(self, intervals: Iterable[Interval], index: MessageIndex) -> list[Range]:
        """Return the pieces of this range within some intervals, without empty ones."""
        parts = intersect([(self.first, self.last)], intervals)
        pieces = [self.slice(first, last, index) for first, last in parts]
        return [piece for piece in pieces if piece.message_count]

    def as_settled(self) -> Range:
        """Return this range as settled, without any other detail."""
        return Range(self.first, self.last, SETTLED, self.message_count)


FIELDS: Final = Range._fields
INSTANTS: Final = ("leased_at", "expires_at", "first_leased_at", "first_failed_at", "available_at")

_TYPES: Final = {
    "first": pa.int64(),
    "last": pa.int64(),
    "message_count": pa.int64(),
    "lease_size": pa.int64(),
    "delivery_count": pa.int32(),
    "failure_count": pa.int32(),
    "suspect": pa.bool_(),
} | dict.fromkeys(INSTANTS, _INSTANT)
RANGE_SCHEMA: Final = pa.schema([pa.field(name, _TYPES.get(name, pa.string())) for name in FIELDS])
"""One row for each range. The stored table adds consumer_group, revision and detail."""


def range_between(index: MessageIndex, first: int, last: int, state: str) -> Range | None:
    """Return ``first..last`` as one range, or None without messages."""
    low, high = index.first_at_or_after(first), index.last_at_or_before(last)
    if low is None or high is None or not (count := index.count(low, high)):
        return None
    return Range(low, high, state, count)


def to_table(ranges: Iterable[Range]) -> pa.Table:
    columns = []
    by_field = list(zip(*ranges, strict=True)) or [()] * len(FIELDS)
    for name, kind, values in zip(FIELDS, RANGE_SCHEMA.types, by_field, strict=True):
        # Instants go in as int64 and are cast, so that no datetime objects are made.
        if name in INSTANTS:
            columns.append(pa.array(values, pa.int64()).cast(kind))
        else:
            columns.append(pa.array(values, kind))
    return pa.table(columns, schema=RANGE_SCHEMA)


def _plain(table: pa.Table) -> list[pa.ChunkedArray]:
    """Return the columns of Range's fields, with instants as integers."""
    return [table[name].cast(pa.int64()) if name in INSTANTS else table[name] for name in FIELDS]


def to_ranges(table: pa.Table) -> Iterator[Range]:
    for values in zip(*(column.to_pylist() for column in _plain(table)), strict=True):
        yield Range(*values)


class LogFingerprint(NamedTuple):
    """A data file of ``messages/`` that a ledger has reached."""

    first: int  # the sequence of its first message
    path: str


_STORED_FIELDS: Final = (
    "leases_without_fresh", "counters", "settings", "log_fingerprints", "last_sink_write",
    "rate_full_at", "byte_rate_full_at", "rate_noted_at", "fair_time", "happened",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LedgerHeader:
    """The state of a ledger that belongs to no range. The store keeps it in the header row."""

    start_sequence: int = -1  # all messages up to this sequence are settled
    settled_count: int = 0  # messages up to the start sequence
    revision: int = 0  # grows by one with each commit
    leases_without_fresh: int = 0  # in a row, which isolated suspects while unread ones were due
    counters: dict[str, int] = field(default_factory=dict)  # settled messages by outcome
    settings: dict[str, Any] = field(default_factory=dict)
    skipped_intervals: tuple[Interval, ...] = ()
    """The newest intervals that a seek skipped. A later settle of them is refused."""
    log_fingerprints: tuple[LogFingerprint, ...] = ()  # in order; they identify the log
    breaker: Breaker = field(default_factory=Breaker)
    last_sink_write: int = 0  # the number of the last lease's write
    rate_full_at: int = 0  # when the full burst of each rate limit is there again, in microseconds
    byte_rate_full_at: int = 0
    rate_noted_at: int = 0  # when the last lease took from them
    fair_time: int = 0  # how far a fair group has shared leases between lanes
    happened: dict[str, int] = field(default_factory=dict)
    """Leases, and messages by what happened to them. No rule reads it."""
    group: str = ""  # whose ledger it is, which the store keeps in the partition

    def to_json(self) -> str:
        """Return the fields without a column of their own as JSON."""
        data = {name: getattr(self, name) for name in _STORED_FIELDS}
        data |= {"skipped": self.skipped_intervals, "breaker": self.breaker.to_stored()}
        return json.dumps(data)


LIST_LIMIT: Final = 100
"""A ledger with more ranges is a table. For few, a list is faster: an Arrow call takes 20 µs."""

Condition = tuple[str, str, Any]
"""A field of :class:`Range`, a key of ``_TESTS``, and a value. Only "is null" is true for None."""


def of_process(worker_id: str) -> Condition:
    """Return what is true for the leases that end together with a worker's process."""
    # A name says nothing, because workers of several processes may share one.
    process, is_known = process_of(worker_id)
    return "worker_id", "starts with" if is_known else "=", process


def _is_null(value: Any, _: Any) -> bool:
    return value is None


_TESTS: Final[dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]]] = {
    "=": (operator.eq, pc.equal),
    "<": (operator.lt, pc.less),
    "<=": (operator.le, pc.less_equal),
    ">": (operator.gt, pc.greater),
    ">=": (operator.ge, pc.greater_equal),
    "starts with": (str.startswith, pc.starts_with),
    "is set": (lambda value, _: True, lambda column, _: pc.is_valid(column)),
    "is null": (_is_null, lambda column, _: pc.is_null(column)),
}
"""The function for a value, and the one for a column."""
_STATE: Final = FIELDS.index("state")

Event = tuple[str, Range]
"""The name of an event, and the old range with its new state, reason and counts."""


class Ledger:
    """One group's ranges in order, and its header. A :class:`LedgerEditor` makes the next one.

    Many ranges are an Arrow table, and few are a list. Both give the same answers. The events lie
    between the ledger that was read and this one.
    """

    def __init__(
        self,
        head: LedgerHeader,
        ranges: pa.Table | list[Range] | None = None,
        events: Sequence[Event] = (),
    ) -> None:
        self.head = head
        self.events = events
        self.rows: list[Range] | None = None  # the ranges if they are few
        self.size = 0 if ranges is None else len(ranges)
        self._table: pa.Table | None = None
        self._columns: dict[str, pa.Array] = {}
        self._masks: dict[str, pa.Array] = {}  # by state
        given: Any = [] if ranges is None else ranges
        few = self.size <= LIST_LIMIT
        if isinstance(given, list):
            self.rows, self._table = (given, None) if few else (None, to_table(given))
        elif few:
            self.rows = list(to_ranges(given))
        else:
            self._table = given.combine_chunks()

    @classmethod
    def from_ranges(
        cls, head: LedgerHeader, ranges: Iterable[Range], events: Sequence[Event] = ()
    ) -> Ledger:
        return cls(head, list(ranges), events)

    def replaced(self, head: LedgerHeader, events: Sequence[Event]) -> Ledger:
        """Return a ledger with the same ranges."""
        return Ledger(head, self._table if self.rows is None else self.rows, events)

    @property
    def ranges(self) -> pa.Table:
        if self._table is None:
            self._table = to_table(self.rows or ())
        return self._table

    def __len__(self) -> int:
        return self.size

    @cached_property
    def first_sequences(self) -> Sequence[int]:
        return self._longs("first")

    @cached_property
    def last_sequences(self) -> Sequence[int]:
        return self._longs("last")

    @cached_property
    def message_counts(self) -> Sequence[int]:
        return self._longs("message_count")

    def _longs(self, name: str) -> Sequence[int]:
        """Return a column as a list or a view of memory."""
        if self.rows is not None:
            return [getattr(r, name) for r in self.rows]
        array = self._column(name)
        if not len(array):
            return ()
        view = memoryview(array.buffers()[1]).cast("q")
        return cast(Sequence[int], view[array.offset : array.offset + len(array)])

    @cached_property
    def _states(self) -> frozenset[str]:
        return frozenset(r.state for r in self.rows or ())

    @cached_property
    def end_sequence(self) -> int:
        """Return the last sequence that is not unread."""
        return self.last_sequences[-1] if self.size else self.head.start_sequence

    def range_at(self, row: int) -> Range:
        if self.rows is not None:
            return self.rows[row]
        return Range(*(self._column(name)[row].as_py() for name in FIELDS))

    def state_at(self, row: int) -> str:
        if self.rows is not None:
            return self.rows[row].state
        return cast(str, self._column("state")[row].as_py())

    def ranges_at(self, rows: Sequence[int]) -> list[Range]:
        if self.rows is not None:
            return [self.rows[row] for row in rows]
        return list(to_ranges(self.ranges.take(pa.array(rows, pa.int64())))) if rows else []

    def values_at(self, name: str, rows: Sequence[int]) -> list[Any]:
        if self.rows is not None:
            return [getattr(self.rows[row], name) for row in rows]
        return cast(list[Any], self._column(name).take(pa.array(rows, pa.int64())).to_pylist())

    def __iter__(self) -> Iterator[Range]:
        return to_ranges(self.ranges) if self.rows is None else iter(self.rows)

    def find(self, states: Sequence[str], *conditions: Condition) -> list[int]:
        """Return the rows with one of the states and all conditions, in order."""
        if self.rows is None:
            mask = self._mask(states, conditions)
            return cast(list[int], pc.indices_nonzero(mask).to_pylist())
        if self._states.isdisjoint(states):
            return []
        tests = _row_tests(conditions)
        return [row for row, r in enumerate(self.rows) if r[_STATE] in states and _passes(r, tests)]

    def count(self, states: Sequence[str] = STATES, *conditions: Condition) -> int:
        """Count the messages of the ranges that :meth:`find` finds."""
        if self.rows is None:
            mask = self._mask(states, conditions)
            return pc.sum(self._column("message_count").filter(mask)).as_py() or 0
        return sum(r.message_count for r in self.ranges_at(self.find(states, *conditions)))

    def minimum(self, name: str, states: Sequence[str], *conditions: Condition) -> int | None:
        """Return the least value of a field among the ranges that :meth:`find` finds, or None."""
        if self.rows is None:
            mask = self._mask(states, conditions)
            return cast(int | None, pc.min(self._column(name).filter(mask)).as_py())
        ranges = self.ranges_at(self.find(states, *conditions))
        values = (getattr(r, name) for r in ranges)
        return min((value for value in values if value is not None), default=None)

    def distinct(self, name: str, states: Sequence[str]) -> set[Any]:
        if self.rows is None:
            return set(pc.unique(self._column(name).filter(self._mask(states, ()))).to_pylist())
        at = FIELDS.index(name)
        return {r[at] for r in self.rows if r[_STATE] in states}

    def _mask(self, states: Sequence[str], conditions: Sequence[Condition]) -> pa.Array:
        """Return a mask of the table's rows. Null counts as false."""
        mask = reduce(pc.or_, [self._state_mask(state) for state in states])
        for name, test, value in conditions:
            mask = pc.and_(mask, _TESTS[test][1](self._column(name), value))
        return mask

    def _state_mask(self, state: str) -> pa.Array:
        if state not in self._masks:
            self._masks[state] = pc.equal(self._column("state"), state)
        return self._masks[state]

    def _column(self, name: str) -> pa.Array:
        """Return a column of the table, with instants as integers."""
        if name not in self._columns:
            whole = self.ranges[name].chunk(0)  # the only one
            self._columns[name] = whole.cast(pa.int64()) if name in INSTANTS else whole
        return self._columns[name]

    def rows_held(self, lease_id: str) -> list[int]:
        """Return the rows that a lease holds. It may hold expired ranges too."""
        return self.find((LEASED, AVAILABLE), ("lease_id", "=", lease_id))

    def held(self, lease_id: str) -> list[Range]:
        return self.ranges_at(self.rows_held(lease_id))

    def overlapping(self, first: int, last: int) -> range:
        """Return the rows of the ranges that overlap the sequences ``first..last``."""
        if last < first:
            return range(0)
        start = bisect_right(self.first_sequences, first) - 1
        if start < 0 or self.last_sequences[start] < first:
            start += 1
        return range(start, bisect_left(self.first_sequences, last + 1))


_RowTest = tuple[int, Callable[[Any, Any], Any], Any]


def _row_tests(conditions: Sequence[Condition]) -> list[_RowTest]:
    return [(FIELDS.index(name), _TESTS[test][0], value) for name, test, value in conditions]


def _passes(r: Range, tests: Sequence[_RowTest]) -> bool:
    return all(
        test is _is_null if r[at] is None else test(r[at], value) for at, test, value in tests
    )
