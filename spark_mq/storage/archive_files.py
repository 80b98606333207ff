"""Read and write the data files of an archive, and leave files out of a search by their bounds."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Container, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile
from spark_mq.delta.object_store import ObjectStore

__all__ = ["Filters", "matching_rows", "may_match", "read_file", "write_files"]

# Zstd halves a merged file, but its start for each column takes 1 ms, which a small append saves.
_FEW_ROWS: Final = 1_000

# Conditions on rows. Each has a column, one of ``=``, ``<=``, ``>=``, and a value.
Filters = list[tuple[str, str, Any]]


def read_file(
    store: ObjectStore, file: AddFile, schema: pa.Schema, columns: Container[str] | None = None
) -> pa.Table:
    """Return the rows of a file with the value of its partition, perhaps only some columns."""
    wanted = pa.schema([f for f in schema if columns is None or f.name in columns])
    rows = store.read_parquet(file.path, wanted)
    for name, text in file.partition.items():
        if name in wanted.names:
            value = pa.scalar(text).cast(wanted.field(name).type)
            column = pa.repeat(value, rows.num_rows)
            rows = rows.set_column(wanted.names.index(name), wanted.field(name), column)
    return rows


def write_files(store: ObjectStore, rows: pa.Table, partition: str | None) -> Iterator[AddFile]:
    """Write rows as one file for each value of a column, or as one file."""
    if partition is None:
        if rows.num_rows:
            yield _write_file(store, "", {}, rows)
        return
    for value in sorted(set(rows[partition].to_pylist())):
        part = rows.filter(pc.equal(rows[partition], value)).drop_columns([partition])
        yield _write_file(store, f"{partition}={value}/", {partition: str(value)}, part)


def _write_file(
    store: ObjectStore, folder: str, partition: dict[str, str | None], rows: pa.Table
) -> AddFile:
    path, buffer = f"{folder}part-{uuid.uuid4()}.parquet", io.BytesIO()
    codec = "snappy" if rows.num_rows < _FEW_ROWS else "zstd"
    pq.write_table(rows, buffer, compression=codec, write_page_checksum=True)
    store.write(path, buffer.getvalue())
    return AddFile(path, buffer.tell(), rows.num_rows, partition, _statistics(rows))


def _statistics(rows: pa.Table) -> str:
    """Return the statistics of a file, with the bounds for searches."""
    first, last = pc.min(rows["first"]).as_py(), pc.max(rows["last"]).as_py()
    latest = pc.max(rows["committed_at"]).as_py()
    least = {} if first is None else {"first": first}
    most = {} if last is None else {"last": last}
    most |= {} if latest is None else {"committed_at": _rounded_up(latest)}
    return json.dumps({"numRecords": rows.num_rows, "minValues": least, "maxValues": most})


def _rounded_up(at: datetime) -> str:
    """Return an instant rounded up to milliseconds, the unit of Delta's statistics."""
    later = at + timedelta(microseconds=-at.microsecond % 1000)
    return later.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def may_match(file: AddFile, filters: Filters) -> bool:
    """Return whether a file may have rows that match, by its statistics."""
    stats = file.statistics
    bounds = {"<=": stats.get("minValues") or {}, ">=": stats.get("maxValues") or {}}
    for name, operator, value in filters:
        bound = bounds.get(operator, {}).get(name)
        if bound is None:
            continue
        if isinstance(value, datetime):
            bound = datetime.fromisoformat(bound)
        if bound > value if operator == "<=" else bound < value:
            return False
    return True


def matching_rows(rows: pa.Table, filters: Filters) -> pa.Table:
    compare = {"=": pc.equal, "<=": pc.less_equal, ">=": pc.greater_equal}
    for name, operator, value in filters:
        rows = rows.filter(compare[operator](rows[name], value))
    return rows
