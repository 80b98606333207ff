"""Read all messages in a batch, without a lease: the batch reader of ``format("spark_mq")``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from spark_mq.ledger.ranges import SETTLED, Range, range_between
from spark_mq.ledger.schedule import unread_range
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.history import OUTCOMES, SettledRange, find_settled, show_outcomes
from spark_mq.spark import partitions
from spark_mq.spark.options import ReadOptions
from spark_mq.util.clock import to_micros

# Columns with one value for all messages of a range, each with the range's attribute.
_COLUMNS: Final[Mapping[str, str]] = {
    "state": "state",
    "delivery_count": "delivery_count",
    "failure_count": "failure_count",
    "worker_id": "worker",
    "lease_id": "lease_id",
    "lease_expires_at": "expires_at",
    "available_at": "available_at",
    "reason": "reason",
    "error": "error",
    "outcome": "outcome",  # with the option outcomes
    "settled_at": "settled_at",
}
# Attributes that an ended message lacks.
_HELD: Final = ("worker", "lease_id", "expires_at", "available_at")
_COMPARE: Final[Mapping[type, Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, wanted: value in wanted,
}
_MAX: Final = 2**63 - 1

# The attribute of a range, the comparison, and the other value.
Condition = tuple[str, Callable[[Any, Any], bool], Any]


@dataclass(frozen=True, slots=True)
class PeekFilters:
    """The messages that a batch read wants. Spark applies all filters to them again."""

    conditions: tuple[Condition, ...] = ()
    first: int = 0  # sequences, inclusive
    last: int = _MAX

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> PeekFilters:
        """Return the wanted messages. Filters of other columns or kinds leave nothing out."""
        conditions: list[Condition] = []
        first, last = 0, _MAX
        for filter in filters:
            compare = _COMPARE.get(type(filter))
            column: tuple[str, ...] = getattr(filter, "attribute", ())
            if compare is None or len(column) != 1:
                continue
            wanted = _plain(filter.value)  # type: ignore[attr-defined]
            if column[0] in _COLUMNS and wanted is not None:
                conditions.append((_COLUMNS[column[0]], compare, wanted))
            elif column[0] == "sequence" and wanted is not None:
                low, high = _bounds(filter, wanted)
                first, last = max(first, low), min(last, high)
        return cls(tuple(conditions), first, last)

    def overlaps(self, r: Range | SettledRange) -> bool:
        """Return whether a range has a sequence that may be wanted."""
        return r.last >= self.first and r.first <= self.last

    def may_keep_ended(self, states: Iterable[str]) -> bool:
        """Return whether ended messages may be wanted. They have one of some states."""
        return all(
            any(compare(state, wanted) for state in states)
            if name == "state"
            else name not in _HELD
            for name, compare, wanted in self.conditions
        )

    def keep(self, r: Range | SettledRange) -> bool:
        """Return whether messages of a range may be wanted. A null meets no condition."""
        return self.overlaps(r) and all(
            (value := getattr(r, name)) is not None and compare(value, wanted)
            for name, compare, wanted in self.conditions
        )


def _bounds(filter: Filter, wanted: Any) -> tuple[int, int]:
    if isinstance(filter, EqualTo):
        return wanted, wanted
    if isinstance(filter, In):
        return min(wanted, default=_MAX), max(wanted, default=0)
    if isinstance(filter, GreaterThan | GreaterThanOrEqual):
        return wanted + isinstance(filter, GreaterThan), _MAX
    return 0, wanted - isinstance(filter, LessThan)


def _plain(value: Any) -> Any:
    """Return the value of a filter as a range has it, or None if it cannot be compared."""
    if isinstance(value, datetime):
        return to_micros(value) if value.tzinfo is not None else None
    if isinstance(value, tuple):
        plain = tuple(map(_plain, value))
        return None if None in plain else plain
    return value


class PeekReader(DataSourceReader):
    """Reads all messages of the log, or those settled, as the group sees them. Changes nothing."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        options.check_columns(schema)
        self.options = options
        self.schema = schema
        self.filters = PeekFilters()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:
        """Take the filters of a query. Spark still applies all of them."""
        # Without spark.sql.python.filterPushdown.enabled Spark does not call it, and refuses a
        # reader that overrides it. So Spark finds the method of the base class here.
        push = partial(self._push_filters)
        push.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        return push

    def _push_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.filters = PeekFilters.of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the slices of all messages of this moment. Raise NotAQueue or GroupNotFound."""
        groups = self.options.open()
        for group in groups if self.options.group_named else ():
            group.require_group()
        find = _settled_pieces if self.options.outcomes else _all_pieces
        plans = [
            partitions.QueuePlan(group.queue_path, find(group, self.filters)) for group in groups
        ]
        return partitions.cut_all(plans, self.options.storage_options, self.options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition, self.schema)


def _all_pieces(group: GroupLedger, filters: PeekFilters) -> list[partitions.Piece]:
    """Return the wanted messages that the log still has, with their ranges."""
    ledger = group.current()
    index, horizon = group.index_for(ledger), group.queue.horizon()
    pieces = [
        range_between(index, horizon + 1, ledger.head.start_sequence, SETTLED),
        *ledger,
        unread_range(ledger, index),
    ]
    ranges: Iterable[Range] = (r for r in pieces if r is not None and filters.overlaps(r))
    if filters.may_keep_ended((*OUTCOMES, SETTLED)):
        # The ledger forgets how a message ended. This reads the history of the group.
        ranges = show_outcomes(group, index, ranges)
    return [
        (piece, r)
        for r in ranges
        if r.message_count and filters.keep(r)
        for piece in index.slices(max(r.first, filters.first), min(r.last, filters.last))
    ]


def _settled_pieces(group: GroupLedger, filters: PeekFilters) -> list[partitions.Piece]:
    """Return the wanted messages that the group has settled, each range with its outcome."""
    # Those without a known outcome are among them, because nobody should miss them silently.
    settled = find_settled(group)
    return [
        (piece, cast(Range, r))  # a partition needs only attributes that it also has
        for r in sorted((*settled.ranges, *settled.unknown), key=attrgetter("first"))
        if filters.keep(r)
        for piece in settled.index.slices(max(r.first, filters.first), min(r.last, filters.last))
    ]
