"""Read all messages in a batch, without a lease: the batch reader of ``format("spark_mq")``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_mq.ledger.ranges import SETTLED, Range, range_between
from spark_mq.ledger.schedule import unread_range
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.history import find_settled, show_outcomes
from spark_mq.spark import partitions
from spark_mq.spark.options import ReadOptions


class PeekReader(DataSourceReader):
    """Reads all messages of the log, or those settled, as the group sees them. Changes nothing."""

    # It takes no filters (`pushFilters`). Spark 4.2 asks for them once for a DataFrame, and uses
    # the reader with those of its first query for all later ones, which would miss messages.

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        options.check_columns(schema)
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the slices of all messages of this moment. Raise NotAQueue or GroupNotFound."""
        groups = self.options.open()
        for group in groups if self.options.group_named else ():
            group.require_group()
        find = _settled_pieces if self.options.outcomes else _all_pieces
        plans = [partitions.QueuePlan(group.queue_path, find(group)) for group in groups]
        return partitions.cut_all(plans, self.options.storage_options, self.options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition, self.schema)


def _all_pieces(group: GroupLedger) -> list[partitions.Piece]:
    """Return the messages that the log still has, with their ranges."""
    ledger = group.current()
    index, horizon = group.index_for(ledger), group.queue.horizon()
    pieces = [
        range_between(index, horizon + 1, ledger.head.start_sequence, SETTLED),
        *ledger,
        unread_range(ledger, index),
    ]
    ranges: Iterable[Range] = (r for r in pieces if r is not None)
    # The ledger forgets how a message ended. This reads the history of the group.
    return [
        (piece, r)
        for r in show_outcomes(group, index, ranges)
        if r.message_count
        for piece in index.slices(r.first, r.last)
    ]


def _settled_pieces(group: GroupLedger) -> list[partitions.Piece]:
    """Return the messages that the group has settled, each range with its outcome."""
    # Those without a known outcome are among them, because nobody should miss them silently.
    settled = find_settled(group)
    return [
        (piece, cast(Range, r))  # a partition needs only attributes that it also has
        for r in sorted((*settled.ranges, *settled.unknown), key=attrgetter("first"))
        for piece in settled.index.slices(r.first, r.last)
    ]
