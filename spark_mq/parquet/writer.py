"""The data files of ``messages/``: their columns, writing one, and what the columns of a foreign one mean. `slices` reads them.

Files are written first, anywhere (here, on Spark's executors), and become messages with the commit that adds them.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import one_line, to_storage_error, wrap_store_errors
from spark_mq.errors import CorruptLog, SparkMQError
from spark_mq.ledger.message_index import ORDINAL_BITS, DeliveryTimes, FileSlice, TimedRun
from spark_mq.util.validation import EARLIEST, LATEST, SECOND

__all__ = [
    "FILE_SCHEMA",
    "MESSAGE_SCHEMA",
    "TIMES",
    "WrittenFile",
    "column_as",
    "is_timed",
    "read_times",
    "too_few",
    "unreadable",
    "why_unreadable",
    "write_file",
]

_INSTANT = pa.timestamp("us", tz="UTC")
MESSAGE_SCHEMA: Final = pa.schema(
    [
        pa.field("lane", pa.int32()),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("published_at", _INSTANT),
        pa.field("deliver_at", _INSTANT),
        pa.field("expires_at", _INSTANT),
    ]
)
"""The columns of ``messages/``; only value is required. ``lane`` is the partition column (null = 0)."""

FILE_SCHEMA: Final = pa.schema([f for f in MESSAGE_SCHEMA if f.name != "lane"])
_NO_LANE: Final = "lane=__HIVE_DEFAULT_PARTITION__"
TIMES: Final = ("deliver_at", "expires_at")
ROW_GROUP_ROWS: Final = 20_000
"""Small row groups: a lease reads slices from anywhere in a file."""
PAGE_BYTES: Final = 128 * 2**10
_LOOKED_AT: Final = 2**18
"""Bytes of values: of fewer, it does not matter whether they are compressed."""
_LEAVES: Final = [*(f.name for f in FILE_SCHEMA if f.name != "headers"), "headers.key_value.key", "headers.key_value.value"]
"""The columns as Parquet names them."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A data file that is written but not yet published: path relative to ``messages/``, bytes, rows.

    ``timed``: whether any message in it has a deliver_at or expires_at.
    """

    path: str
    size: int
    rows: int
    timed: bool = False

    @property
    def stats(self) -> str:
        """The statistics of its ``add`` action, as far as readers of the log need them."""
        empty = {} if self.timed else dict.fromkeys(TIMES, self.rows)
        return json.dumps({"numRecords": self.rows, "nullCount": empty})


def _shrinks(values: pa.ChunkedArray) -> bool:
    """Whether compressing them is worth it, by a look at three places: values may be compressed already, or encrypted."""
    if values.nbytes < _LOOKED_AT:
        return True
    rows = max(1, len(values) * _LOOKED_AT // values.nbytes // 3)
    places = [values.slice(at, rows).drop_null().to_pylist() for at in (0, (len(values) - rows) // 2, len(values) - rows)]
    looked = [b"".join(len(value).to_bytes(4, "little") + value for value in some) for some in places]  # as in a page
    return sum(len(pa.compress(some, "snappy", asbytes=True)) for some in looked) < 0.95 * sum(map(len, looked))


def write_file(files: ObjectStore, table: pa.Table) -> WrittenFile:
    """Writes messages (any of the columns of FILE_SCHEMA) as one data file of ``messages/``. It is published by a commit."""
    columns = [table[f.name].cast(f.type) if f.name in table.schema.names else pa.nulls(table.num_rows, f.type) for f in FILE_SCHEMA]
    whole, buffer = pa.table(columns, schema=FILE_SCHEMA), io.BytesIO()
    pq.write_table(
        whole,
        buffer,
        compression=dict.fromkeys(_LEAVES, "snappy") | ({} if _shrinks(whole["value"]) else {"value": "none"}),
        row_group_size=ROW_GROUP_ROWS,
        use_dictionary=["key"],
        write_statistics=["message_id", "key", "published_at", *TIMES],  # a column of nulls need not be read
        write_page_checksum=True,  # or a flipped bit would be delivered
        write_page_index=True,  # where each page begins: a lease of few messages reads few pages
        data_page_size=PAGE_BYTES,
    )
    path = f"{_NO_LANE}/part-{uuid.uuid4()}.parquet"
    with wrap_store_errors(files.root, "publishing to"):
        files.write(path, buffer.getvalue())
    timed = any(name in table.schema.names and table[name].null_count < table.num_rows for name in TIMES)
    return WrittenFile(path, buffer.tell(), table.num_rows, timed)


def is_timed(stats: Mapping[str, Any]) -> bool:
    """Whether a file may hold messages with a deliver_at or expires_at, from the statistics of its ``add`` action."""
    nulls, rows = stats.get("nullCount") or {}, stats.get("numRecords")
    return rows is None or any(nulls.get(name) != rows for name in TIMES)


def read_times(files: ObjectStore, path: str) -> DeliveryTimes | None:
    """The deliver_at and expires_at of a file's messages; None where it has none, or cannot be read.

    deliver_at is rounded up to whole seconds: never early, a second late at most, and fewer runs.
    """
    try:
        with files.open(path) as raw:
            file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us")
            present = [name for name in TIMES if name in file.schema_arrow.names]
            table = file.read(columns=present)
    except (OSError, pa.ArrowException) as error:
        why_unreadable(files, path, error)  # raises if that is the store's doing, for now
        return None  # such a file makes its messages dead once they are leased
    columns = [_bounded(table[name]).cast(pa.int64()).to_pylist() if name in present else [None] * table.num_rows for name in TIMES]
    if all(value is None for column in columns for value in column):
        return None
    runs: list[TimedRun] = []
    for deliver_at, expires_at in zip(*columns, strict=True):
        due = None if deliver_at is None else min(LATEST, -(-deliver_at // SECOND) * SECOND)
        if runs and runs[-1][1:] == (due, expires_at):
            runs[-1] = (runs[-1][0] + 1, due, expires_at)
        else:
            runs.append((1, due, expires_at))
    return DeliveryTimes.of(runs)


def _bounded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Instants in microseconds, within the years that there are: a foreign writer may have any."""
    at = column.cast(_INSTANT, safe=False).cast(pa.int64())
    return pc.min_element_wise(pc.max_element_wise(at, EARLIEST, skip_nulls=False), LATEST, skip_nulls=False).cast(_INSTANT)


