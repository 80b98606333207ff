"""Settling from foreachBatch: `process(batch, lease)` does the work, what it leaves is settled when
it returns or fails."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from spark_mq.errors import (
    InvalidHandlerResult,
    InvalidOption,
    InvalidSchema,
    LeaseLost,
    SparkMQError,
    StorageError,
    StreamFenced,
)
from spark_mq.group import ConsumerGroup
from spark_mq.handler import (
    HandlerPolicy,
    MessageVerdict,
    commands_for,
    describe_held,
    log_outcomes,
)
from spark_mq.ledger.ranges import LEASED, Range
from spark_mq.ledger.settle import ACK, RELEASE, SettleCommand, SettleOutcome
from spark_mq.operations.outages import OUTAGES, is_outage
from spark_mq.operations.settle import SettleResult, summarize
from spark_mq.spark import settle_rows as rows
from spark_mq.spark.lease_lookup import BatchLeases, LeaseLookup
from spark_mq.spark.lease_router import LeaseRouter
from spark_mq.streaming.auto_ack import exclude_from_auto_ack
from spark_mq.streaming.offset import parse_lease_id, stream_id_in_queue
from spark_mq.util.validation import validate_callable, validate_choice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.spark.batch_scan import BatchScan

__all__ = ["BatchLease", "ForEachBatch", "for_each_batch"]

_log = logging.getLogger(__name__)


Process = Callable[["DataFrame", "BatchLease"], "DataFrame | None"]
READERS: Final = ("spark", "python")
_REMOTE_OUTAGE: Final = re.compile(r"spark_mq\.errors\.(?:StorageError|ContentionTimeout)\b.*")
"""An outage in the text of a failed Spark job."""


def for_each_batch(
    group: ConsumerGroup,
    process: Process,
    on_error: str = "nack",
    also: Iterable[ConsumerGroup] = (),
    ack: str = "after",
    *,
    reader: str = "spark",
) -> ForEachBatch:
    """A function for ``writeStream.foreachBatch`` that calls ``process(batch, lease)`` and settles
    the batch's lease.

    When `process` returns, the lease is acked: *the lease minus what it returns*, also messages
    that a filter dropped. It may return a
    DataFrame with ``sequence`` (and ``lease_id``, if the batch has several leases) of rows that are
    settled one by one: ``outcome`` ("ack",
    "nack", "reject"; null, or no such column: failed, by `on_error`), ``delay`` of a nack (seconds,
    or text like "30s"), ``error``. On an
    exception the lease is settled by `on_error`: "nack" (again after a backoff), "reject" (to the
    dead letters), "raise" (the query ends).
    What `process` settles itself stands. ``ack``: "after", or "first" (at-most-once: acked before
    `process` is called), or "manual" (only
    what `process` settles counts, whatever the stream's ackMode; the rest expires and comes again):
    see
    :class:`~spark_mq.handler.HandlerPolicy`. ``also``: the groups of the other queues, where the
    stream reads several; each lease is
    settled
    in its own.

    With "manual" a batch that leaves something costs one commit more, by which the stream knows not
    to ack it. Filter inside `process`, not
    before: over Spark Connect a batch of which no row reaches it cannot be told, and
    ackMode=onCommit acks it.

    ``reader``: "spark" (default), Spark's own Parquet reader reads ``batch``, if nothing but a
    choice of columns stands between the source
    and foreachBatch. The rows, columns and types are the same, and so is the order of the rows.
    None of the bytes go through Python, which
    is faster for large batches. "python": the source's tasks always read ``batch``. They also read
    it over Spark Connect, in a union of
    streams, with ``minPartitions``, for small batches, for leases in many files, and if Spark
    cannot read the store.

    Return failures only for verdicts that depend on the rows alone. A verdict that may differ
    between two runs over the same rows (an API
    answered this time) must be settled with ``lease.nack(df)`` or ``lease.reject(df)`` *before* the
    sink is written: on a replay the
    sink skips the batch, and a row that failed the first time would be acked unwritten.

    Examples
    --------
    >>> def process(batch, lease):
    ...     orders = batch.selectExpr("*", "get_json_object(CAST(value AS STRING), '$.id') AS id")
    ...     lease.reject(orders.where("id IS NULL"), error="no JSON with an id")
    ...     good = orders.where("id IS NOT NULL").select("id", "value")
    ...
    good.write.format("delta").mode("append").options(**lease.delta_options).save("/tables/out")
    >>> stream.writeStream.foreachBatch(group.for_each_batch(process)).start()  # doctest: +SKIP
    """
    validate_callable("process", process, "batch", "lease")
    policy = HandlerPolicy.validated(on_error, ack)
    return ForEachBatch((group, *also), process, policy, validate_choice("reader", reader, READERS))


class BatchLease:
    """The lease of the batch in hand. ``lease_id``: of its one lease (of several queues: the first;
    see ``lease_ids``)."""

    def __init__(self, owners: LeaseRouter, found: BatchLeases, batch: DataFrame) -> None:
        self._owners = owners
        self._batch = batch
        self._base = found.base
        self._acked: list[list[Range]] | None = None
        self.lease_ids = tuple(found.lease_ids)
        self.settled = 0

    @property
    def lease_id(self) -> str:
        return self.lease_ids[0]

    @property
    def delta_options(self) -> dict[str, str]:
        """Options that make an append to a Delta table happen once for this batch: ``txnAppId`` the
        stream, ``txnVersion`` n.

        Never a constant app id with Spark's batch id: two workers, or a new checkpoint, count from
        0 again, and Delta skips silently.
        """
        parts = self._base or parse_lease_id(self.lease_id)
        if parts is None or (len(self.lease_ids) != 1 and self._base is None):
            raise InvalidOption(
                f"this batch holds {len(self.lease_ids)} leases, so no one transaction stands "
                f"for it: write each queue's rows by itself",
                option="delta_options",
                value=self.lease_ids,
            )
        return {"txnAppId": parts[0], "txnVersion": str(parts[1])}

    def read(self) -> DataFrame:
        """What the batch's leases hold at this moment, read by Spark's own Parquet reader: for
        large batches, instead of ``batch``.

        The same rows and columns as the stream gives, in no order, but for those settled by now
        (not by ``ack="first"``); what the query
        does between the source and foreachBatch is not in it. None of the bytes go through Python,
        which is faster where a lease lies in
        few and large files; of a file that holds but a small part of the lease, all is read. Spark
        counts no input rows for it. An object
        store must be known to Spark, too: ``storageOptions.*`` are delta-rs's. It is ``batch``
        where the lease lies in thousands of pieces,
        or where a foreign writer's file names are none that Spark tells as they are.

        Raises
        ------
        CorruptLog
            A file is not as its commit says. (One that is broken within is an error of the Spark
            job.)
        StorageError
            A file is out of reach.
        """
        from spark_mq.spark.parquet_read import read_held

        held = self._held() if self._acked is None else self._acked
        groups = map(self._owners.of, self.lease_ids)
        rows = read_held(
            self._batch.sparkSession, zip(groups, held, strict=True), several=self._base is not None
        )
        return self._batch if rows is None else rows

    def _held(self) -> list[list[Range]]:
        """What each of the leases holds now."""
        return [
            self._owners.of(lease_id)._ledger.current().held(lease_id)
            for lease_id in self.lease_ids
        ]

    def _ack_first(self) -> None:
        """Acks before anything is done. Raises LeaseLost, and hands nothing over, if others may
        have some of it by now."""
        self._acked = self._held()
        for lease_id, held in zip(self.lease_ids, self._acked, strict=True):
            if not held or any(r.state != LEASED for r in held):
                raise LeaseLost(
                    f"lease {lease_id} ran out before its messages were handed over: with "
                    f"ack='first' they are left to others",
                    lease_id=lease_id,
                    lost=[],
                    message_ids=[],
                    result=SettleResult(0),
                )
        self.settled += sum(
            o.settled
            for o in self._owners.settle(
                [SettleCommand(ACK, lease_id) for lease_id in self.lease_ids]
            )
        )

    def ack(self, df: DataFrame) -> SettleResult:
        """Settles some rows as done, now."""
        return self._count(rows.ack(df, self._owners))

    def nack(self, df: DataFrame, *, delay: Any = None, error: str | None = None) -> SettleResult:
        """Gives some rows back as failed, now."""
        return self._count(rows.nack(df, self._owners, delay=delay, error=error))

    def reject(self, df: DataFrame, *, error: str | None = None) -> SettleResult:
        """Makes some rows dead, now."""
        return self._count(rows.reject(df, self._owners, error=error))

    def _count(self, result: SettleResult) -> SettleResult:
        self.settled += result.settled + result.already_settled
        return result


class ForEachBatch:
    """What foreachBatch calls. :meth:`close` lets the batch in hand finish and gives back what
    comes after it."""

    def __init__(
        self,
        groups: tuple[ConsumerGroup, ...],
        process: Process,
        policy: HandlerPolicy,
        reader: str = "python",
    ) -> None:
        self.groups, self._process, self.policy, self.reader = groups, process, policy, reader
        self._owners = LeaseRouter(groups)
        self._finder = LeaseLookup(scans=reader == "spark")
        self._hidden = False  # Spark cannot read the store
        self._idle = threading.Condition()
        self._busy = self._closing = False
        self._came: dict[str, int] = {}  # of each stream, n of its last batch that came here
        self.last_batch: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "groups": self.groups,
            "process": self._process,
            "policy": self.policy,
            "reader": self.reader,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        rows.check_columns(batch)
        with self._idle:
            self._busy = True
            closing = self._closing
        try:
            found = self._finder.find(batch)
            lease_ids = found.lease_ids
            self._came.update(
                (stream, n) for stream, n, _ in filter(None, map(parse_lease_id, lease_ids))
            )
            # Without a row the runner, and so the lease, is not known: ackMode onCommit settles
            # such a batch.
            if lease_ids and closing and found.fresh:
                # Perhaps a replay, whose rows a sink may have already: given back, others would
                # write them once more.
                raise RuntimeError(f"stopping: batch {batch_id} is left to the next start")
            if lease_ids and closing:
                self._owners.settle([SettleCommand(RELEASE, lease_id) for lease_id in lease_ids])
            elif lease_ids:
                if found.fresh:
                    self._owners.begin(lease_ids)
                self._run(self._by_spark(batch, found.scan), BatchLease(self._owners, found, batch))
            if self.policy.ack == "manual":
                self._leave(found)
        finally:
            with self._idle:
                self._busy = False
                self.last_batch = batch_id
                self._idle.notify_all()

    def close(self, timeout: float) -> bool:
        """From now on batches are given back, uncounted. Waits `timeout` seconds for the one in
        hand; False if it still runs."""
        with self._idle:
            self._closing = True
            return self._idle.wait_for(lambda: not self._busy, timeout)

    def give_back(self) -> int:
        """Releases leases of batches that never came here. For when the query has been stopped.
        Returns how many."""
        ledgers = [group._ledger.current() for group in self.groups]
        held = {
            r.lease_id
            for ledger in ledgers
            for r in ledger.ranges_at(ledger.rows_where(ledger.is_state(LEASED)))
            if r.lease_id
        }
        parts = {lease_id: parse_lease_id(lease_id) for lease_id in held}
        late = [
            i
            for i, p in parts.items()
            if p and self._finder.runner(p[0]) == p[2] and p[1] > self._came.get(p[0], p[1])
        ]
        if late:
            self._owners.settle([SettleCommand(RELEASE, lease_id) for lease_id in late])
        return len(late)

    def _by_spark(self, batch: DataFrame, scan: BatchScan | None) -> DataFrame:
        """Return the batch by Spark's own reader, or as it is if Spark cannot read it alike."""
        if scan is None or self._hidden:
            return batch
        from spark_mq.spark.parquet_read import read_scan

        try:
            rows = read_scan(batch, scan, self._owners.of)
        except StorageError as error:
            _log.warning(
                "batches are read through Python, because Spark cannot read them: %s", error
            )
            self._hidden = True
            return batch
        except Exception as error:  # the source's tasks name what is wrong with a file
            _log.debug("this batch is read through Python: %s", error)
            return batch
        if rows is None:
            return batch
        scan.count_rows()
        return rows

    def _run(self, batch: DataFrame, lease: BatchLease) -> None:
        start = time.monotonic()
        if self.policy.ack == "first":
            lease._ack_first()
        result: list[MessageVerdict] | Exception
        try:
            returned = self._process(batch, lease)
            _check_returned(returned)
            result = self._verdicts(returned, lease)
        except (StreamFenced, InvalidHandlerResult):
            raise
        except Exception as failure:
            if (outage := self._outage(failure, lease)) is not None:
                self._release(lease)
                if outage is failure:
                    raise
                raise outage from failure
            if self.policy.on_error == "raise":
                self._owners.check(lease.lease_ids)
                raise
            self._log_failure(lease)
            result = failure
        commands = commands_for(result, self.policy, dict.fromkeys(lease.lease_ids))
        outcomes = self._settle(lease, commands, start)
        if isinstance(result, Exception):
            for one, outcome in zip(commands, outcomes, strict=True):
                ledger = self._owners.of(one.lease_id)._ledger
                log_outcomes(ledger.name, ledger.now(), [(one, outcome)])

    def _outage(self, failure: Exception, lease: BatchLease) -> Exception | None:
        """Return the error of the store behind a failure of `process`, or None.

        A Spark job that failed in an executor tells its cause only as text, and Spark's own reader
        has other errors. So the batch's files are checked, too.
        """
        if is_outage(failure):
            return failure
        if found := _REMOTE_OUTAGE.search(str(failure)):
            return StorageError(f"a task failed: {found[0][:400]}", path=None, landed=False)
        try:
            for lease_id in lease.lease_ids:
                self._owners.of(lease_id)._ledger.check_payloads(lease_id)
        except OUTAGES as error:
            return error
        except SparkMQError as error:
            _log.warning("the files of lease %s could not be checked: %s", lease.lease_id, error)
        return None

    def _release(self, lease: BatchLease) -> None:
        """Release what is left of a batch, uncounted, before the query ends."""
        named = ", ".join(lease.lease_ids)
        try:
            self._owners.settle([SettleCommand(RELEASE, one) for one in lease.lease_ids])
        except OUTAGES as error:
            _log.warning("%s could not be released, and waits for its replay: %s", named, error)
        else:
            _log.warning("%s met a failing store. Its messages are released, uncounted", named)

    def _log_failure(self, lease: BatchLease) -> None:
        """Log the exception in hand, with what each lease of the batch holds."""
        verb = self.policy.verb_for_rest(failed=True)
        for lease_id in lease.lease_ids:
            group = self._owners.of(lease_id)
            end = f"; its lease {lease_id} is {verb}ed" if verb else f" (lease {lease_id})"
            _log.exception(
                "group %s: a batch failed with %s%s", group.name, _held_by(group, lease_id), end
            )

    def _settle(
        self, lease: BatchLease, settles: list[SettleCommand], start: float
    ) -> list[SettleOutcome]:
        outcomes = self._owners.settle(settles)
        lease.settled += sum(o.settled + o.already_settled for o in outcomes)
        done: Counter[str] = Counter()
        for one, outcome in zip(settles, outcomes, strict=True):
            done[one.verb] += outcome.settled
        told = (
            ", ".join(f"{count} {name}ed" for name, count in done.items()) or "left to be settled"
        )
        _log.info(
            "%s: %s after %.1f s, %d in all",
            ", ".join(lease.lease_ids),
            told,
            time.monotonic() - start,
            lease.settled,
        )
        try:
            summarize([s.lease_id for s in settles], outcomes)
        except LeaseLost as lost:
            _log.warning("some messages of this batch will come again, to another worker: %s", lost)
        if not lease.settled or any(o.lost for o in outcomes):
            self._owners.check(lease.lease_ids)
        return outcomes

    def _leave(self, found: BatchLeases) -> None:
        """Before Spark commits the batch: what is left of it is to expire, not to be acked by that
        commit."""
        batches = {
            (stream, n) for stream, n, _ in filter(None, map(parse_lease_id, found.lease_ids))
        }
        batches |= {(stream, n) for stream, n, several in found.batches if not several}
        for group in self.groups:
            several = {
                (stream_id_in_queue(stream, group._context.path), n)
                for stream, n, several in found.batches
                if several
            }
            for stream, n in sorted(batches | several):
                if left := exclude_from_auto_ack(group._ledger, stream, n):
                    _log.info(
                        "group %s: batch %d has left %d messages unsettled; they come "
                        "again once their lease expires",
                        group.name,
                        n,
                        left,
                    )

    def _verdicts(self, returned: DataFrame | None, lease: BatchLease) -> list[MessageVerdict]:
        """The verdicts in the rows that `process` returned."""
        if returned is None:
            return []
        try:
            return rows.verdicts_of(returned, lease.lease_id if len(lease.lease_ids) == 1 else None)
        except InvalidSchema as wrong:
            raise InvalidHandlerResult(
                f"process returned rows that cannot be settled: {wrong}",
                option="process",
                value=None,
            ) from wrong


def _held_by(group: ConsumerGroup, lease_id: str) -> str:
    """Describe what a lease holds, for a log."""
    try:
        held = group._ledger.current().held(lease_id)
    except Exception as error:  # the log of the failure itself must not fail
        return f"messages that cannot be told for now ({error})"
    deliveries: Counter[int] = Counter()
    for r in held:
        deliveries[r.delivery_count] += r.message_count
    return describe_held(deliveries, group._ledger.last_settings.max_delivery_attempts)


def _check_returned(failures: Any) -> None:
    if failures is not None and not hasattr(failures, "columns"):
        raise InvalidHandlerResult(
            f"process returned {type(failures).__name__}: return None, or a DataFrame of the "
            f"rows that failed",
            option="process",
            value=type(failures).__name__,
        )
