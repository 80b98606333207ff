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
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from spark_mq.checks import EARLIEST, LATEST
from spark_mq.damage import plain
from spark_mq.errors import StoreFailed
from spark_mq.group import ConsumerGroup
from spark_mq.index import Slice
from spark_mq.payload import unreadable
from spark_mq.ranges import Range
from spark_mq.spark.schema import PAYLOAD_COLUMNS, READ_SCHEMA, SEVERAL_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["read_held"]

_PAYLOAD: Final = StructType([field for field in READ_SCHEMA.fields if field.name in PAYLOAD_COLUMNS])
_STATE: Final = [field for field in SEVERAL_SCHEMA.fields if field.name not in PAYLOAD_COLUMNS and field.name != "sequence"]
_PLACE: Final = "struct<low:bigint,high:bigint,before:bigint,committed_at:bigint>"
"""Of a slice: its first row and the one after its last, what to add to a row's number, and when it was committed (microseconds)."""
_OF: Final = StructType(
    # Instants go over as microseconds: text would lose some, or its zone.
    [StructField(field.name, LongType() if isinstance(field.dataType, TimestampType) else field.dataType) for field in _STATE]
).simpleString()
"""What the ledger says of a range."""
_SEQUENCE: Final = "_row + _place.before"
_OWN: Final = {
    "sequence": _SEQUENCE,
    # What the publisher left null reads as DESIGN section 3 says.
    "message_id": f"coalesce(message_id, CAST({_SEQUENCE} AS STRING))",
    "published_at": "least(greatest(coalesce(published_at, timestamp_micros(_place.committed_at)), "
    f"timestamp_micros({EARLIEST})), timestamp_micros({LATEST}))",
} | {
    field.name: f"timestamp_micros(_of.{field.name})" if isinstance(field.dataType, TimestampType) else f"_of.{field.name}"
    for field in _STATE
}
"""The columns that are not as in the file."""
FEW_FILES: Final = 32
"""Whose places are looked up row by row in a constant; more of them are joined."""
MOST_SLICES: Final = 10_000
MOST_OF_A_FILE: Final = 100
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(?<!\._COPYING_)")
"""Names that Spark tells as they are, and does not leave out of a listing as hidden."""
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
            frames.append(_frame(spark, group, pieces).selectExpr(*(f"{_OWN.get(name, name)} AS {name}" for name in schema.names)))
    if not frames:
        return spark.createDataFrame([], schema)
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _fits(pieces: Sequence[tuple[Slice, Range]]) -> bool:
    """Whether Spark finds the slices again, and sooner than Python reads them.

    No two files may have the same name, nor one that Spark tells otherwise or hides: its messages would be lost. And each row of a file is
    compared with all of its slices.
    """
    slices = Counter(piece.path for piece, _ in pieces)
    names = {_name(path) for path in slices}
    found = len(names) == len(slices) and all(_PLAIN_NAME.fullmatch(name) for name in names)
    return found and len(pieces) <= MOST_SLICES and max(slices.values()) <= MOST_OF_A_FILE


def _check(group: ConsumerGroup, pieces: Sequence[tuple[Slice, Range]]) -> bool:
    """Whether each file has the rows that its commit says: Spark would read fewer without a word. And whether these are all that it has."""
    files = group.queue.log.files
    last = {piece.path: piece for piece, _ in sorted(pieces, key=lambda piece: piece[0].offset)}
    whole = Counter[str]()
    for piece, _ in pieces:
        whole[piece.path] += piece.rows
    for piece in last.values():
        try:
            with files.open(piece.path) as raw:
                rows = pq.ParquetFile(raw).metadata.num_rows
            if rows < piece.offset + piece.rows:
                raise pa.ArrowInvalid(f"it has {rows} rows, fewer than its commit says")
        except (OSError, pa.ArrowException) as error:
            raise unreadable(files, piece, error) from error
        whole[piece.path] -= rows
    return not any(whole.values())


def _frame(spark: SparkSession, group: ConsumerGroup, pieces: Sequence[tuple[Slice, Range]]) -> DataFrame:
    """The rows of the files that are in the pieces, with ``_place`` and ``_of``."""
    whole = _check(group, pieces)
    rows = _rows(spark, group.queue.log.path, pieces)
    file, row = f.col("_metadata.file_name"), f.col("_metadata.row_index").alias("_row")
    # What is told goes as literals, so that no value is pasted into SQL, and no Python worker is asked for it.
    if len(pieces) <= FEW_FILES and len({piece.path for piece, _ in pieces}) == len(pieces) and len({of.first for _, of in pieces}) == 1:
        # As of a lease of what was unread: constants but for the place. Without a join this is read as fast as a plain table.
        places = _literal({_name(piece.path): _place(piece) for piece, _ in pieces}, f"map<string,{_PLACE}>")
        of = _literal(_told(group, pieces[0][1]), _OF)
        mine = rows.select("*", row, f.element_at(places, file).alias("_place"), of.alias("_of"))
        return mine if whole else mine.where("_row >= _place.low AND _row < _place.high")
    told = [{"_file": _name(piece.path), "_place": _place(piece), "_of": _told(group, of)} for piece, of in pieces]
    slices = _literal(told, f"array<struct<_file:string,_place:{_PLACE},_of:{_OF}>>")
    held = f.broadcast(spark.range(1, numPartitions=1).select(f.inline(slices)))
    return rows.select("*", row, file.alias("_file")).join(held, "_file").where("_row >= _place.low AND _row < _place.high")


def _rows(spark: SparkSession, root: str, pieces: Sequence[tuple[Slice, Range]]) -> DataFrame:
    paths = sorted({f"{root}/{piece.path}" for piece, _ in pieces})
    # No character of a path may stand for others.
    paths = [re.sub(r"([\\{}\[\]*?,])", r"\\\1", path) for path in paths]
    try:
        return spark.read.options(**_LOUD).schema(_PAYLOAD).parquet(*paths)
    except Exception as error:  # Spark's, or the JVM's
        raise StoreFailed(
            f"Spark cannot read {root}: {plain(error)}. lease.read() reads as Spark itself is configured (for s3:// its fs.s3.impl and "
            "fs.s3a.*), not by storageOptions.*: configure that, or use the batch instead",
            path=root, landed=False,
        ) from error  # fmt: skip


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _place(piece: Slice) -> dict[str, int]:
    return {
        "low": piece.offset,
        "high": piece.offset + piece.rows,
        "before": piece.first - piece.offset,
        "committed_at": piece.committed_at,
    }


def _told(group: ConsumerGroup, of: Range) -> dict[str, Any]:
    """What the ledger says of a range. What is null is left out."""
    state = of._asdict() | {"lease_expires_at": of.expires_at, "queue": group.queue.path}
    return {field.name: state[field.name] for field in _STATE if state[field.name] is not None}


def _literal(value: Any, kind: str) -> Column:
    return f.from_json(f.lit(json.dumps(value)), kind)
