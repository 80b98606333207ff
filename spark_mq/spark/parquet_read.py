"""Read the messages of a batch's leases with Spark's own Parquet reader.

The bytes of a Python data source reach the JVM through a socket, which bounds a drain. The driver
knows which slices of which files a lease holds, so Spark can read them without Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.group import ConsumerGroup
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.parquet.files import FileStore, row_count_error, unreadable_error
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.spark.lease_lookup import BatchScan
from spark_mq.spark.partitions import Piece
from spark_mq.spark.schema import DATA_COLUMNS, PAYLOAD_COLUMNS, READ_SCHEMA, SEVERAL_SCHEMA
from spark_mq.spark.slice_frame import slice_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_held", "read_scan"]

Files = Mapping[str, Sequence[Piece]]  # the wanted slices, by the path of their file

MAX_ORDERED_FILES: Final = 8  # of a batch, read one after the other to keep the order of rows
MAX_SLICES: Final = 10_000
MAX_SLICES_OF_FILE: Final = 100
# Names that Spark neither encodes nor hides from a listing.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(?<!\._COPYING_)")


def read_held(
    spark: SparkSession, held: Iterable[tuple[ConsumerGroup, Sequence[Range]]], several: bool
) -> DataFrame | None:
    """Read the messages of ranges as the stream would, or return None if Spark cannot."""
    schema = SEVERAL_SCHEMA if several else READ_SCHEMA
    frames = []
    for group, ranges in held:
        files = _by_file(group, ranges)
        if not files:
            continue
        frame = _frame(spark, group, files, schema.names)
        if frame is None:
            return None
        frames.append(frame)
    return _union(frames) if frames else spark.createDataFrame([], schema)


def read_scan(
    batch: DataFrame, scan: BatchScan, owner: Callable[[str], ConsumerGroup]
) -> DataFrame | None:
    """Read a batch's slices as the stream would, or return None if its tasks should."""
    if scan.keeps_lanes:  # Spark would read each file, and each part of one, in another task.
        return None
    names = batch.columns
    runs = _runs(scan.pieces)
    if len(set(names)) < len(names) or runs is None or not scan.pays_for_files(len(runs)):
        return None
    if not set(names).isdisjoint(DATA_COLUMNS):  # The source's tasks parse values.
        return None
    frames = []
    for lease_id, files in runs:
        frame = _frame(batch.sparkSession, owner(lease_id), files, names)
        if frame is None:
            return None
        frames.append(frame)
    return _union(frames)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _runs(pieces: Sequence[Piece]) -> list[tuple[str, Files]] | None:
    """Return each file with its lease, in order, or None if such reads change the order."""
    # Spark begins with the largest file of a read, so each read has one file.
    runs: list[tuple[str, dict[str, list[Piece]]]] = []
    for piece, of in pieces:
        lease_id = of.lease_id or ""
        if not runs or runs[-1][0] != lease_id or piece.path not in runs[-1][1]:
            runs.append((lease_id, {piece.path: []}))
        mine = runs[-1][1][piece.path]
        if mine and mine[-1][0].offset > piece.offset:
            return None
        mine.append((piece, of))
    few = 0 < len(runs) <= MAX_ORDERED_FILES
    return [(lease_id, files) for lease_id, files in runs] if few else None


def _by_file(group: ConsumerGroup, ranges: Sequence[Range]) -> Files:
    index = group._context.messages.index()
    files: dict[str, list[tuple[FileSlice, Range]]] = {}
    for of in ranges:
        for piece in index.slices(of.first, of.last):
            files.setdefault(piece.path, []).append((piece, of))
    return files


def _frame(
    spark: SparkSession, group: ConsumerGroup, files: Files, names: Sequence[str]
) -> DataFrame | None:
    """Return the wanted rows of the files, or None if Spark would not read the same rows."""
    if not _is_supported(files):
        return None
    alike, whole = _check(group, files)
    return slice_frame(spark, group._context, files, names, whole=whole) if alike else None


def _is_supported(files: Files) -> bool:
    """Return whether Spark finds the slices, and sooner than Python reads them."""
    # Rows are matched with their file by its name, so no two files may have the same name. Each row
    # of a file is compared with all of the file's slices.
    names = {path.rpartition("/")[2] for path in files}
    slices = [len(pieces) for pieces in files.values()]
    found = len(names) == len(files) and all(_PLAIN_NAME.fullmatch(name) for name in names)
    return found and sum(slices) <= MAX_SLICES and max(slices, default=0) <= MAX_SLICES_OF_FILE


def _check(group: ConsumerGroup, files: Files) -> tuple[bool, bool]:
    """Return whether Spark and Arrow read the files alike, and whether all rows are wanted."""
    # A file with fewer rows than its commit claims is a CorruptLog, which Spark would not notice.
    alike, whole, store = True, True, group._context.messages.files
    for pieces in files.values():
        last = max((piece for piece, _ in pieces), key=lambda piece: piece.offset)
        try:
            file = _opened(store, last)
        except (OSError, pa.ArrowException) as error:
            raise unreadable_error(store, last, error, partial(_opened, piece=last)) from error
        rows = file.metadata.num_rows
        whole = whole and rows == sum(piece.rows for piece, _ in pieces)
        alike = alike and _is_alike(file)
    return alike, whole


def _opened(store: FileStore, piece: FileSlice) -> pq.ParquetFile:
    """Open a file, and check that it has a slice's rows."""
    with store.open(piece.path) as raw:
        file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us")
    if file.metadata.num_rows < piece.offset + piece.rows:
        raise row_count_error(file.metadata.num_rows)
    return file


def _is_alike(file: pq.ParquetFile) -> bool:
    """Return whether the columns have our types. Spark reads other types in its own way."""
    leaves = {
        leaf.path: leaf.physical_type
        for leaf in (file.schema.column(at) for at in range(len(file.schema)))
    }
    return all(
        field.type == FILE_SCHEMA.field(field.name).type or leaves.get(field.name) == "INT96"
        for field in file.schema_arrow
        if field.name in PAYLOAD_COLUMNS
    )
