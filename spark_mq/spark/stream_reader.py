"""Read a stream of leases. Each micro-batch is a lease.

This is the stream reader of ``format("spark_mq")``.
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
from spark_mq.spark.schema import check_projection
from spark_mq.util.clock import SECOND

if TYPE_CHECKING:
    from spark_mq.spark.options import ReadOptions
    from spark_mq.streaming.multi_source import MultiQueueSource
    from spark_mq.streaming.source import StreamSource

__all__ = ["LeaseReader"]


class LeaseReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Leases the messages of each micro-batch.

    Spark calls the hooks one at a time, in a separate Python process for each run of a query.
    That process has no session. A second process builds the reader too, and pickles it for the
    tasks. So ``__init__`` does nothing, and the first hook opens the queue. The modules that only
    the hooks need are loaded there too. Each new task process would wait for them.

    Parameters
    ----------
    given
        The options as Spark passes them, with lower-cased names.
    schema
        The columns to read.
    """

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self._given = given
        self.schema = schema
        self._idle = 0  # looks in a row that found nothing

    @cached_property
    def options(self) -> ReadOptions:
        """Return the checked options. The first hook checks them.

        Spark would hide an error that is raised while it builds the reader.
        """
        from spark_mq.spark.options import ReadOptions

        options = ReadOptions.parse(self._given)
        check_projection(self.schema, options.several, options.value_schema)
        return options

    @cached_property
    def source(self) -> StreamSource | MultiQueueSource:
        """Return the rules of the stream. They stay in this process.

        The first hook makes them.
        """
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
        """Return the offset before the first batch.

        Spark calls this once for a new checkpoint, before any other hook. It creates the group if
        that does not exist.

        Returns
        -------
        dict
            Batch 0 of a new stream id. With several queues, also their number.

        Raises
        ------
        InvalidOption
            An option is invalid.
        NotAQueue
            There is no queue at the path.
        """
        return self.source.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return ``maxMessagesPerTrigger`` as a limit.

        Spark calls this at each trigger and passes the result to :meth:`latestOffset`.
        """
        return ReadMaxRows(self.options.stream.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Lease only messages that are published and due now.

        Spark calls this once, before the first batch of a query with Trigger.AvailableNow.
        """
        self.source.limit_to_current()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the offset of the next batch, or `start`.

        It is `start` if no message is due. Spark calls this once a trigger. With the default
        trigger that is about every 10 ms while nothing is due. So idle calls wait between
        ``minPollInterval`` and ``maxPollInterval``. It leases nothing. Spark logs the offset before
        it gets the partitions. A call means that Spark has committed the batch before. The
        unsettled messages of that batch are then acked (``ackMode=onCommit``).

        Parameters
        ----------
        start
            The end offset of the last batch.
        limit
            The limit of :meth:`getDefaultReadLimit`, or ReadAllAvailable. Both lease up to
            ``maxMessagesPerTrigger``.

        Returns
        -------
        dict
            The next batch number and the stream id.

        Raises
        ------
        InvalidOption
            The limit is of another kind, or the checkpoint is another source's.
        DataLossError
            The queue's hard limit dropped unsettled messages, and ``failOnDataLoss`` is true.
        """
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise InvalidOption(
                f"the read limit {limit!r} is not supported. Use maxMessagesPerTrigger",
                option="limit",
                value=repr(limit),
            )
        if self._idle and not self.source.is_limited:
            doubled = self.options.min_poll * 2 ** min(self._idle - 1, 20)
            time.sleep(min(self.options.max_poll, doubled) / SECOND)
        end = self.source.latest(start)
        self._idle = self._idle + 1 if end == start else 0
        return end

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the group's stats for the progress of the query.

        They are those of the last look. Spark calls this once a trigger, after
        :meth:`latestOffset`.
        """
        return self.source.progress()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Lease batch `end` and return its slices, one partition for each task.

        Spark calls this once a batch, and again with the same offsets if it plans the batch again.
        Repeated calls of a run return the same. The first batch of a restarted query may be a
        replay. It takes over the messages that the batch still holds and leases nothing new.

        Returns
        -------
        list of InputPartition
            Slices of about 64 MB or 50,000 messages, at least ``minPartitions``. None if
            nothing could be leased. In an ordered group all messages of a lane are in one
            partition, in the order of sequence.

        Raises
        ------
        StreamFenced
            Another driver runs this checkpoint.
        """
        plans = [
            partitions.QueuePlan(group.queue_path, plan.slices, plan.lane_runs)
            for group, plan in self.source.plans(start, end)
        ]
        return partitions.cut_all(plans, self.options.storage_options, self.options.min_partitions)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing.

        Spark calls this after the batch *behind* `end` was planned, so an ack here would come too
        late. :meth:`latestOffset` shows earlier that a batch is done, also for the last one.
        """

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a partition as Arrow batches.

        Spark calls this in a Python worker of an executor, once for each attempt of a task. It is
        not called if Spark's Parquet reader reads the batch (see ``for_each_batch``).

        Raises
        ------
        StorageError
            A file cannot be reached, or does not match its commit.
        """
        return partitions.read(partition, self.schema)

    def stop(self) -> None:
        """End the extension of the lease. Spark calls this once, when the query ends.

        The last lease is not given back, because the batch may be replayed.
        """
        if "source" in self.__dict__:
            self.source.stop()
