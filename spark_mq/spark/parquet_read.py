"""Messages of a batch's leases as Spark's own Parquet reader reads them, so that none of their
bytes go through Python.

What a Python data source reads goes to the JVM through a socket, which bounds a drain
(benchmarks/README.md). The driver knows what a lease
holds: slices of Parquet files. Spark numbers the rows of a file by itself
(``_metadata.row_index``), so it can be told which ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType, TimestampType

from spark_mq.delta.store_errors import one_line
from spark_mq.errors import StorageError
from spark_mq.group import ConsumerGroup
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.parquet.files import FileStore
from spark_mq.parquet.read_errors import row_count_error, unreadable_error
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.spark.batch_scan import BatchScan
from spark_mq.spark.partitions import Piece
from spark_mq.spark.schema import PAYLOAD_COLUMNS, READ_SCHEMA, SEVERAL_SCHEMA
from spark_mq.util.clock import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_held", "read_scan"]


def _told_as(kind: DataType) -> str:
    """Instants go over as microseconds: text would lose some, or its zone."""
    return "bigint" if isinstance(kind, TimestampType) else kind.simpleString()


_PAYLOAD: Final = StructType(
    [field for field in READ_SCHEMA.fields if field.name in PAYLOAD_COLUMNS]
)
_STATE: Final = [
    field
    for field in SEVERAL_SCHEMA.fields
    if field.name not in PAYLOAD_COLUMNS and field.name != "sequence"
]
_PLACE: Final = "struct<low:bigint,high:bigint,before:bigint,committed_at:bigint>"
"""Of a slice: its first row and the one after its last, what to add to a row's number, and when it
was committed (microseconds)."""
_OF: Final = (
    "struct<" + ",".join(f"{field.name}:{_told_as(field.dataType)}" for field in _STATE) + ">"
)
"""What the ledger says of a range."""
_Files = Mapping[str, Sequence[tuple[FileSlice, Range]]]
"""What is wanted of each file, by its path."""
_Place = Mapping[str, int]
_Told = Mapping[str, Any]
FEW_FILES: Final = 32
"""Whose places are looked up row by row in a constant; more of them are joined."""
MOST_ORDERED_FILES: Final = 8
"""Files of a batch, which are read one after the other to keep the order of the rows."""
PLAN_BYTES: Final = 24 * 2**20
"""Bytes that pass through Python in the time that Spark takes to plan the read of a file."""
ROW_BYTES: Final = 1_000
"""Bytes that pass through Python in the time that a row takes on top of its own bytes."""
MOST_SLICES: Final = 10_000
MOST_OF_A_FILE: Final = 100
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(?<!\._COPYING_)")
"""Names that Spark tells as they are, and does not leave out of a listing as hidden."""
_LOUD: Final = {
    # Whatever the session says: a file that is skipped would be acked unread, and a flipped bit be
    # delivered.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
    # The source's tasks rebase no old dates either.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}


def read_held(
    spark: SparkSession, held: Iterable[tuple[ConsumerGroup, Sequence[Range]]], several: bool
) -> DataFrame | None:
    """The messages of some ranges, in the columns of the stream (``several``: of one over several
    queues); None if their files hide it.

    Raises CorruptLog for a file that is not as its commit says, StorageError for one that is out of
    reach, for Spark too.
    """
    schema = SEVERAL_SCHEMA if several else READ_SCHEMA
    frames = []
    for group, ranges in held:
        files = _by_file(group, ranges)
        if not files:
            continue
        frame = _frame(spark, group, files, schema.names) if _fits(files) else None
        if frame is None:
            return None
        frames.append(frame)
    return _union(frames) if frames else spark.createDataFrame([], schema)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def read_scan(
    batch: DataFrame, scan: BatchScan, owner: Callable[[str], ConsumerGroup]
) -> DataFrame | None:
    """Read what a batch scans, with its columns and order; None if only its own tasks may.

    ``owner`` returns the group of a lease id. Raises CorruptLog and StorageError, as
    :func:`read_held`.
    """
    names = batch.columns
    runs = _runs(scan.pieces)
    if len(set(names)) < len(names) or runs is None or not _pays(scan.pieces, len(runs)):
        return None
    frames = []
    for lease_id, files in runs:
        group = owner(lease_id)
        frame = _frame(batch.sparkSession, group, files, names) if _fits(files) else None
        if frame is None:
            return None
        frames.append(frame)
    return _union(frames)


def _pays(pieces: Sequence[Piece], files: int) -> bool:
    """Return whether Spark plans and reads the files sooner than the source's tasks read them."""
    return sum(piece.size + piece.rows * ROW_BYTES for piece, _ in pieces) >= files * PLAN_BYTES


