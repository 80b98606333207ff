"""The lease of a batch in foreachBatch, which reads the batch and settles rows of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from spark_mq.errors import InvalidOption, LeaseLost
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.ledger.settle import ACK, NACK, REJECT, SettlePart
from spark_mq.ledger.stream_batch import parse_lease_id
from spark_mq.operations.settle import SettleResult
from spark_mq.operations.sinks import (
    AppendGuard,
    LeaseSink,
    check_schema_mode,
    refuse_publish,
    sink_of_lease,
)
from spark_mq.spark import settle_rows as rows
from spark_mq.spark.batch_publish import BatchPublisher
from spark_mq.spark.lease_lookup import BatchLeases
from spark_mq.spark.schema import DATA_COLUMNS
from spark_mq.spark.settle_rows import LeaseRouter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.queue import Messages, Queue
    from spark_mq.storage.publishes import PublishReceipt


class BatchLease:
    """The lease of the batch that ``process(batch, lease)`` works on.

    A batch of one queue has one lease. A batch of several queues has one for each.

    Attributes
    ----------
    lease_ids
        The ids of the batch's leases.
    settled
        The number of messages settled so far.
    """

    def __init__(self, owners: LeaseRouter, leases: BatchLeases, batch: DataFrame) -> None:
        self._owners = owners
        self._batch = batch
        self._union_batch = leases.union_batch
        self._acked: list[list[Range]] | None = None
        self._publisher = BatchPublisher()
        self._guard = AppendGuard(leases.lease_ids[0])
        self.lease_ids = tuple(leases.lease_ids)
        self.settled = 0

    def _begin(self) -> None:
        """Look at what the lease holds before `process` settles rows, if the group has a sink."""
        if len(self.lease_ids) != 1:
            return
        ledger = self._owners.of(self.lease_id)._ledger
        known = ledger.ledgers.read(ledger.name, refresh=None)  # which costs no request
        if ledger.settings_in(known).sink is not None:
            _ = self._granted

    @cached_property
    def _granted(self) -> tuple[list[Range], str | None]:
        """Return what the lease held at the first look, and the sink that it began with."""
        ledger = self._owners.of(self.lease_id)._ledger
        key = ledger.settings().sink_key  # before the look at what the lease holds
        return ledger.current().held(self.lease_id), key

    @property
    def lease_id(self) -> str:
        """Return the id of the batch's lease, or of its first one."""
        return self.lease_ids[0]

    @property
    def delta_options(self) -> dict[str, str]:
        """Return options with which a Delta table appends this batch once.

        ``txnAppId`` is the id of the stream, and ``txnVersion`` the number of the batch. The batch
        id of Spark won't do: a second worker or a new checkpoint counts from 0 again, so Delta
        would skip its batches silently.

        Raises InvalidOption for a union of streams, and over Spark Connect for several queues,
        because no single transaction covers them.

        Examples
        --------
        >>> df.write.format("delta").mode("append").options(**lease.delta_options).save(path)
        ... # doctest: +SKIP
        """
        parts = self._union_batch or parse_lease_id(self.lease_id)
        if parts is None or (len(self.lease_ids) != 1 and self._union_batch is None):
            raise InvalidOption(
                f"delta_options and publish_options are not available: this batch has "
                f"{len(self.lease_ids)} leases. Write the rows of each queue by itself",
                option="delta_options",
                value=self.lease_ids,
            )
        return {"txnAppId": parts[0], "txnVersion": str(parts[1])}

    @property
    def publish_options(self) -> dict[str, str]:
        """Return options with which a queue publishes this batch's messages once.

        If a batch writes to one queue more than once, add ``.option("producerPart", name)`` to all
        of these writes but one.

        Examples
        --------
        >>> df.write.format("spark_mq").mode("append").options(**lease.publish_options).save(path)
        ... # doctest: +SKIP
        """
        return self._publisher.options(*self.delta_options.values())

    def publish(
        self, queue: Queue, messages: Messages, *, part: str | None = None
    ) -> PublishReceipt:
        """Publish messages from the driver, once even if the batch crashes and runs again.

        To a queue that is the group's sink, :meth:`append` publishes once after any crash.

        Parameters
        ----------
        messages
            As for :meth:`spark_mq.Queue.publish`. A replay of the batch must pass the same.
        part
            A name for this call. If the batch publishes to the queue more than once, all of these
            calls but one need a name.

        Returns
        -------
        PublishReceipt
            With ``duplicate=True`` if an earlier run of the batch has published the messages.

        Raises
        ------
        InvalidOption
            As :attr:`delta_options`, this run has published this part, or the queue is the sink.

        Examples
        --------
        >>> lease.publish(queue, [f"{batch.count()} orders"])  # doctest: +SKIP
        """
        stream, number = self.delta_options.values()
        for lease_id in self.lease_ids:
            refuse_publish(self._owners.of(lease_id)._ledger, queue.path)
        return self._publisher.publish(queue, messages, stream, number, part)

    def append(self, df: DataFrame, *, schema_mode: Literal["merge"] | None = None) -> bool:
        """Append the rows of this batch to the group's sink, once, after any crash.

        The sink is a Delta table or a queue, set by ``group.configure(sink=...)``. If an earlier
        run of the batch, or another holder of its messages, has appended, nothing is written. One
        that is only slow can append no longer.

        Nack or reject rows that are not in `df` *before* the append: the sink counts as having all
        others. Afterwards only the whole batch can be given back, by an error of `process`.

        Parameters
        ----------
        df
            For a table, rows with its columns and types, in any order. For a queue, rows as for
            ``df.write.format("spark_mq")``.
        schema_mode
            "merge" adds new columns to a table, and rows may lack columns of it, which become null.

        Returns
        -------
        bool
            Whether this call wrote the rows, and not an earlier delivery.

        Raises
        ------
        InvalidOption
            The group has no sink, the batch is of several queues or was appended before, or the
            table has constraints or features that an append of files does not keep.
        InvalidSchema
            The columns of `df` do not fit.
        LeaseLost
            Another worker has the messages, or a settle of single rows failed or lost some.

        Examples
        --------
        >>> def process(batch, lease):
        ...     lease.append(batch.selectExpr("CAST(value AS STRING) AS text"))
        """
        check_schema_mode(schema_mode)
        if len(self.lease_ids) != 1:
            raise InvalidOption(
                f"append is not available: this batch has {len(self.lease_ids)} leases, and a sink "
                "is of one group. Read one queue",
                option="df",
                value=self.lease_ids,
            )
        from spark_mq.spark.sink_frame import append_frame

        def target() -> LeaseSink:
            held, key = self._granted
            if not held:
                raise LeaseLost(
                    f"lease {self.lease_id} holds no messages", lease_id=self.lease_id, lost=[]
                )
            return sink_of_lease(self._owners.of(self.lease_id)._ledger, self.lease_id, held, key)

        return self._guard.append(
            target,
            lambda sink, own: append_frame(sink, df, own, schema_mode),
            type(df).__name__,
        )

    def read(self) -> DataFrame:
        """Read the leased messages with Spark's own Parquet reader.

        This is faster for large batches in few files. You need it only if the query does more than
        choose columns between the source and foreachBatch: otherwise `batch` is read in this way.

        The rows and columns are those of the source, without the query's own changes, and in no
        order. Messages that are already settled are left out, except with ``ack="on_receive"``.
        Spark does not count them as input rows.

        Spark must be able to read the object store by its own settings, because the source's
        ``storageOptions.*`` do not reach it. If a file has an unusual name or other column types,
        the lease is in thousands of pieces, or the values are parsed by ``valueSchema``, the result
        is the batch as `process` got it, with its settled messages.

        Raises
        ------
        CorruptLog
            A file has fewer rows than its commit claims.
        StorageError
            A file cannot be reached, or Spark cannot read the store.

        Examples
        --------
        >>> def process(batch, lease):
        ...     lease.read().groupBy("key").count().write.mode("append").parquet("/tables/counts")
        """
        from spark_mq.spark.lease_frame import read_held

        if set(DATA_COLUMNS) <= set(self._batch.columns):
            return self._batch
        held = self._held() if self._acked is None else self._acked
        groups = map(self._owners.of, self.lease_ids)
        rows = read_held(
            self._batch.sparkSession,
            zip(groups, held, strict=True),
            several=self._union_batch is not None,
        )
        return self._batch if rows is None else rows

    def _held(self) -> list[list[Range]]:
        return [
            self._owners.of(lease_id)._ledger.current().held(lease_id)
            for lease_id in self.lease_ids
        ]

    def _ack_first(self) -> None:
        """Ack the batch before its handler runs. Raise LeaseLost if others may have some of it."""
        self._acked = self._held()
        for lease_id, held in zip(self.lease_ids, self._acked, strict=True):
            if not held or any(r.state != LEASED for r in held):
                raise LeaseLost(
                    f"lease {lease_id} expired before its messages were handed over. With "
                    f"ack='on_receive' they are left to other workers",
                    lease_id=lease_id,
                    lost=[],
                    result=SettleResult(0),
                )
        parts = [SettlePart(ACK, lease_id) for lease_id in self.lease_ids]
        self.settled += sum(outcome.settled for outcome in self._owners.settle(parts))

    def ack(self, df: DataFrame) -> SettleResult:
        """Ack rows of the batch now. See :func:`spark_mq.spark.ack`."""
        with self._naming(ACK):
            return self._count(rows.ack(df, self._owners))

    def nack(self, df: DataFrame, *, delay: Any = None, error: str | None = None) -> SettleResult:
        """Give rows of the batch back as failed, now. See :func:`spark_mq.spark.nack`."""
        with self._naming(NACK):
            return self._count(rows.nack(df, self._owners, delay=delay, error=error))

    def reject(self, df: DataFrame, *, error: str | None = None) -> SettleResult:
        """Make rows of the batch dead now. See :func:`spark_mq.spark.reject`."""
        with self._naming(REJECT):
            return self._count(rows.reject(df, self._owners, error=error))

    def _naming(self, verb: str) -> AbstractContextManager[None]:
        groups = map(self._owners.of, self.lease_ids)
        ordered = any(group._ledger.last_settings.order == "key" for group in groups)
        return self._guard.naming(verb, ordered=ordered)

    def _count(self, result: SettleResult) -> SettleResult:
        self.settled += result.settled + result.already_settled
        return result
