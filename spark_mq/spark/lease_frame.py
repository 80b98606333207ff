"""Make the data frame of a batch's leases with Spark's own Parquet reader.

The bytes of a Python data source reach the JVM through a socket, which bounds a drain. The driver
knows which slices of which files a lease holds, so Spark can read them without Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType, TimestampType

from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import one_line
from spark_mq.errors import StorageError
from spark_mq.group import ConsumerGroup
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.slots import MAX_PRIORITY
from spark_mq.operations.context import QueueContext
from spark_mq.parquet.files import row_count_error, unreadable_error
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.spark.lease_lookup import BatchScan
from spark_mq.spark.partitions import Piece
from spark_mq.spark.schema import DATA_COLUMNS, PAYLOAD_COLUMNS, READ_SCHEMA, SEVERAL_SCHEMA
from spark_mq.util.clock import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_ORDERED_FILES: Final = 8  # of a batch, read one after the other to keep the order of rows
MAX_SLICES: Final = 10_000
MAX_SLICES_OF_FILE: Final = 100
# Names that Spark neither encodes nor hides from a listing.
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(?<!\._COPYING_)")

# The place of a slice: its first row, the row after its last, a sequence less its row, and the time
# of its commit in microseconds.
_PLACE: Final = "struct<low:bigint,high:bigint,before:bigint,committed_at:bigint>"
# The places of this many files fit into a constant. The places of more are joined.
MAX_CONSTANT_FILES: Final = 32
_STRICT_READ_OPTIONS: Final = {
    # They overrule the session. A skipped file would be acked unread, a flipped bit delivered.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "parquet.page.verify-checksum.enabled": "true",
    # The source's tasks rebase no old dates either.
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}
_Place = Mapping[str, int]
Files = Mapping[str, Sequence[Piece]]  # the wanted slices, by the path of their file


def _encoded_type(kind: DataType) -> str:
    """Return the SQL type of a value in transit. Text would cut instants, or lose their zone."""
    return "bigint" if isinstance(kind, TimestampType) else kind.simpleString()


_PAYLOAD: Final = StructType(
    [field for field in READ_SCHEMA.fields if field.name in PAYLOAD_COLUMNS]
)
_STATE: Final = [
    field
    for field in SEVERAL_SCHEMA.fields
    if field.name not in PAYLOAD_COLUMNS and field.name != "sequence"
]
_STATE_VALUES: Final = (
    "struct<" + ",".join(f"{field.name}:{_encoded_type(field.dataType)}" for field in _STATE) + ">"
)


def _slice_frame(
    rows: DataFrame,
    context: QueueContext,
    files: Mapping[str, Sequence[Piece]],
    names: Sequence[str],
    *,
    whole: bool,
) -> DataFrame:
    """Return the rows of some slices, of the rows of their files.

    No two paths may end in the same name. `whole` says that the slices are all rows of their
    files.
    """
    ranges = {of for pieces in files.values() for _, of in pieces}
    if (
        len(files) <= MAX_CONSTANT_FILES
        and len(ranges) == 1
        and all(len(pieces) == 1 for pieces in files.values())
    ):
        (of,) = ranges
        places = {_name(path): _place(piece) for path, ((piece, _),) in files.items()}
        return _by_constants(rows, places, whole, _state_values(context.path, of), names)
    slices = [
        {"_file": _name(path), "_place": _place(piece), "_of": _state_values(context.path, of)}
        for path, pieces in files.items()
        for piece, of in pieces
    ]
    return _by_join(rows, slices, names)


def _read(spark: SparkSession, root: str, files: Mapping[str, Any]) -> DataFrame:
    # No character of a path may match others.
    paths = [re.sub(r"([\\{}\[\]*?,])", r"\\\1", f"{root}/{path}") for path in sorted(files)]
    try:
        return spark.read.options(**_STRICT_READ_OPTIONS).schema(_PAYLOAD).parquet(*paths)
    except Exception as error:  # Spark's, or the JVM's
        raise StorageError(
            f"Spark cannot read {root}: {one_line(error)}. Spark uses its own settings, not "
            f"storageOptions.*: set fs.s3a.* (and for s3:// fs.s3.impl), or use the batch instead "
            f"of lease.read()",
            path=root,
            landed=False,
        ) from error


def _by_constants(
    rows: DataFrame,
    places: Mapping[str, _Place],
    whole: bool,
    state: Mapping[str, Any],
    names: Sequence[str],
) -> DataFrame:
    """Return rows of one range, of which each file has one slice."""
    # Without a join this is as fast as the read of a plain table. It is one step, because Spark
    # needs some 10 ms to look at each step.
    row = "_metadata.row_index"
    if not whole:
        low, high = _lookup_by_file(places, "low"), _lookup_by_file(places, "high")
        rows = rows.where(f"{row} >= {low} AND {row} < {high}")
    before = _lookup_by_file(places, "before")
    committed_at = _lookup_by_file(places, "committed_at")
    values = {field.name: _literal(state.get(field.name), field.dataType) for field in _STATE}
    return rows.selectExpr(*_columns(names, row, before, committed_at, values))


def _by_join(
    rows: DataFrame, slices: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> DataFrame:
    """Return rows of any slices, each with its ``_file``, ``_place`` and ``_of``."""
    wanted = (
        f"inline(from_json({_text(json.dumps(slices))}, "
        f"'array<struct<_file:string,_place:{_PLACE},_of:{_STATE_VALUES}>>'))"
    )
    places = rows.sparkSession.range(1, numPartitions=1).selectExpr(wanted)
    mine = rows.selectExpr("*", "_metadata.row_index AS _row", "_metadata.file_name AS _file").join(
        f.broadcast(places), "_file"
    )
    values = {field.name: _instant(f"_of.{field.name}", field.dataType) for field in _STATE}
    return mine.where("_row >= _place.low AND _row < _place.high").selectExpr(
        *_columns(names, "_row", "_place.before", "_place.committed_at", values)
    )


def _columns(
    names: Sequence[str], row: str, before: str, committed_at: str, state: Mapping[str, str]
) -> list[str]:
    """Return the columns as SQL. A null that has a meaning gets its value."""
    published = (
        f"greatest(coalesce(published_at, timestamp_micros({committed_at})), "
        f"timestamp_micros({EARLIEST}L))"
    )
    sequence = f"{row} + {before}"
    own = {
        "sequence": sequence,
        "message_id": f"coalesce(message_id, CAST({sequence} AS STRING))",
        "published_at": f"least({published}, timestamp_micros({LATEST}L))",
        "priority": f"greatest(0, least({MAX_PRIORITY}, coalesce(priority, 0)))",
        **state,
    }
    # Nullable, as in the stream. Spark drops the condition from the plan.
    return [f"IF(TRUE, {own[name]}, NULL) AS {name}" if name in own else name for name in names]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _place(piece: FileSlice) -> _Place:
    return {
        "low": piece.offset,
        "high": piece.offset + piece.rows,
        "before": piece.first - piece.offset,
        "committed_at": piece.committed_at,
    }


def _state_values(queue: str, of: Range) -> dict[str, Any]:
    """Return the ledger's columns for a range, without nulls."""
    state = of._asdict() | {
        "lease_expires_at": of.expires_at,
        "worker_id": of.worker,
        "queue": queue,
    }
    return {field.name: state[field.name] for field in _STATE if state[field.name] is not None}


