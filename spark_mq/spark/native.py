"""Messages of a batch's leases as Spark's own Parquet reader reads them, so that none of their bytes go through Python.

What a Python data source reads goes to the JVM through a socket, which bounds a drain (benchmarks/README.md). The driver knows what a lease
holds: slices of Parquet files. Spark numbers the rows of a file by itself (``_metadata.row_index``), so it can be told which ones.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from spark_mq.checks import EARLIEST, LATEST
from spark_mq.damage import plain
from spark_mq.errors import StoreFailed
from spark_mq.group import ConsumerGroup
from spark_mq.index import Slice
from spark_mq.payload import unreadable
from spark_mq.ranges import Range
from spark_mq.spark.schema import PAYLOAD_COLUMNS, READ_SCHEMA, SEVERAL_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_held"]

_PAYLOAD: Final = StructType([field for field in READ_SCHEMA.fields if field.name in PAYLOAD_COLUMNS])
_PLACE: Final = ("_file", "_low", "_high", "_before", "_committed_at")
"""Of a slice: its file's name, its first row and the one after its last, what to add to a row's number, when it was committed."""
_STATE: Final = [field for field in SEVERAL_SCHEMA.fields if field.name not in PAYLOAD_COLUMNS and field.name != "sequence"]
_SLICES: Final = StructType(
    [StructField("_file", StringType()), *(StructField(name, LongType()) for name in _PLACE[1:])]
    # Instants go over as microseconds: text would lose some, or its zone.
    + [StructField(field.name, LongType() if isinstance(field.dataType, TimestampType) else field.dataType) for field in _STATE]
)
MOST_SLICES: Final = 10_000
MOST_OF_A_FILE: Final = 100
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9._=-]+")
_LOUD: Final = {
    # Whatever the session says: a file that is skipped would be acked unread, and a flipped bit be delivered.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
}


def read_held(spark: SparkSession, held: Iterable[tuple[ConsumerGroup, Sequence[Range]]], several: bool) -> DataFrame | None:
    """The messages of some ranges, in the columns of the stream (``several``: of one over several queues); None if their files hide it.

    Raises CorruptLog for a file that is not as its commit says, StoreFailed for one that is out of reach, for Spark too.
    """
    schema = SEVERAL_SCHEMA if several else READ_SCHEMA
    frames = []
    for group, ranges in held:
        index = group.queue.log.index()
        pieces = [(piece, of) for of in ranges for piece in index.slices(of.first, of.last)]
        if pieces:
            if not _fits(pieces):
                return None
            _check(group, [piece for piece, _ in pieces])
            frames.append(_frame(spark, group, pieces, schema))
    if not frames:
        return spark.createDataFrame([], schema)
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _fits(pieces: Sequence[tuple[Slice, Range]]) -> bool:
    """Whether Spark can find the slices again, and sooner than Python reads them.

    Their files must have names that Spark tells as they are, no two the same: one that it told otherwise would lose messages. And each row
    of a file is compared with all of its slices.
    """
    slices = Counter(piece.path for piece, _ in pieces)
    names = {path.rsplit("/", 1)[-1] for path in slices}
    plain = len(names) == len(slices) and all(_PLAIN_NAME.fullmatch(name) for name in names)
    return plain and len(pieces) <= MOST_SLICES and max(slices.values()) <= MOST_OF_A_FILE


def _check(group: ConsumerGroup, pieces: Sequence[Slice]) -> None:
    """Whether each file has the rows that its commit says: Spark would read fewer without a word."""
    files = group.queue.log.files
    last = {piece.path: piece for piece in sorted(pieces, key=lambda piece: piece.offset)}
    for piece in last.values():
        try:
            with files.open(piece.path) as raw:
                rows = pq.ParquetFile(raw).metadata.num_rows
            if rows < piece.offset + piece.rows:
                raise pa.ArrowInvalid(f"it has {rows} rows, fewer than its commit says")
        except (OSError, pa.ArrowException) as error:
            raise unreadable(files, piece, error) from error


def _frame(spark: SparkSession, group: ConsumerGroup, pieces: Sequence[tuple[Slice, Range]], schema: StructType) -> DataFrame:
    root = group.queue.log.path
    paths = sorted({f"{root}/{piece.path}" for piece, _ in pieces})
    try:
        rows = spark.read.options(**_LOUD).schema(_PAYLOAD).parquet(*map(_literal, paths))
    except Exception as error:  # Spark's, or the JVM's
        raise StoreFailed(
            f"Spark cannot read {root}: {plain(error)}. lease.read() reads as Spark itself is configured (for s3:// its fs.s3.impl and "
            "fs.s3a.*), not by storageOptions.*: configure that, or use the batch instead",
            path=root, landed=False,
        ) from error  # fmt: skip
    rows = rows.select("*", f.col("_metadata.file_name").alias("_file"), f.col("_metadata.row_index").alias("_row"))
    # As one literal, so that no value is pasted into SQL and no Python worker is asked for them.
    told = f.lit(json.dumps([_told(group, piece, of) for piece, of in pieces]))
    slices = spark.range(1, numPartitions=1).select(f.inline(f.from_json(told, f"array<{_SLICES.simpleString()}>")))
    mine = rows.join(f.broadcast(slices), "_file").where("_row >= _low AND _row < _high").withColumn("sequence", f.expr("_row + _before"))
    return mine.select([_column(field) for field in schema.fields])


def _told(group: ConsumerGroup, piece: Slice, of: Range) -> dict[str, Any]:
    """A slice and what the ledger says of it. Fields of a range that are null are left out."""
    place = (piece.path.rsplit("/", 1)[-1], piece.offset, piece.offset + piece.rows, piece.first - piece.offset, piece.committed_at)
    state = of._asdict() | {"lease_expires_at": of.expires_at, "queue": group.queue.path}
    wanted = {field.name: state[field.name] for field in _STATE}
    return dict(zip(_PLACE, place, strict=True)) | {name: value for name, value in wanted.items() if value is not None}


def _column(field: StructField) -> Any:
    """A column as the source gives it: what the publisher left null reads as DESIGN section 3 says."""
    column = f.col(field.name)
    if field.name == "message_id":
        column = f.coalesce(column, f.col("sequence").cast("string"))
    elif field.name == "published_at":
        earliest, latest = (f.timestamp_micros(f.lit(at)) for at in (EARLIEST, LATEST))
        column = f.least(f.greatest(f.coalesce(column, f.timestamp_micros(f.col("_committed_at"))), earliest), latest)
    elif isinstance(field.dataType, TimestampType):
        column = f.timestamp_micros(column)
    return column.cast(field.dataType).alias(field.name)


def _literal(path: str) -> str:
    """A path in which no character stands for others."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", path)
