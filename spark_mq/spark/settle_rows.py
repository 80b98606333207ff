"""Settle the rows of a DataFrame, each lease in its group.

Executors turn the rows into ranges, and one commit for each group settles them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import (
    InvalidHandlerResult,
    InvalidOption,
    InvalidSchema,
    SparkMQError,
    StreamFenced,
)
from spark_mq.group import ConsumerGroup
from spark_mq.handler import HandlerPolicy, MessageVerdict, parts_for, verdict
from spark_mq.ledger.intervals import normalise
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.settle import ACK, NACK, REJECT, SettleOutcome, SettlePart
from spark_mq.ledger.stream_batch import fence_app_id, parse_lease_id, rows_held_by_batch
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES
from spark_mq.operations.settle import SettleResult, summarize
from spark_mq.operations.sinks import check_no_sink
from spark_mq.operations.work_report import reported_work
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.columns import sort_rows
from spark_mq.util.validation import validate_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Text columns of a row. Consecutive sequences with equal values are one run.
_VERDICT: Final = ("lease_id", "outcome", "delay", "error")

_RUNS: Final = pa.schema(
    [*((name, pa.string()) for name in _VERDICT), ("first", pa.int64()), ("last", pa.int64())]
)
_RUNS_DDL: Final = (
    f"array<struct<{','.join(f'{name}:string' for name in _VERDICT)},first:bigint,last:bigint>>"
)


class LeaseRouter:
    """Settles each lease in its group. A union of queues has several groups."""

    def __init__(self, groups: Sequence[ConsumerGroup]) -> None:
        self.groups = tuple(groups)
        self._of: dict[str, ConsumerGroup] = {}  # by stream
        self._numbers: dict[str, int] = {}  # by lease id, the last number of its stream
        self.outage: Exception | None = None  # of the last settle, if a store failed

    def of(self, lease_id: str) -> ConsumerGroup:
        """Return the group of a lease. Raise InvalidOption if it is of another group or queue."""
        parts = parse_lease_id(lease_id)
        if parts is None:
            return self.groups[0]
        if parts[0] not in self._of:
            self._of[parts[0]] = self._find(lease_id, parts[0])
        return self._of[parts[0]]

    def settle(self, wanted: Sequence[SettlePart]) -> list[SettleOutcome]:
        """Settle in one commit for each group. Return the outcomes in the order of `wanted`."""
        self.outage = None
        groups = [self.of(part.lease_id) for part in wanted]
        outcomes: dict[int, SettleOutcome] = {}
        for group in dict.fromkeys(groups):
            mine = [at for at, owner in enumerate(groups) if owner is group]
            try:
                settled = group._ledger.settle([wanted[at] for at in mine])
            except OUTAGES as error:
                self.outage = error
                raise
            outcomes.update(zip(mine, settled, strict=True))
        return [outcomes[at] for at in range(len(wanted))]

    def look_ahead(self, lease_ids: Sequence[str]) -> None:
        """Look at the ledgers over a store while the batch runs, so that the settle need not."""
        tables = {self.of(lease_id)._context.ledgers for lease_id in lease_ids}
        for table in tables:
            if table.delegates:
                threading.Thread(target=_look, args=(table,), name="spark_mq look").start()

    def reported_work(self, lease_ids: Sequence[str]) -> AbstractContextManager[Callable[..., Any]]:
        ledgers = [(self.of(lease_id)._ledger, lease_id) for lease_id in lease_ids]
        return reported_work(
            [(own, partial(_ranges, own, lease_id)) for own, lease_id in ledgers], None
        )

    def begin(self, lease_ids: Sequence[str]) -> None:
        """Find the groups and keep the transaction numbers of a batch that may be a replay."""
        self.outage = None
        self._numbers = {
            lease_id: self._txn_number(self.of(lease_id), lease_id) for lease_id in lease_ids
        }

    def check(self, lease_ids: Sequence[str]) -> None:
        """Raise StreamFenced, before Spark commits the batch, if another driver has taken it over.

        An expired lease is no reason to end the query, because its messages are delivered again.
        """
        for lease_id in lease_ids:
            parts = parse_lease_id(lease_id)
            if parts is None:
                continue
            stream, n, _ = parts
            ledger = self.of(lease_id)._ledger.current()
            holders = {
                r.lease_id for r in ledger.ranges_at(rows_held_by_batch(ledger, f"{stream}/{n}/"))
            } - {lease_id}
            number = self._txn_number(self.of(lease_id), lease_id)
            # Without a number from its start it was no replay, so 2n + 1 is its own.
            if holders or number > self._numbers.get(lease_id, 2 * n + 1):
                raise StreamFenced(
                    f"batch {n} of stream {stream} was taken over by another driver on this "
                    f"checkpoint. This query ends; use one checkpoint for one query",
                    stream=stream,
                    batch=n,
                    mark=number,
                )

    def _find(self, lease_id: str, stream: str) -> ConsumerGroup:
        known = [group for group in self.groups if self._txn_number(group, lease_id)]
        if holder := next((group for group in known if _holds(group, lease_id)), None):
            return holder
        others = [
            ConsumerGroup(group._context, name)
            for group in known
            for name in group._context.ledgers.groups()
            if name != group.name
        ]
        wrong = next((group for group in others if _holds(group, lease_id)), None)
        if known and wrong is None:
            return known[0]  # all of it has expired, or was taken over
        source = f"was leased by {wrong!r}" if wrong else "was leased from another queue"
        raise InvalidOption(
            f"the batch of stream {stream} {source}, but for_each_batch settles "
            f"{', '.join(map(repr, self.groups))}: use the path and consumerGroup of the stream. "
            f"For a union of queues, give the other groups by more_groups=[...]",
            option="group",
            value=", ".join(group.name for group in self.groups),
        )

    @staticmethod
    def _txn_number(group: ConsumerGroup, lease_id: str) -> int:
        parts = parse_lease_id(lease_id)
        leases = group._context.ledgers
        return (
            leases.txn_number(leases.read(group.name), fence_app_id(parts[0])) if parts else None
        ) or 0


def _ranges(ledger: GroupLedger, lease_id: str) -> list[Range]:
    return ledger.current().held(lease_id)


def _look(table: LedgerTable) -> None:
    with suppress(SparkMQError, *STORE_ERRORS):  # the settle looks, too, and raises what it meets
        table.version()


def _holds(group: ConsumerGroup, lease_id: str) -> bool:
    ledger = group._ledger.current()
    return bool(ledger.rows_held(lease_id))


def ack(df: DataFrame, group: ConsumerGroup | LeaseRouter) -> SettleResult:
    """Ack the messages in the rows of a DataFrame.

    Parameters
    ----------
    df
        Rows with ``lease_id`` and ``sequence``. Persist them first if a second evaluation could
        give other rows.
    group
        The consumer group that holds the leases.

    Returns
    -------
    SettleResult
        How many messages this call settled, and how many were settled before.

    Raises
    ------
    InvalidSchema
        A column is missing or has a null.
    LeaseLost
        Some messages are no longer held by their lease. The others are settled.

    Examples
    --------
    >>> ack(batch.where("status = 'done'"), queue.group("billing"))  # doctest: +SKIP
    """
    return _settle(group, [replace(verdict, outcome=ACK) for verdict in verdicts_of(df, reads=())])


def nack(
    df: DataFrame,
    group: ConsumerGroup | LeaseRouter,
    *,
    delay: Any = None,
    error: str | None = None,
) -> SettleResult:
    """Give the messages in the rows of a DataFrame back as failed.

    Parameters
    ----------
    df, group
        As for :func:`ack`. If `df` has the columns ``delay`` and ``error``, they go before the
        arguments.
    delay
        When the messages are due again: seconds, or text such as "30s". Default: by the group's
        retry policy.
    error
        The reason.

    Examples
    --------
    >>> nack(batch.where("status = 'busy'"), queue.group("billing"), delay="1m")
    ... # doctest: +SKIP
    """
    pause = None if delay is None else validate_duration("delay", delay, zero=True)
    verdicts = [
        replace(
            verdict,
            outcome=NACK,
            delay=pause if verdict.delay is None else verdict.delay,
            error=verdict.error or error,
        )
        for verdict in verdicts_of(df, reads=("delay", "error"))
    ]
    return _settle(group, verdicts)


def reject(
    df: DataFrame, group: ConsumerGroup | LeaseRouter, *, error: str | None = None
) -> SettleResult:
    """Make the messages in the rows of a DataFrame dead.

    Parameters
    ----------
    df, group
        As for :func:`ack`. If `df` has the column ``error``, it goes before the argument.
    error
        The reason.

    Examples
    --------
    >>> reject(batch.where("id IS NULL"), queue.group("billing"), error="no id")
    ... # doctest: +SKIP
    """
    return _settle(
        group,
        [
            replace(verdict, outcome=REJECT, error=verdict.error or error)
            for verdict in verdicts_of(df, reads=("error",))
        ],
    )


def _settle(group: ConsumerGroup | LeaseRouter, verdicts: Sequence[MessageVerdict]) -> SettleResult:
    if isinstance(group, ConsumerGroup) and any(verdict.outcome != ACK for verdict in verdicts):
        check_no_sink(group._ledger)
    parts = parts_for(verdicts, HandlerPolicy(), {})
    if not parts:
        return SettleResult(0)
    settler = group._ledger if isinstance(group, ConsumerGroup) else group
    return summarize([part.lease_id for part in parts], settler.settle(parts))


def _is_dataframe(value: Any) -> bool:
    return hasattr(value, "withColumn")  # also of Spark Connect, but not of pandas or Arrow


def _check_frame(df: Any) -> None:
    if not _is_dataframe(df):
        raise InvalidOption(
            f"the rows cannot be settled: they are a {type(df).__name__}. Give a DataFrame with "
            "the columns lease_id and sequence, such as batch.where(...)",
            option="df",
            value=type(df).__name__,
        )


def check_columns(df: DataFrame) -> None:
    """Raise InvalidSchema if the rows of a DataFrame could not be settled."""
    columns = df.columns
    for name in ("lease_id", "sequence"):
        if name not in columns:
            raise InvalidSchema(
                f"the rows cannot be settled: the DataFrame has no column {name!r}, only "
                f"{', '.join(columns)}. Keep lease_id and sequence in your transformations",
                column=name,
            )


def check_returned(failures: Any) -> None:
    """Raise InvalidHandlerResult if `process` returned neither None nor a DataFrame."""
    if failures is not None and not _is_dataframe(failures):
        raise InvalidHandlerResult(
            f"process returned {type(failures).__name__}: it must return None, or a Spark "
            f"DataFrame of the rows that failed",
            option="process",
            value=type(failures).__name__,
        )


def verdicts_of(
    df: DataFrame,
    lease_id: str | None = None,
    *,
    reads: Sequence[str] = ("outcome", "delay", "error"),
) -> list[MessageVerdict]:
    """Return the verdicts in the rows of a DataFrame, as few as possible. Repeats count once.

    If `lease_id` is given, it need not be a column. `reads` are the optional columns to read.
    """
    _check_frame(df)
    from pyspark.sql import functions as F
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    if lease_id is not None and "lease_id" not in df.columns:
        df = df.withColumn("lease_id", F.lit(lease_id))
    check_columns(df)
    columns = {"lease_id", *reads}.intersection(df.columns)
    # A scalar Arrow function, because mapInArrow needs pandas on the driver. Each Arrow batch
    # returns its runs in its first row, and inline() drops the nulls of the others.
    verdicts = [
        F.col(name).cast("string") if name in columns else F.lit(None).cast("string")
        for name in _VERDICT
    ]
    runs = F.inline(arrow_udf(_batch_runs, _RUNS_DDL)(*verdicts, F.col("sequence").cast("long")))
    runs_of_batches = df.select(runs).toArrow().to_pylist()
    for column, value in (("lease_id", "lease_id"), ("sequence", "first")):
        if any(row[value] is None for row in runs_of_batches):
            raise InvalidSchema(f"a row has a null {column} and cannot be settled", column=column)
    out: list[MessageVerdict] = []
    by_verdict = sorted(
        runs_of_batches, key=lambda row: [(row[name] is None, row[name] or "") for name in _VERDICT]
    )
    for (lease, outcome, delay, error), rows in groupby(
        by_verdict, key=lambda row: tuple(row[name] for name in _VERDICT)
    ):
        intervals = normalise((row["first"], row["last"]) for row in rows)
        out += [
            verdict(lease, interval, outcome=outcome, delay=delay, error=error)
            for interval in intervals
        ]
    return out


def _batch_runs(
    lease_id: pa.Array, outcome: pa.Array, delay: pa.Array, error: pa.Array, sequence: pa.Array
) -> pa.Array:
    """Return the runs of one Arrow batch, as one list in its first row."""
    rows = len(sequence)
    if rows == 0:
        return pa.nulls(0, pa.list_(pa.struct(list(_RUNS))))
    table = pa.table([lease_id, outcome, delay, error, sequence], names=[*_VERDICT, "sequence"])
    table = sort_rows(table, *table.schema.names)
    runs = _runs(
        [table[name].combine_chunks() for name in _VERDICT], table["sequence"].combine_chunks()
    )
    first = pa.ListArray.from_arrays(pa.array([0, len(runs)], pa.int32()), runs)
    return pa.concat_arrays([first, pa.nulls(rows - 1, first.type)])


def _runs(verdicts: Sequence[pa.Array], sequence: pa.Array) -> pa.StructArray:
    """Return the runs of sorted columns. A run ends at another verdict or a gap."""
    n = len(sequence)
    here, after = slice(0, n - 1), slice(1, n)
    starts_after = pc.fill_null(pc.greater(pc.subtract(sequence[after], sequence[here]), 1), True)
    for column in verdicts:
        same = pc.fill_null(pc.equal(column[after], column[here]), False)
        both_null = pc.and_(pc.is_null(column[after]), pc.is_null(column[here]))
        starts_after = pc.or_(starts_after, pc.invert(pc.or_(same, both_null)))
    starts = pa.concat_arrays(
        [pa.array([0], pa.int64()), pc.add(pc.indices_nonzero(starts_after).cast(pa.int64()), 1)]
    )
    lasts = pa.concat_arrays([pc.subtract(starts[1:], 1), pa.array([n - 1], pa.int64())])
    columns = [
        *(column.take(starts).cast(pa.string()) for column in verdicts),
        sequence.take(starts),
        sequence.take(lasts),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_RUNS))
