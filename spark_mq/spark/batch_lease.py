"""Define the lease of a batch in foreachBatch.

The lease reads the batch, settles rows of it, and lets a sink take it once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_mq.errors import InvalidOption, LeaseLost
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.ledger.settle import ACK, SettleCommand
from spark_mq.operations.settle import SettleResult
from spark_mq.spark import settle_rows as rows
from spark_mq.spark.batch_publish import BatchPublisher
from spark_mq.spark.lease_lookup import BatchLeases
from spark_mq.spark.lease_router import LeaseRouter
from spark_mq.streaming.offset import parse_lease_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.queue import Messages, Queue
    from spark_mq.storage.message_store import PublishReceipt

__all__ = ["BatchLease"]


class BatchLease:
    """The lease of the batch that ``process(batch, lease)`` works on.

    A batch of one queue has one lease. A batch of several queues has one for each.

    Attributes
    ----------
    lease_ids
        The ids of the batch's leases.
    settled
        Messages settled so far.
    """

    def __init__(self, owners: LeaseRouter, found: BatchLeases, batch: DataFrame) -> None:
        self._owners = owners
        self._batch = batch
        self._base = found.base
        self._acked: list[list[Range]] | None = None
        self._publisher = BatchPublisher()
        self.lease_ids = tuple(found.lease_ids)
        self.settled = 0

    @property
    def lease_id(self) -> str:
        """Return the id of the batch's lease, or of its first one."""
        return self.lease_ids[0]

    @property
    def delta_options(self) -> dict[str, str]:
        """Return options that make a Delta table append this batch once.

        ``txnAppId`` is the id of the stream, ``txnVersion`` the number of the batch. Do not use a
        constant app id with Spark's batch id instead. Two workers, or a new checkpoint, count from
        0 again, and Delta then skips batches silently.

        Returns
        -------
        dict
            Options of a Delta writer.

        Raises
        ------
        InvalidOption
            The batch is a union of streams, so no transaction covers all of it.

        Examples
        --------
        >>> df.write.format("delta").mode("append").options(**lease.delta_options).save(path)
        ... # doctest: +SKIP
        """
        parts = self._base or parse_lease_id(self.lease_id)
        if parts is None or (len(self.lease_ids) != 1 and self._base is None):
            raise InvalidOption(
                f"delta_options and publish_options are not available: this batch has "
                f"{len(self.lease_ids)} leases. Write the rows of each queue by itself",
                option="delta_options",
                value=self.lease_ids,
            )
        return {"txnAppId": parts[0], "txnVersion": str(parts[1])}

    @property
    def publish_options(self) -> dict[str, str]:
        """Return options that make a queue take this batch's messages once.

        ``producerId`` is made from the stream, ``producerSequence`` is the number of the batch. If
        a batch writes to one queue twice, add ``.option("producerPart", name)`` to each write but
        one.

        Returns
        -------
        dict
            Options of ``df.write.format("spark_mq")``.

        Raises
        ------
        InvalidOption
            The batch is a union of streams, so no number covers all of it.

        Examples
        --------
        >>> df.write.format("spark_mq").mode("append").options(**lease.publish_options).save(path)
        ... # doctest: +SKIP
        """
        return self._publisher.options(*self.delta_options.values())

    def publish(
        self, queue: Queue, messages: Messages, *, part: str | None = None
    ) -> PublishReceipt:
        """Publish messages from the driver, once across a crash of this batch.

        Parameters
        ----------
        queue
            The queue to publish to.
        messages
            As for :meth:`spark_mq.Queue.publish`. A replay of the batch must give the same.
        part
            A name for this call, if the batch publishes to the queue more than once.

        Returns
        -------
        PublishReceipt
            With ``duplicate=True`` if an earlier run of the batch has published.

        Raises
        ------
        InvalidOption
            The batch is a union of streams, or it has published this part.

        Examples
        --------
        >>> lease.publish(queue, [f"{batch.count()} orders"])  # doctest: +SKIP
        """
        stream, number = self.delta_options.values()
        return self._publisher.publish(queue, messages, stream, number, part)

    def read(self) -> DataFrame:
        """Read the leased messages with Spark's own Parquet reader.

        ``batch`` itself is read like that if only a choice of columns is between the source and
        foreachBatch. Otherwise this method is faster for large batches in few files, because no
        byte goes through Python. The rows and columns are those of the source, without the query's
        own changes. They come in no order. Messages that are settled by now are left out, except
        by ``ack="first"``. Spark counts no input rows. If `batch` has the columns ``data`` and
        ``data_error`` of ``valueSchema``, they are parsed again.

        Spark must be able to read the object store itself. The source's ``storageOptions.*`` do not
        reach it. A lease in thousands of pieces, or in files with unusual names, is read as
        ``batch``.

        Returns
        -------
        DataFrame
            The messages, in the source's columns.

        Raises
        ------
        CorruptLog
            A file has fewer rows than its commit claims. A file that is broken inside fails the
            Spark job.
        StorageError
            A file cannot be reached.

        Examples
        --------
        >>> def process(batch, lease):
        ...     lease.read().groupBy("key").count().write.mode("append").parquet("/tables/counts")
        """
        from spark_mq.spark.json_values import is_parsed, with_data
        from spark_mq.spark.parquet_read import read_held

        held = self._held() if self._acked is None else self._acked
        groups = map(self._owners.of, self.lease_ids)
        rows = read_held(
            self._batch.sparkSession, zip(groups, held, strict=True), several=self._base is not None
        )
        if rows is None:
            return self._batch
        schema = self._batch.schema
        return with_data(rows, schema["data"].dataType) if is_parsed(schema) else rows

    def _held(self) -> list[list[Range]]:
        """Return the ranges that each lease holds now."""
        return [
            self._owners.of(lease_id)._ledger.current().held(lease_id)
            for lease_id in self.lease_ids
        ]

    def _ack_first(self) -> None:
        """Ack the batch before its handler runs.

        Raises LeaseLost if others may have some of it by now: then nothing is handed over.
        """
        self._acked = self._held()
        for lease_id, held in zip(self.lease_ids, self._acked, strict=True):
            if not held or any(r.state != LEASED for r in held):
                raise LeaseLost(
                    f"lease {lease_id} expired before its messages were handed over. With "
                    f"ack='first' they are left to other workers",
                    lease_id=lease_id,
                    lost=[],
                    message_ids=[],
                    result=SettleResult(0),
                )
        commands = [SettleCommand(ACK, lease_id) for lease_id in self.lease_ids]
        self.settled += sum(outcome.settled for outcome in self._owners.settle(commands))

    def ack(self, df: DataFrame) -> SettleResult:
        """Ack rows of the batch now.

        Parameters
        ----------
        df
            Rows with ``sequence`` and ``lease_id``. Persist them first if a second evaluation may
            give other rows.

        Returns
        -------
        SettleResult
            How many messages this call settled, and how many were settled before.

        Raises
        ------
        InvalidSchema
            A column is missing, or null.
        LeaseLost
            The lease does not hold some rows any more. The others are settled.
        """
        return self._count(rows.ack(df, self._owners))

    def nack(self, df: DataFrame, *, delay: Any = None, error: str | None = None) -> SettleResult:
        """Give rows of the batch back as failed, now.

        Parameters
        ----------
        df
            Rows with ``sequence`` and ``lease_id``, and maybe ``delay`` and ``error``.
        delay
            When they are due again: seconds, or text such as "30s". Default: by the group's retry
            policy. A column of this name takes precedence.
        error
            The reason. A column of this name takes precedence. Default: none.

        Returns
        -------
        SettleResult
            As :meth:`ack`. It also raises the same errors.
        """
        return self._count(rows.nack(df, self._owners, delay=delay, error=error))

    def reject(self, df: DataFrame, *, error: str | None = None) -> SettleResult:
        """Make rows of the batch dead now.

        Parameters
        ----------
        df
            Rows with ``sequence`` and ``lease_id``, and maybe ``error``.
        error
            The reason. A column of this name takes precedence. Default: none.

        Returns
        -------
        SettleResult
            As :meth:`ack`. It also raises the same errors.
        """
        return self._count(rows.reject(df, self._owners, error=error))

    def _count(self, result: SettleResult) -> SettleResult:
        self.settled += result.settled + result.already_settled
        return result