def _runs(pieces: Sequence[Piece]) -> list[tuple[str, _Files]] | None:
    """Return each file of a batch in order, with its lease; None if that would change the order.

    Spark begins with the largest file of a read, so each read has one.
    """
    runs: list[tuple[str, dict[str, list[Piece]]]] = []
    for piece, of in pieces:
        lease_id = of.lease_id or ""
        if not runs or runs[-1][0] != lease_id or piece.path not in runs[-1][1]:
            runs.append((lease_id, {piece.path: []}))
        mine = runs[-1][1][piece.path]
        if mine and mine[-1][0].offset > piece.offset:
            return None
        mine.append((piece, of))
    return (
        [(lease_id, files) for lease_id, files in runs]
        if 0 < len(runs) <= MOST_ORDERED_FILES
        else None
    )


def _by_file(group: ConsumerGroup, ranges: Sequence[Range]) -> _Files:
    index = group._context.messages.index()
    files: dict[str, list[tuple[FileSlice, Range]]] = {}
    for of in ranges:
        for piece in index.slices(of.first, of.last):
            files.setdefault(piece.path, []).append((piece, of))
    return files


def _fits(files: _Files) -> bool:
    """Whether Spark finds the slices again, and sooner than Python reads them.

    No two files may have the same name, nor one that Spark tells otherwise or hides: its messages
    would be lost. And each row of a file is
    compared with all of its slices.
    """
    names, slices = {_name(path) for path in files}, [len(pieces) for pieces in files.values()]
    found = len(names) == len(files) and all(_PLAIN_NAME.fullmatch(name) for name in names)
    return found and sum(slices) <= MOST_SLICES and max(slices, default=0) <= MOST_OF_A_FILE


def _check(group: ConsumerGroup, files: _Files) -> tuple[bool, bool]:
    """Return whether Spark and Arrow read the files alike, and whether all of their rows are
    wanted.

    Raises CorruptLog for a file with fewer rows than its commit says. Spark would not notice.
    """
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
    """Open a file, and check that it has the rows of a slice."""
    with store.open(piece.path) as raw:
        file = pq.ParquetFile(raw, coerce_int96_timestamp_unit="us")
    if file.metadata.num_rows < piece.offset + piece.rows:
        raise row_count_error(file.metadata.num_rows)
    return file


def _is_alike(file: pq.ParquetFile) -> bool:
    """Return whether the columns have our types. Spark reads others in its own way, or not at
    all."""
    leaves = {
        leaf.path: leaf.physical_type
        for leaf in (file.schema.column(at) for at in range(len(file.schema)))
    }
    ours = {name: FILE_SCHEMA.field(name).type for name in _PAYLOAD.names}
    return all(
        field.type == ours[field.name] or leaves.get(field.name) == "INT96"
        for field in file.schema_arrow
        if field.name in ours
    )


def _frame(
    spark: SparkSession, group: ConsumerGroup, files: _Files, names: Sequence[str]
) -> DataFrame | None:
    """The wanted rows of the files, with columns of these names; None if Spark may read them
    otherwise."""
    alike, whole = _check(group, files)
    if not alike:
        return None
    rows = _rows(spark, group._context.messages.path, files)
    ranges = {of for pieces in files.values() for _, of in pieces}
    if (
        len(files) <= FEW_FILES
        and len(ranges) == 1
        and all(len(pieces) == 1 for pieces in files.values())
    ):
        (of,) = ranges
        places = {_name(path): _place(piece) for path, ((piece, _),) in files.items()}
        return _by_constants(rows, places, whole, _told(group, of), names)
    each = [
        {"_file": _name(path), "_place": _place(piece), "_of": _told(group, of)}
        for path, pieces in files.items()
        for piece, of in pieces
    ]
    return _by_join(rows, each, names)


