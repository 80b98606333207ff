"""``format("spark_mq")``: a stream that leases, a batch read that only looks, and writes that
publish.

The rules are in ``spark_mq.stream``; this is what Spark calls. Hooks run in one runner process per
started stream, tasks on the
executors. ``__init__`` is cheap, for a second process builds the reader too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_mq.errors import InvalidOption
from spark_mq.ledger.ranges import UNREAD, Range
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.spark import partitions
from spark_mq.spark.options import ReadOptions, WriteOptions
from spark_mq.spark.schema import READ_SCHEMA, SEVERAL_SCHEMA, check_projection
from spark_mq.spark.sink import QueueStreamWriter, QueueWriter, check_dataframe
from spark_mq.streaming.multi_source import MultiQueueSource
from spark_mq.streaming.source import StreamSource
from spark_mq.util.clock import SECOND

__all__ = ["SparkMQDataSource"]


class SparkMQDataSource(DataSource):
    """A spark_mq queue as a Spark data source.

    Examples
    --------
    Lease, process and ack in a stream; what the handler returns is settled as failed:

    >>> spark.readStream.format("spark_mq").option("consumerGroup",
    "billing").load("/queues/orders")  # doctest: +SKIP

    Look without leasing:

    >>> spark.read.format("spark_mq").load("/queues/orders").groupBy("state").count()  # doctest:
    +SKIP

    Publish:

    >>> df.select("value").write.format("spark_mq").mode("append").save("/queues/orders")  #
    doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        return "spark_mq"

    def schema(self) -> StructType:
        return SEVERAL_SCHEMA if ReadOptions.parse(self.options).several else READ_SCHEMA

    def reader(self, schema: StructType) -> PeekReader:
        return PeekReader(ReadOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> LeaseReader:
        return LeaseReader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> QueueWriter:
        check_dataframe(schema, overwrite)
        return QueueWriter(WriteOptions.parse(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueueStreamWriter:
        check_dataframe(schema, overwrite)
        return QueueStreamWriter(WriteOptions.parse(self.options))


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream. Hooks are called one at a time."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self._given = given
        self.schema = schema
        self._idle = 0  # looks in a row that found nothing

    @cached_property
    def options(self) -> ReadOptions:
        """Checked by the first hook: an error raised while Spark builds the reader would be hidden
        behind one of its own."""
        options = ReadOptions.parse(self._given)
        check_projection(self.schema, options.several)
        return options

    @cached_property
    def source(self) -> StreamSource | MultiQueueSource:
        """Made by the first hook, in the runner's process."""
        groups = [group._ledger for group in self.options.open()]
        options = self.options.stream
        return (
            MultiQueueSource(groups, options)
            if self.options.several
            else StreamSource(groups[0], options)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "source"}

    def initialOffset(self) -> dict[str, Any]:
        return self.source.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.stream.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        self.source.limit_to_current()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise InvalidOption(
                f"the read limit {limit!r} is not supported; use maxMessagesPerTrigger",
                option="limit",
                value=repr(limit),
            )
        if self._idle and not self.source.is_limited:
            # Spark asks every 10 ms or so while nothing comes: look less often the longer it lasts.
            time.sleep(
                min(self.options.max_poll, self.options.min_poll * 2 ** min(self._idle - 1, 20))
                / SECOND
            )
        end = self.source.latest(start)
        self._idle = self._idle + 1 if end == start else 0
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        return self.source.progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        plans = [(group.queue_path, plan.slices) for group, plan in self.source.plans(start, end)]
        return partitions.cut_all(plans, self.options.storage_options, self.options.min_partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: that a batch is done shows when Spark asks for what follows it, which it does
        for the last batch too."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition, self.schema)

    def stop(self) -> None:
        if "source" in self.__dict__:
            self.source.stop()


class PeekReader(DataSourceReader):
    """The batch read: all messages that the log still has, with their state in the group. Leases
    nothing, changes nothing."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_projection(schema, options.several)
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        plans = [(group._ledger.queue_path, _all(group._ledger)) for group in self.options.open()]
        return partitions.cut_all(plans, self.options.storage_options, self.options.min_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition, self.schema)


def _all(group: GroupLedger) -> list[partitions.Piece]:
    """All messages that the log still has, with their ranges."""
    ledger = group.current()
    index, horizon = group.index_for(ledger), group.horizon()
    first, floor, frontier = horizon + 1, ledger.head.ack_floor, ledger.tracked_up_to
    ranges = [
        Range(first, floor, "settled", index.count(first, floor)),
        *ledger,
        Range(
            frontier + 1,
            index.last_sequence,
            UNREAD,
            index.count(frontier + 1, index.last_sequence),
        ),
    ]
    return [
        (piece, r) for r in ranges if r.message_count for piece in index.slices(r.first, r.last)
    ]