def _text(value: str) -> str:
    """Return a text as SQL of hexadecimal digits, so that no character of it can be SQL."""
    return f"CAST(X'{value.encode().hex()}' AS STRING)"


def _literal(value: str | int | None, kind: DataType) -> str:
    if isinstance(value, str):
        return _text(value)
    if value is None:
        return f"CAST(NULL AS {kind.simpleString()})"
    return _instant(f"CAST({value:d} AS {_encoded_type(kind)})", kind)


def _instant(number: str, kind: DataType) -> str:
    return f"timestamp_micros({number})" if isinstance(kind, TimestampType) else number


def _lookup_by_file(places: Mapping[str, _Place], what: str) -> str:
    """Return a number of the row's file as SQL. Only plain names may be part of SQL."""
    if len({place[what] for place in places.values()}) == 1:
        return f"{next(iter(places.values()))[what]}L"
    pairs = ", ".join(f"{name!r}, {place[what]}L" for name, place in places.items())
    return f"element_at(map({pairs}), _metadata.file_name)"


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
    context = group._context
    with ThreadPoolExecutor(1) as pool:  # over a store, both make several requests
        check = pool.submit(_check, group, files)
        try:
            rows = _read(spark, context.messages.path, files)
        finally:
            alike, whole = check.result()  # its error names the file
    return _slice_frame(rows, context, files, names, whole=whole) if alike else None


def _is_supported(files: Files) -> bool:
    """Return whether Spark finds the slices, and sooner than Python reads them."""
    # Rows are matched with their file by its name, so no two files may have the same name. Each row
    # of a file is compared with all of the file's slices.
    names = {path.rpartition("/")[2] for path in files}
    slices = [len(pieces) for pieces in files.values()]
    plain = len(names) == len(files) and all(_PLAIN_NAME.fullmatch(name) for name in names)
    return plain and sum(slices) <= MAX_SLICES and max(slices, default=0) <= MAX_SLICES_OF_FILE


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


def _opened(store: ObjectStore, piece: FileSlice) -> pq.ParquetFile:
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