def _by_constants(
    rows: DataFrame, places: Mapping[str, _Place], whole: bool, told: _Told, names: Sequence[str]
) -> DataFrame:
    """As of a lease of what was unread: one range, of which each file has one slice.

    Without a join this is read as fast as a plain table, and in one step, since Spark takes some 10
    ms to look at each.
    """
    row = "_metadata.row_index"
    if not whole:
        rows = rows.where(
            f"{row} >= {_by_name(places, 'low')} AND {row} < {_by_name(places, 'high')}"
        )
    of = {field.name: _literal(told.get(field.name), field.dataType) for field in _STATE}
    return rows.selectExpr(
        *_columns(names, row, _by_name(places, "before"), _by_name(places, "committed_at"), of)
    )


def _by_join(
    rows: DataFrame, slices: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> DataFrame:
    """Of any slices, each with its ``_file``, ``_place`` and ``_of``."""
    held = (
        f"inline(from_json({_text(json.dumps(slices))}, "
        f"'array<struct<_file:string,_place:{_PLACE},_of:{_OF}>>'))"
    )
    told = rows.sparkSession.range(1, numPartitions=1).selectExpr(held)
    mine = rows.selectExpr("*", "_metadata.row_index AS _row", "_metadata.file_name AS _file").join(
        f.broadcast(told), "_file"
    )
    of = {field.name: _instant(f"_of.{field.name}", field.dataType) for field in _STATE}
    return mine.where("_row >= _place.low AND _row < _place.high").selectExpr(
        *_columns(names, "_row", "_place.before", "_place.committed_at", of)
    )


def _columns(
    names: Sequence[str], row: str, before: str, committed_at: str, of: Mapping[str, str]
) -> list[str]:
    """The columns as SQL. What the publisher left null reads as DESIGN section 3 says."""
    published = (
        f"greatest(coalesce(published_at, timestamp_micros({committed_at})), "
        f"timestamp_micros({EARLIEST}L))"
    )
    sequence = f"{row} + {before}"
    own = {
        "sequence": sequence,
        "message_id": f"coalesce(message_id, CAST({sequence} AS STRING))",
        "published_at": f"least({published}, timestamp_micros({LATEST}L))",
        **of,
    }
    # Nullable, as in the stream. Spark drops the condition from the plan.
    return [f"IF(TRUE, {own[name]}, NULL) AS {name}" if name in own else name for name in names]


def _rows(spark: SparkSession, root: str, files: _Files) -> DataFrame:
    # No character of a path may stand for others.
    paths = [re.sub(r"([\\{}\[\]*?,])", r"\\\1", f"{root}/{path}") for path in sorted(files)]
    try:
        return spark.read.options(**_LOUD).schema(_PAYLOAD).parquet(*paths)
    except Exception as error:  # Spark's, or the JVM's
        raise StorageError(
            f"Spark cannot read {root}: {one_line(error)}. lease.read() reads as Spark itself is "
            f"configured (for s3:// its fs.s3.impl and "
            "fs.s3a.*), not by storageOptions.*: configure that, or use the batch instead",
            path=root,
            landed=False,
        ) from error


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _place(piece: FileSlice) -> _Place:
    return {
        "low": piece.offset,
        "high": piece.offset + piece.rows,
        "before": piece.first - piece.offset,
        "committed_at": piece.committed_at,
    }


def _told(group: ConsumerGroup, of: Range) -> _Told:
    """What the ledger says of a range. What is null is left out."""
    state = of._asdict() | {"lease_expires_at": of.expires_at, "queue": group._context.path}
    return {field.name: state[field.name] for field in _STATE if state[field.name] is not None}


def _text(value: str) -> str:
    """A text as SQL, in which none of its characters stands, only the hexadecimal digits of its
    bytes."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


def _literal(value: str | int | None, kind: DataType) -> str:
    """A value as SQL."""
    if isinstance(value, str):
        return _text(value)
    return (
        f"CAST(NULL AS {kind.simpleString()})"
        if value is None
        else _instant(f"CAST({value:d} AS {_told_as(kind)})", kind)
    )


def _instant(number: str, kind: DataType) -> str:
    return f"timestamp_micros({number})" if isinstance(kind, TimestampType) else number


def _by_name(places: Mapping[str, _Place], what: str) -> str:
    """What is told of the place of a row's file. The names are plain, so they may stand in SQL."""
    if len({place[what] for place in places.values()}) == 1:
        return f"{next(iter(places.values()))[what]}L"
    pairs = ", ".join(f"{name!r}, {place[what]}L" for name, place in places.items())
    return f"element_at(map({pairs}), _metadata.file_name)"
