"""Read the deliver_at and expires_at of published messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.ledger.message_index import DeliveryTimes, TimedRun
from spark_mq.parquet.files import FileStore, unreadable_reason
from spark_mq.parquet.schema import INSTANT, TIME_COLUMNS
from spark_mq.util.clock import EARLIEST, LATEST, SECOND

__all__ = ["clamp_instants", "may_have_times", "read_delivery_times"]


def may_have_times(stats: Mapping[str, Any]) -> bool:
    """Return whether a file may hold one of TIME_COLUMNS, by its ``add`` action's statistics."""
    nulls, rows = stats.get("nullCount") or {}, stats.get("numRecords")
    return rows is None or any(nulls.get(name) != rows for name in TIME_COLUMNS)


def read_delivery_times(files: FileStore, path: str) -> DeliveryTimes | None:
    """Return a file's delivery times, or None if it has none or is damaged. Raise OSError."""
    try:
        columns = _read_columns(files, path)
    except (OSError, pa.ArrowException) as error:
        unreadable_reason(files, path, error, partial(_read_columns, path=path))
        return None
    if all(value is None for column in columns for value in column):
        return None
    return DeliveryTimes.of(_runs(columns))


def _read_columns(files: FileStore, path: str) -> list[list[int | None]]:
    with files.open(path) as raw:
        file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us")
        present = [name for name in TIME_COLUMNS if name in file.schema_arrow.names]
        table = file.read(columns=present)
    return [
        clamp_instants(table[name]).cast(pa.int64()).to_pylist()
        if name in present
        else [None] * table.num_rows
        for name in TIME_COLUMNS
    ]


def _runs(columns: Iterable[list[int | None]]) -> list[TimedRun]:
    runs: list[TimedRun] = []
    for deliver_at, expires_at in zip(*columns, strict=True):
        # Rounded up, so no message is early, and neighbours with equal times share a run.
        due = None if deliver_at is None else min(LATEST, -(-deliver_at // SECOND) * SECOND)
        if runs and runs[-1][1:] == (due, expires_at):
            runs[-1] = (runs[-1][0] + 1, due, expires_at)
        else:
            runs.append((1, due, expires_at))
    return runs


def clamp_instants(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return instants in microseconds, cut to years 1 to 9999, which foreign writers may exceed."""
    instants = column if column.type == INSTANT else column.cast(INSTANT, safe=False)
    if instants.null_count == len(instants):
        return instants
    limits = pc.min_max(instants)
    if limits["min"].value >= EARLIEST and limits["max"].value <= LATEST:
        return instants
    at = instants.cast(pa.int64())
    late = pc.max_element_wise(at, EARLIEST, skip_nulls=False)
    return pc.min_element_wise(late, LATEST, skip_nulls=False).cast(INSTANT)
