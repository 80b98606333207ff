"""Read all messages in a batch, without a lease: the batch reader of ``format("spark_mq")``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from spark_mq.ledger.message_range import range_between
from spark_mq.ledger.ranges import SETTLED, Range
from spark_mq.ledger.schedule import unread_range
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.operations.outcomes import OUTCOMES, show_outcomes
from spark_mq.spark import partitions
from spark_mq.spark.options import ReadOptions
from spark_mq.spark.peek_filters import PeekFilters
from spark_mq.spark.schema import check_projection

__all__ = ["PeekReader"]


class PeekReader(DataSourceReader):
    """Reads all messages of the log, with their state in the group. It changes nothing."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_projection(schema, options.several, options.value_schema)
        self.options = options
        self.schema = schema
        self.filters = PeekFilters()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:
        """Take the filters of a query. Spark still applies all of them.

        Without ``spark.sql.python.filterPushdown.enabled`` Spark does not call it, and refuses a
        reader that overrides it. So Spark finds the method of the base class here.
        """
        push = partial(self._push_filters)
        push.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]
        return push

    def _push_filters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.filters = PeekFilters.of(filters)
        return filters

    def partitions(self) -> list[InputPartition]:
        """Return the slices of all messages. All tables are read at this moment, once an execution.

        Raises NotAQueue, or GroupNotFound if ``consumerGroup`` names a group that does not exist.
        """
        groups = self.options.open()
        for group in groups if self.options.group_named else ():
            group.require_group()
        plans = [
            partitions.QueuePlan(group.queue_path, _all_pieces(group, self.filters))
            for group in groups
        ]
        return partitions.cut_all(plans, self.options.storage_options, self.options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition, self.schema)


def _all_pieces(group: GroupLedger, filters: PeekFilters) -> list[partitions.Piece]:
    """Return the wanted messages that the log still has, with their ranges."""
    ledger = group.current()
    index, horizon = group.index_for(ledger), group.horizon()
    found = [
        range_between(index, horizon + 1, ledger.head.ack_floor, SETTLED),
        *ledger,
        unread_range(ledger, index),
    ]
    ranges: Iterable[Range] = (r for r in found if r is not None and filters.overlaps(r))
    if filters.may_keep_ended((*OUTCOMES, SETTLED)):
        # The ledger forgets how a message ended. This reads the history of the group.
        ranges = show_outcomes(group, index, ranges)
    return [
        (piece, r)
        for r in ranges
        if r.message_count and filters.keep(r)
        for piece in index.slices(max(r.first, filters.first), min(r.last, filters.last))
    ]