def why_unreadable(files: ObjectStore, path: str, error: Exception) -> str:
    """In words, why reading a data file failed. Raises where its bytes are out of reach for now: that is not the file's fault."""
    try:
        files.read(path)
    except FileNotFoundError:
        return f"data file {path} is missing"
    return f"data file {path} is not readable: {one_line(error)}"


def too_few(rows: int) -> pa.ArrowInvalid:
    """The error for a file of so many rows where there should be more."""
    return pa.ArrowInvalid(f"it has {rows} rows, fewer than its commit says")


def unreadable(files: ObjectStore, piece: FileSlice, error: Exception) -> SparkMQError:
    """The error to raise where a slice of messages could not be read."""
    try:
        why = why_unreadable(files, piece.path, error)
    except OSError as out_of_reach:
        return to_storage_error(files.root, out_of_reach, "reading messages of")
    return CorruptLog(
        f"messages {piece.first}..{piece.first + piece.rows - 1} of {files.root} cannot be read: {why}. Restore it from a backup before "
        "they are leased again, for then they become dead letters without a payload; all others go on",
        path=files.root, version=piece.first >> ORDINAL_BITS,
    )  # fmt: skip


def column_as(table: pa.Table, wanted: pa.Field, sequences: pa.Array, committed_at: int) -> pa.ChunkedArray:
    """A column of a file, which has the type that is wanted; what the publisher left null reads as DESIGN section 3 says.

    ``sequences``: of the rows; ``committed_at``: when the file was (microseconds).
    """
    column = table[wanted.name] if wanted.name in table.schema.names else pa.nulls(table.num_rows, wanted.type)
    if wanted.type == _INSTANT:
        column = _bounded(column)
    if wanted.name == "published_at" and column.null_count:
        return column.fill_null(pa.scalar(committed_at, pa.int64()).cast(wanted.type))
    if wanted.name == "message_id" and column.null_count:
        return pc.coalesce(column, sequences.cast(pa.string()))
    return column
