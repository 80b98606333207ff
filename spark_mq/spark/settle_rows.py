"""Settling the rows of DataFrames: rows become ranges on the executors, and one commit settles them
all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.errors import InvalidSchema
from spark_mq.group import ConsumerGroup
from spark_mq.handler import HandlerPolicy, MessageVerdict, commands_for, verdict
from spark_mq.ledger.intervals import normalise
from spark_mq.ledger.settle import ACK, NACK, REJECT
from spark_mq.operations.settle import SettleResult, summarize
from spark_mq.util.validation import validate_duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_mq.spark.lease_router import LeaseRouter

__all__ = ["ack", "nack", "reject", "verdicts_of"]

_SAID: Final = ("lease_id", "outcome", "delay", "error")
"""Text columns of a row; consecutive sequences with the same in all of them are one run."""

_RUNS: Final = pa.schema(
    [*((name, pa.string()) for name in _SAID), ("first", pa.int64()), ("last", pa.int64())]
)
_RUNS_DDL: Final = (
    f"array<struct<{','.join(f'{name}:string' for name in _SAID)},first:bigint,last:bigint>>"
)


def ack(df: DataFrame, group: ConsumerGroup | LeaseRouter) -> SettleResult:
    """Settles the rows of a DataFrame with ``lease_id`` and ``sequence`` as done. Persist it first
    if it is not deterministic.

    Raises InvalidSchema without these columns, LeaseLost for rows that are not held (the rest is
    settled).
    """
    return _settle(group, [replace(one, outcome=ACK) for one in verdicts_of(df)])


def nack(
    df: DataFrame,
    group: ConsumerGroup | LeaseRouter,
    *,
    delay: Any = None,
    error: str | None = None,
) -> SettleResult:
    """Gives the rows back as failed, each by name; due after the group's retry policy or `delay`.

    ``delay``, ``error``: for all, or columns of these names (``delay`` in seconds, or text like
    "30s").
    """
    pause = None if delay is None else validate_duration("delay", delay, zero=True)
    said = [
        replace(
            one,
            outcome=NACK,
            delay=pause if one.delay is None else one.delay,
            error=one.error or error,
        )
        for one in verdicts_of(df)
    ]
    return _settle(group, said)


def reject(
    df: DataFrame, group: ConsumerGroup | LeaseRouter, *, error: str | None = None
) -> SettleResult:
    """Makes the rows dead at once, each by name. ``error``: the reason, or a column of that
    name."""
    return _settle(
        group,
        [
            replace(one, outcome=REJECT, delay=None, error=one.error or error)
            for one in verdicts_of(df)
        ],
    )


def _settle(group: ConsumerGroup | LeaseRouter, said: Sequence[MessageVerdict]) -> SettleResult:
    commands = commands_for(said, HandlerPolicy(), {})
    if not commands:
        return SettleResult(0)
    settler = group._ledger if isinstance(group, ConsumerGroup) else group
    return summarize([one.lease_id for one in commands], settler.settle(commands))


def check_columns(df: DataFrame) -> None:
    """Raises InvalidSchema where rows could not be settled."""
    for name in ("lease_id", "sequence"):
        if name not in df.columns:
            raise InvalidSchema(
                f"the DataFrame has no column {name!r}, so its rows cannot be settled; it has "
                f"{', '.join(df.columns)}. "
                "Keep lease_id and sequence of the stream through your transformations",
                column=name,
            )


def verdicts_of(df: DataFrame, lease_id: str | None = None) -> list[MessageVerdict]:
    """What the rows of a DataFrame say is to become of their messages, as few verdicts as may be.
    Repeats count once.

    ``lease_id``: where there is only one, it need not be a column. Raises InvalidSchema;
    InvalidHandlerResult for a wrong outcome or delay.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

    if lease_id is not None and "lease_id" not in df.columns:
        df = df.withColumn("lease_id", F.lit(lease_id))
    check_columns(df)
    # A scalar Arrow function, not mapInArrow: that asks for pandas on the driver. Each Arrow batch
    # gives its runs in its
    # first row, and inline() drops the nulls of the others.
    said = [
        F.col(name).cast("string") if name in df.columns else F.lit(None).cast("string")
        for name in _SAID
    ]
    runs = F.inline(arrow_udf(_batch_runs, _RUNS_DDL)(*said, F.col("sequence").cast("long")))
    found = df.select(runs).toArrow().to_pylist()
    if any(row["lease_id"] is None or row["first"] is None for row in found):
        raise InvalidSchema(
            "a row has a null lease_id or sequence, so it cannot be settled", column="lease_id"
        )
    out: list[MessageVerdict] = []
    by_said = sorted(
        found, key=lambda row: [(row[name] is None, row[name] or "") for name in _SAID]
    )
    for (lease, outcome, delay, error), rows in groupby(
        by_said, key=lambda row: tuple(row[name] for name in _SAID)
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
    """The runs of one Arrow batch, as one list in its first row."""
    rows = len(sequence)
    if rows == 0:
        return pa.nulls(0, pa.list_(pa.struct(list(_RUNS))))
    table = pa.table([lease_id, outcome, delay, error, sequence], names=[*_SAID, "sequence"])
    table = table.sort_by([(name, "ascending") for name in table.schema.names])
    runs = _runs(
        [table[name].combine_chunks() for name in _SAID], table["sequence"].combine_chunks()
    )
    one = pa.ListArray.from_arrays(pa.array([0, len(runs)], pa.int32()), runs)
    return pa.concat_arrays([one, pa.nulls(rows - 1, one.type)])


def _runs(said: Sequence[pa.Array], sequence: pa.Array) -> pa.StructArray:
    """Runs of sorted columns: a run starts where something else is said or the sequence jumps."""
    n = len(sequence)
    here, after = slice(0, n - 1), slice(1, n)
    starts_after = pc.fill_null(pc.greater(pc.subtract(sequence[after], sequence[here]), 1), True)
    for column in said:
        same = pc.fill_null(pc.equal(column[after], column[here]), False)
        both_null = pc.and_(pc.is_null(column[after]), pc.is_null(column[here]))
        starts_after = pc.or_(starts_after, pc.invert(pc.or_(same, both_null)))
    starts = pa.concat_arrays(
        [pa.array([0], pa.int64()), pc.add(pc.indices_nonzero(starts_after).cast(pa.int64()), 1)]
    )
    lasts = pa.concat_arrays([pc.subtract(starts[1:], 1), pa.array([n - 1], pa.int64())])
    columns = [
        *(column.take(starts).cast(pa.string()) for column in said),
        sequence.take(starts),
        sequence.take(lasts),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(_RUNS))
