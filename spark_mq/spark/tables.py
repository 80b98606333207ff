"""Table functions for SQL, with a queue's state and past.

Storage options are settings of the session, because an argument would be in the plan and in the
text of the query. Spark passes a session's settings to its tasks, and redacts secret ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.types import (
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_mq.ledger.stats import GroupStats, figures_of
from spark_mq.spark.options import STORAGE_PREFIX

STORAGE_SETTING: Final = f"spark.spark_mq.{STORAGE_PREFIX}"  # before an option, in lower case

_TEXT, _LONG, _INT = StringType(), LongType(), IntegerType()
_DOUBLE, _TIME = DoubleType(), TimestampType()


def _schema(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def stats_schema(owner: type[GroupStats]) -> StructType:
    """Return the columns of the table of stats, one for each figure but the version."""
    kinds = {"s": _DOUBLE, "text": _TEXT}
    figures = {name: kinds.get(figure.unit, _LONG) for name, figure in figures_of(owner).items()}
    figures.pop("latest_version")
    return _schema(consumer_group=_TEXT, **figures)


STATS_SCHEMA: Final = stats_schema(GroupStats)
LEASES_SCHEMA: Final = _schema(
    consumer_group=_TEXT, lease_id=_TEXT, worker_id=_TEXT, since=_TIME, until=_TIME,
    messages=_LONG, size=_LONG, first=_LONG, last=_LONG, delivery_count=_INT,
)  # fmt: skip
TRACE_SCHEMA: Final = _schema(
    at=_TIME, version=_LONG, consumer_group=_TEXT, event=_TEXT, state=_TEXT, outcome=_TEXT,
    operation=_TEXT, lease_id=_TEXT, worker_id=_TEXT, delivery_count=_INT, failure_count=_INT,
    reason=_TEXT, error=_TEXT, batch_error=_TEXT, batch_size=_LONG, user=_TEXT, detail=_TEXT,
)  # fmt: skip
HISTORY_SCHEMA: Final = _schema(
    committed_at=_TIME, version=_LONG, consumer_group=_TEXT, event=_TEXT, first=_LONG, last=_LONG,
    message_count=_LONG, state=_TEXT, outcome=_TEXT, operation=_TEXT, lease_id=_TEXT,
    worker_id=_TEXT, delivery_count=_INT, failure_count=_INT, reason=_TEXT, error=_TEXT,
    batch_size=_LONG, user=_TEXT, detail=_TEXT,
)  # fmt: skip

Row = tuple[Any, ...]


def _open(path: str) -> Any:
    from spark_mq.queue import Queue

    return Queue.open(path, storage_options=_storage_options())


def _storage_options() -> dict[str, str]:
    context = TaskContext.get()
    # Spark names no setting of a task without its name.
    known: Mapping[str, str] = getattr(context, "_localProperties", None) or {}
    options = ((name.lower(), value) for name, value in known.items())
    return {
        name[len(STORAGE_SETTING) :]: value
        for name, value in options
        if name.startswith(STORAGE_SETTING)
    }


def _pick(source: Any, names: Sequence[str]) -> Row:
    if isinstance(source, dict):
        return tuple(source.get(name) for name in names)
    known = {field.name for field in fields(source)}
    return tuple(_cell(getattr(source, name)) if name in known else None for name in names)


def _cell(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else value


class StatsTable:
    """The table ``spark_mq_stats(path)``, with one row for each group."""

    def eval(self, path: str) -> Iterator[Row]:
        for name, stats in _open(path).describe().groups.items():
            yield (name, *_pick(stats, STATS_SCHEMA.names[1:]))


class LeasesTable:
    """The table ``spark_mq_leases(path)``, with a row for each interval of a lease, at most ten."""

    def eval(self, path: str) -> Iterator[Row]:
        queue = _open(path)
        for name in queue.groups():
            for lease in queue.group(name).leases():
                for first, last in lease.positions:
                    head = _pick(lease, LEASES_SCHEMA.names[1:7])
                    yield (name, *head, first, last, lease.delivery_count)


class TraceTable:
    """The table ``spark_mq_trace(path, sequence)`` with one message's events.

    Instead of the sequence, ``message_id =>`` or ``key =>`` names the newest such message.
    """

    def eval(
        self,
        path: str,
        sequence: int | None = None,
        message_id: str | None = None,
        key: str | None = None,
    ) -> Iterator[Row]:
        for event in _open(path).trace(sequence, message_id=message_id, key=key).events:
            head = _pick(event, TRACE_SCHEMA.names[:2])
            yield (*head, event.group, *_pick(event, TRACE_SCHEMA.names[3:]))


class HistoryTable:
    """The table ``spark_mq_history(path)``, with all events and all changes that a person made."""

    def eval(self, path: str) -> Iterator[Row]:
        import pyarrow.compute as pc

        from spark_mq.operations.history import read_history

        table = read_history(_open(path)._context)
        # A pause or a new setting moves no message, so it has no event.
        kept = pc.or_(table["event"].is_valid(), table["user"].is_valid())
        for batch in table.filter(kept).to_batches(max_chunksize=10_000):
            for row in batch.to_pylist():
                yield _pick(row, HISTORY_SCHEMA.names)


TABLE_FUNCTIONS: Final = {
    "spark_mq_stats": (StatsTable, STATS_SCHEMA),
    "spark_mq_leases": (LeasesTable, LEASES_SCHEMA),
    "spark_mq_trace": (TraceTable, TRACE_SCHEMA),
    "spark_mq_history": (HistoryTable, HISTORY_SCHEMA),
}


def register_tables(spark: Any) -> None:
    from pyspark.sql.functions import udtf

    for name, (handler, schema) in TABLE_FUNCTIONS.items():
        spark.udtf.register(name, udtf(handler, returnType=schema, useArrow=False))
