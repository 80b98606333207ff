"""Define a range of messages in one state, and tables of ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

import pyarrow as pa

from spark_mq.ledger.intervals import Interval, intersect
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.states import SETTLED

__all__ = [
    "EVENT",
    "FIELDS",
    "HEADER",
    "INSTANTS",
    "RANGE_SCHEMA",
    "Range",
    "range_between",
    "to_ranges",
    "to_table",
]

HEADER: Final = "header"  # state of the stored header row
EVENT: Final = "event"  # state of the stored rows that record a commit's events

_INSTANT = pa.timestamp("us", tz="UTC")


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
    """Messages in its lease, or for an available suspect in the failed one. 1 blames it alone."""
    first_leased_at: int | None = None
    first_failed_at: int | None = None
    delivery_count: int = 0
    failure_count: int = 0
    suspect: bool = False
    """Failed as part of a whole lease: the culprit is unknown. A lease keeps it for a release."""
    available_at: int | None = None
    reason: str | None = None  # why it is dead, blocked, in transfer, or due before its time
    error: str | None = None  # of the last failure

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
            first = index.first_at_or_after(first) or first
            last = index.last_at_or_before(last) or last
        return self._replace(first=first, last=last, message_count=count)

    def within(self, intervals: Iterable[Interval], index: MessageIndex) -> list[Range]:
        """Return the pieces of this range within some intervals, without empty ones."""
        parts = intersect([(self.first, self.last)], intervals)
        pieces = [self.slice(first, last, index) for first, last in parts]
        return [piece for piece in pieces if piece.message_count]

    def as_settled(self) -> Range:
        """Return this range as settled, without any other detail."""
        return Range(self.first, self.last, SETTLED, self.message_count)


FIELDS: Final = Range._fields
_state_fields: Final = attrgetter(
    *(name for name in FIELDS if name not in ("first", "last", "message_count"))
)
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
