"""Settling the rows of DataFrames: rows become ranges on the executors, and one commit settles them all."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.checks import check_duration
from spark_mq.errors import InvalidSchema
from spark_mq.group import ConsumerGroup
from spark_mq.intervals import normalise
from spark_mq.lease import SettleResult, result_of
from spark_mq.settling import ACK, NACK, REJECT, Settle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.spark.owners import Owners

__all__ = ["Run", "ack", "nack", "reject", "rows_to_runs", "settles_of"]

_RUNS: Final = pa.schema([("lease_id", pa.string()), ("first", pa.int64()), ("last", pa.int64()), ("error", pa.string())])
_RUNS_DDL: Final = "array<struct<lease_id:string,first:bigint,last:bigint,error:string>>"


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of one lease with consecutive sequences (``first..last``, inclusive) and the same error."""

    lease_id: str
    first: int
    last: int
    error: str | None


def ack(df: DataFrame, group: ConsumerGroup | Owners) -> SettleResult:
    """Settles the rows of a DataFrame with ``lease_id`` and ``sequence`` as done. Persist it first if it is not deterministic.

    Raises InvalidSchema without these columns, LeaseLost for rows that are not held (the rest is settled).
    """
    return _settle(group, settles_of(rows_to_runs(df), ACK))


def nack(df: DataFrame, group: ConsumerGroup | Owners, *, delay: Any = None, error: str | None = None) -> SettleResult:
    """Gives the rows back as failed, each by name; due after the group's backoff or `delay`. ``error``: or a column of that name."""
    pause = None if delay is None else check_duration("delay", delay, zero=True)
    return _settle(group, settles_of(rows_to_runs(df), NACK, error, pause))


def reject(df: DataFrame, group: ConsumerGroup | Owners, *, error: str | None = None) -> SettleResult:
    """Makes the rows dead at once, each by name. ``error``: the reason, or a column of that name."""
    return _settle(group, settles_of(rows_to_runs(df), REJECT, error))


def settles_of(runs: Iterable[Run], verb: str, error: str | None = None, delay: int | None = None) -> list[Settle]:
    """One settle for each lease and error."""
    jitter = random.random()
    return [Settle(verb, lease_id, [(r.first, r.last) for r in some], delay=delay, error=said or error, jitter=jitter)
            for (lease_id, said), some in groupby(runs, key=lambda r: (r.lease_id, r.error))]  # fmt: skip


def _settle(group: ConsumerGroup | Owners, settles: Sequence[Settle]) -> SettleResult:
    return result_of([s.lease_id for s in settles], group.settle(settles)) if settles else SettleResult(0)


def check_columns(df: DataFrame) -> None:
    """Raises InvalidSchema where rows could not be settled."""
    for name in ("lease_id", "sequence"):
        if name not in df.columns:
            raise InvalidSchema(
                f"the DataFrame has no column {name!r}, so its rows cannot be settled; it has {', '.join(df.columns)}. "
                "Keep lease_id and sequence of the stream through your transformations",
                column=name,
            )


def rows_to_runs(df: DataFrame) -> list[Run]:
    """The rows of a DataFrame as runs, in order. Repeats count once. Raises InvalidSchema."""
    from pyspark.sql import functions as F
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    check_columns(df)
    # A scalar Arrow function, not mapInArrow: that asks for pandas on the driver. Each Arrow batch gives its runs in its
    # first row, and inline() drops the nulls of the others.
    error = F.col("error").cast("string") if "error" in df.columns else F.lit(None).cast("string")
    runs = F.inline(arrow_udf(_batch_runs, _RUNS_DDL)(F.col("lease_id").cast("string"), F.col("sequence").cast("long"), error))
    found = df.select(runs).toArrow().to_pylist()
    if any(row["lease_id"] is None or row["first"] is None for row in found):
        raise InvalidSchema("a row has a null lease_id or sequence, so it cannot be settled", column="lease_id")
    out: list[Run] = []
    by_owner = sorted(found, key=lambda row: (row["lease_id"], row["error"] or "", row["error"] is None))
    for (lease_id, said), rows in groupby(by_owner, key=lambda row: (row["lease_id"], row["error"])):
        out += [Run(lease_id, first, last, said) for first, last in normalise((row["first"], row["last"]) for row in rows)]
    return out


def _batch_runs(lease_id: pa.Array, sequence: pa.Array, error: pa.Array) -> pa.Array:
    """The runs of one Arrow batch, as one list in its first row."""
    rows = len(sequence)
    kind = pa.list_(pa.struct(list(_RUNS)))
    if rows == 0:
        return pa.nulls(0, kind)
    table = pa.table({"lease_id": lease_id, "sequence": sequence, "error": error})
    table = table.sort_by([("lease_id", "ascending"), ("error", "ascending"), ("sequence", "ascending")])
    runs = _runs(*(table[name].combine_chunks() for name in ("lease_id", "sequence", "error")))
    one = pa.ListArray.from_arrays(pa.array([0, len(runs)], pa.int32()), runs)
    return pa.concat_arrays([one, pa.nulls(rows - 1, one.type)])


def _runs(lease_id: pa.Array, sequence: pa.Array, error: pa.Array) -> pa.StructArray:
    """Runs of sorted columns: a run starts where the lease or the error changes or the sequence jumps."""
    n = len(sequence)
    here, after = slice(0, n - 1), slice(1, n)
    starts_after = pc.fill_null(pc.greater(pc.subtract(sequence[after], sequence[here]), 1), True)
    for column in (lease_id, error):
        same = pc.fill_null(pc.equal(column[after], column[here]), False)
        both_null = pc.and_(pc.is_null(column[after]), pc.is_null(column[here]))
        starts_after = pc.or_(starts_after, pc.invert(pc.or_(same, both_null)))
    starts = pa.concat_arrays([pa.array([0], pa.int64()), pc.add(pc.indices_nonzero(starts_after).cast(pa.int64()), 1)])
    lasts = pa.concat_arrays([pc.subtract(starts[1:], 1), pa.array([n - 1], pa.int64())])
    columns = [lease_id.take(starts).cast(pa.string()), sequence.take(starts), sequence.take(lasts), error.take(starts).cast(pa.string())]
    return pa.StructArray.from_arrays(columns, fields=list(_RUNS))
