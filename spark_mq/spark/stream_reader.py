"""Read a stream of leases: the stream reader of ``format("spark_mq")``.

Each micro-batch is a lease.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from spark_mq.errors import InvalidOption
from spark_mq.spark import partitions
from spark_mq.util.clock import SECOND

if TYPE_CHECKING:
    from spark_mq.spark.options import ReadOptions
    from spark_mq.streaming.multi_source import MultiQueueSource
    from spark_mq.streaming.source import StreamSource


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases the messages of each micro-batch.

    Spark calls the hooks one at a time, in a separate Python process for each run of a query. A
    second process builds the reader too, and pickles it for the tasks. So ``__init__`` does
    nothing, and the first hook opens the queue and loads the modules that tasks don't need.
    """

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self._given = given
        self.schema = schema
        self._idle = 0  # looks in a row that found nothing

    @cached_property
    def options(self) -> ReadOptions:
        """Return the options, which a hook checks, because Spark hides errors before it."""
        from spark_mq.spark.options import ReadOptions

        options = ReadOptions.parse(self._given)
        if options.outcomes:
            raise InvalidOption(
                "outcomes='true' is for spark.read: a stream leases messages that are not settled",
                option="outcomes",
                value="true",
            )
        options.check_columns(self.schema)
        return options

    @cached_property
    def source(self) -> StreamSource | MultiQueueSource:
        """Return the rules of the stream, which stay in the process of the hooks."""
        from spark_mq.streaming.multi_source import MultiQueueSource
        from spark_mq.streaming.source import StreamSource

        groups = self.options.open()
        options = self.options.stream
        return (
            MultiQueueSource(groups, options)
            if self.options.several
            else StreamSource(groups[0], options)
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"_given": self._given, "schema": self.schema, "_idle": self._idle}

    def initialOffset(self) -> dict[str, Any]:
        """Return batch 0 of a new stream, and create the group, for a new checkpoint."""
        return self.source.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxMessagesPerTrigger``."""
        return ReadMaxRows(self.options.stream.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Lease only messages that are published and due now."""
        self.source.limit_to_current()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset of the next batch, or `start` if no message is due. It leases nothing.

        Idle calls wait between ``pollInterval`` and ``idlePollInterval``. A call means that Spark
        has committed the batch before, so its unsettled messages are acked (``ack=on_success``).
        Raises DataLossError if the queue's hard limit dropped unsettled messages, and InvalidOption
        for a foreign checkpoint or ``trigger(once=True)``.
        """
        if isinstance(limit, ReadAllAvailable):
            # Spark never says that this one batch is committed, so nothing would ack it.
            raise InvalidOption(
                "trigger(once=True) is not supported, because its batch would not be acked. Use "
                "trigger(availableNow=True)",
                option="once",
                value=True,
            )
        if self._idle and not self.source.is_limited:
            doubled = self.options.poll * 2 ** min(self._idle - 1, 20)
            pause = min(self.options.idle_poll, doubled) / SECOND
            time.sleep(pause)
            # Half, so that streams that look in turn do not wait for each other's looks.
            if not self.source.may_have_news(pause / 2):
                self._idle += 1
                return start
        end = self.source.latest(start)
        # A query over what is there now would end if nothing is leased.
        while end == start and self.source.is_limited and (wait := self.source.rate_wait()):
            time.sleep(min(1.0, wait))
            end = self.source.latest(start)
        self._idle = self._idle + 1 if end == start else 0
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the group's stats of the last look, for the progress of the query."""
        return self.source.progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Lease batch `end` and return its slices, one partition for each task.

        Repeated calls of a run return the same. A replay takes over the messages that the batch
        still holds. Raises StreamFenced if another driver runs this checkpoint.
        """
        plans = [
            partitions.QueuePlan(group.queue_path, plan.slices, plan.lane_runs)
            for group, plan in self.source.plans(start, end)
        ]
        return partitions.cut_all(plans, self.options.storage_options, self.options.min_partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing, because :meth:`latestOffset` shows earlier that a batch is done."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a partition. Not called if Spark's Parquet reader reads the batch instead."""
        return partitions.read(partition, self.schema)

    def stop(self) -> None:
        """End the lease's extension. The lease is kept, because its batch may be replayed."""
        if "source" in self.__dict__:
            self.source.stop()
