"""Settle each batch of a stream in foreachBatch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from spark_mq.errors import (
    InvalidHandlerResult,
    InvalidOption,
    InvalidSchema,
    LeaseLost,
    StorageError,
    StreamFenced,
)
from spark_mq.group import ConsumerGroup
from spark_mq.handler import (
    HandlerPolicy,
    MessageVerdict,
    is_settle_result,
    log_outcomes,
    parts_for,
)
from spark_mq.ledger.ranges import LEASED
from spark_mq.ledger.settle import RELEASE, SettleOutcome, SettlePart
from spark_mq.ledger.stream_batch import parse_lease_id
from spark_mq.operations.settle import summarize
from spark_mq.operations.work_report import VerdictLog, describe_settled, isolation_text
from spark_mq.spark import settle_rows as rows
from spark_mq.spark.batch_lease import BatchLease
from spark_mq.spark.batch_outcome import (
    INVALID_VALUES,
    RejectInvalid,
    find_outage,
    leave_unsettled,
    log_failure,
    release_batch,
)
from spark_mq.spark.lease_lookup import LeaseLookup
from spark_mq.spark.settle_rows import LeaseRouter
from spark_mq.util.clock import Duration
from spark_mq.util.failures import to_failure
from spark_mq.util.validation import validate_callable, validate_choice
from spark_mq.worker.upkeep import Sweeps, sweep_interval

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.spark.lease_lookup import BatchScan

_log = logging.getLogger(__name__)

Process = Callable[["DataFrame", "BatchLease"], "DataFrame | None"]
READERS: Final = ("spark", "python")


def for_each_batch(
    group: ConsumerGroup,
    process: Process,
    on_error: str = "nack",
    more_groups: Iterable[ConsumerGroup] = (),
    ack: str = "on_success",
    *,
    reader: str = "spark",
    invalid: str = "keep",
    sweep: Duration | None = None,
) -> ForEachBatch:
    """Return a function for ``writeStream.foreachBatch`` that settles each batch.

    When ``process(batch, lease)`` returns, the messages of the batch are acked, even those that a
    filter dropped. Messages that `process` settles itself stay as it settled them.

    `process` may return a DataFrame of other verdicts. It has the column ``sequence``, and also
    ``lease_id`` if the batch has several leases. Further columns are optional: ``outcome`` ("ack",
    "nack" or "reject"; a null is a failure, see `on_error`), ``delay`` of a nack (seconds, or text
    such as "30s"), and ``error``.

    Return only verdicts that depend on the rows alone. Settle one that may change, such as an API's
    answer, by ``lease.nack(df)`` or ``lease.reject(df)`` *before* the sink is written. Otherwise a
    replay may give another verdict while the sink skips the batch, and the row is acked unwritten.

    Parameters
    ----------
    group
        The consumer group that the stream reads with.
    process
        Called with the batch as a DataFrame and its :class:`BatchLease`. It returns None, the rows
        that are not simply acked, or the results of its own settles.
    on_error
        What happens to the messages if `process` raises an error: "nack" (delivered again after a
        backoff), "reject" (to the dead letters), "ack" (dropped, and the error is only logged), or
        "raise" (the query ends). In an outage of the queue's own store the batch is released,
        uncounted, and the query ends with that error.
    more_groups
        The groups of the other queues, if the stream reads several.
    ack
        When the batch is acked. "on_success": when `process` has returned. "on_receive": before
        `process` is called, so that each message is delivered at most once. "manual": never.
        Messages that `process` leaves unsettled are then delivered again when their lease expires,
        which costs one more commit. With "manual", filter inside `process`: over Spark Connect,
        the source's own ack settles a batch of which no row arrives.
    reader
        How `batch` is read. "spark": by Spark's own Parquet reader, where that gives the same rows
        in the same order, so that large batches are faster. "python": always by the source's tasks.
        With "spark", the tasks still read small batches, unions of streams, leases in many files,
        ordered groups, queries that do more than choose columns, stores that Spark cannot read,
        and streams with ``minPartitions`` or ``valueSchema`` or over Connect.
    invalid
        What happens to values that do not fit the source's ``valueSchema``, or have a reason in a
        column ``data_error`` of your own. "keep": `process` gets them. "reject": they become dead
        letters with that reason before `process` is called. It is not called for a batch without
        a valid value.
    sweep
        Sweep the queues of the groups so often while batches come: "1s" to "1h". Of all workers
        that do so, one at a time sweeps, in a thread that no batch waits for. Default: another
        process sweeps.

    Raises
    ------
    InvalidOption
        An option has an unknown value, `process` cannot be called with two arguments, or
        ``invalid="reject"`` meets ``ack="on_receive"``.

    Examples
    --------
    >>> def process(batch, lease):
    ...     orders = batch.selectExpr("*", "get_json_object(CAST(value AS STRING), '$.id') AS id")
    ...     lease.reject(orders.where("id IS NULL"), error="no JSON with an id")
    ...     good = orders.where("id IS NOT NULL").select("id", "value").write.format("delta")
    ...     good.mode("append").options(**lease.delta_options).save("/tables/out")
    >>> stream.writeStream.foreachBatch(group.for_each_batch(process)).start()  # doctest: +SKIP
    """
    validate_callable("process", process, "batch", "lease")
    policy = HandlerPolicy.validated(on_error, ack)
    if validate_choice("invalid", invalid, INVALID_VALUES) == "reject":
        process = RejectInvalid(process, policy)
    reader = validate_choice("reader", reader, READERS)
    interval = None if sweep is None else sweep_interval(sweep)
    return ForEachBatch((group, *more_groups), process, policy, reader, interval)


class _Queries:
    """The runs of queries that have used one function, of which one at a time may use it."""

    def __init__(self) -> None:
        self._query: str | None = None
        self._run: str | None = None
        self._ended = set[str]()  # runs that another one has followed

    def check(self, query: str | None, run: str | None, *, busy: bool) -> None:
        """Raise InvalidOption if another query runs at the same time. Without ids, do nothing."""
        if query is None or run is None:
            return
        # A query that was stopped and started again may still have a batch of its last run here.
        if run in self._ended or (busy and query != self._query):
            raise InvalidOption(
                "two queries use one function of for_each_batch at the same time: call "
                "group.for_each_batch(process) once for each query",
                option="foreachBatch",
                value=query,
            )
        if self._run is not None and run != self._run:
            self._ended.add(self._run)
        self._query, self._run = query, run


def _running_query(batch: DataFrame) -> tuple[str | None, str | None]:
    """Return the ids of the query that runs a batch, and of its run, as far as Spark tells."""
    try:
        context = batch.sparkSession.sparkContext
        names = ("sql.streaming.queryId", "spark.jobGroup.id")
        query, run = (context.getLocalProperty(name) for name in names)
    except Exception:  # over Connect, where each query has a copy of the function
        return None, None
    return query, run


class ForEachBatch:
    """Runs and settles each batch of a stream for Spark.

    Spark calls it in the driver, one batch at a time. Over Spark Connect, Spark pickles it.
    """

    def __init__(
        self,
        groups: tuple[ConsumerGroup, ...],
        process: Process,
        policy: HandlerPolicy,
        reader: str = "python",
        sweep: int | None = None,
    ) -> None:
        self.groups, self._process, self.policy, self.reader = groups, process, policy, reader
        self._sweep = sweep
        queues = [group._context for group in groups]
        self._sweeps = None if sweep is None else Sweeps(queues, sweep)
        self._owners = LeaseRouter(groups)
        self._verdict_log = VerdictLog(
            ", ".join(dict.fromkeys(group.name for group in groups)),
            isolation=lambda: isolation_text([group._ledger for group in groups]),
        )
        self._finder = LeaseLookup(scans=reader == "spark")
        self._unreadable = False  # Spark cannot read the store, in this run
        self._idle = threading.Condition()
        self._queries = _Queries()
        self._busy = self._closing = False
        self._last_seen: dict[str, int] = {}  # the number of each stream's last batch here
        self.last_batch: int | None = None  # Spark's number of the last batch that has ended

    def __getstate__(self) -> dict[str, Any]:
        return {
            "groups": self.groups,
            "process": self._process,
            "policy": self.policy,
            "reader": self.reader,
            "sweep": self._sweep,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        query_id, run_id = _running_query(batch)
        with self._idle:
            self._queries.check(query_id, run_id, busy=self._busy)
            self._busy = True
            closing = self._closing
        try:
            leases = self._finder.find(batch)
            lease_ids = leases.lease_ids
            self._last_seen.update(
                (stream, n) for stream, n, _ in filter(None, map(parse_lease_id, lease_ids))
            )
            # Without a row the lease may be unknown. Then ack=on_success settles the batch.
            if lease_ids and closing and leases.fresh:
                # It may be a replay. A sink may have its rows already, so others must not get them.
                raise RuntimeError(f"the query stops: batch {batch_id} runs at the next start")
            if lease_ids and closing:
                self._owners.settle([SettlePart(RELEASE, lease_id) for lease_id in lease_ids])
            elif lease_ids:
                if leases.fresh:
                    self._owners.begin(lease_ids)
                    self._unreadable = False
                lease = BatchLease(self._owners, leases, batch)
                with self._owners.reported_work(lease_ids) as run:
                    self._run(self._by_spark(batch, leases.scan), lease, run)
            if self.policy.ack == "manual":
                leave_unsettled(self.groups, leases)
        finally:
            with self._idle:
                self._busy = False
                self.last_batch = batch_id
                self._idle.notify_all()
            if self._sweeps is not None:
                self._sweeps.follow()

    def close(self, timeout: float) -> bool:
        """Release later batches, uncounted. Return whether the running one ended in time."""
        with self._idle:
            self._closing = True
            ended = self._idle.wait_for(lambda: not self._busy, timeout)
        self._verdict_log.flush()
        return ended

    def run_last_sweep(self) -> None:
        """Sweep once more, because the query has ended by itself, if this function sweeps."""
        if self._sweeps is not None:
            self._sweeps.run_last()

    def give_back(self) -> int:
        """Release the leases of batches that Spark planned and never ran. Return their number.

        Call it after the query has been stopped.
        """
        ledgers = [group._ledger.current() for group in self.groups]
        held = {
            r.lease_id
            for ledger in ledgers
            for r in ledger.ranges_at(ledger.find((LEASED,)))
            if r.lease_id
        }
        parts = {lease_id: parse_lease_id(lease_id) for lease_id in held}
        late = [
            i
            for i, p in parts.items()
            if p and self._finder.runner(p[0]) == p[2] and p[1] > self._last_seen.get(p[0], p[1])
        ]
        if late:
            self._owners.settle([SettlePart(RELEASE, lease_id) for lease_id in late])
        return len(late)

    def _by_spark(self, batch: DataFrame, scan: BatchScan | None) -> DataFrame:
        """Return the batch by Spark's own reader, or unchanged if Spark would read it otherwise."""
        if scan is None or self._unreadable:
            return batch
        from spark_mq.spark.lease_frame import read_scan
        from spark_mq.spark.listener import note_rows

        try:
            rows = read_scan(batch, scan, self._owners.of)
        except StorageError as error:
            _log.warning(
                "batches are read through Python, because Spark cannot read the store: %s", error
            )
            self._unreadable = True
            return batch
        except Exception as error:  # the source's tasks give the better error
            _log.debug("this batch is read through Python: %s", error)
            return batch
        if rows is None:
            return batch
        note_rows(scan.stream, scan.n, scan.row_count)
        return rows

    def _run(self, batch: DataFrame, lease: BatchLease, run: Callable[..., Any]) -> None:
        start = time.monotonic()
        lease._begin()
        if self.policy.ack == "on_receive":
            lease._ack_first()
        self._owners.look_ahead(lease.lease_ids)
        result: list[MessageVerdict] | Exception
        try:
            returned = run(self._process, batch, lease)
            returned = None if is_settle_result(returned) else returned
            rows.check_returned(returned)
            result = self._verdicts(returned, lease)
            lease._guard.check_outcomes((verdict.outcome for verdict in result), "process")
        except (StreamFenced, InvalidHandlerResult):
            raise
        except KeyboardInterrupt as error:  # Spark would wait for ever, as it learns of errors only
            raise RuntimeError("process raised KeyboardInterrupt") from error
        except BaseException as error:
            failure = to_failure(error, "process")
            if (outage := find_outage(self._owners, failure, lease)) is not None:
                release_batch(self._owners, lease)
                if outage is failure:
                    raise
                raise outage from failure
            if self.policy.on_error == "raise":
                self._owners.check(lease.lease_ids)
                if failure is error:
                    raise
                raise failure from failure.__cause__
            log_failure(self._owners, lease, failure, self.policy.verb_for_rest(failed=True))
            result = failure
        parts = parts_for(result, self.policy, dict.fromkeys(lease.lease_ids))
        outcomes = self._settle(lease, parts, start)
        if isinstance(result, Exception):
            for part, outcome in zip(parts, outcomes, strict=True):
                ledger = self._owners.of(part.lease_id)._ledger
                log_outcomes(ledger.name, ledger.now(), [(part, outcome)])

    def _settle(
        self, lease: BatchLease, settles: list[SettlePart], start: float
    ) -> list[SettleOutcome]:
        outcomes = self._owners.settle(settles)
        lease.settled += sum(o.settled + o.already_settled for o in outcomes)
        self._verdict_log.add(settles, outcomes)
        settled = describe_settled(settles, outcomes)
        _log.info(
            "%s: %s after %.1f s, %d in all",
            ", ".join(lease.lease_ids),
            settled or "nothing left to settle",
            time.monotonic() - start,
            lease.settled,
        )
        try:
            summarize([s.lease_id for s in settles], outcomes)
        except LeaseLost as lost:
            _log.warning("a batch lost messages, which are redelivered: %s", lost)
        if not lease.settled or any(o.lost for o in outcomes):
            self._owners.check(lease.lease_ids)
        return outcomes

    def _verdicts(self, returned: DataFrame | None, lease: BatchLease) -> list[MessageVerdict]:
        if returned is None:
            return []
        try:
            return rows.verdicts_of(returned, lease.lease_id if len(lease.lease_ids) == 1 else None)
        except InvalidSchema as wrong:
            raise InvalidHandlerResult(
                f"the rows that process returned cannot be settled: {wrong}",
                option="process",
                value=None,
            ) from wrong
