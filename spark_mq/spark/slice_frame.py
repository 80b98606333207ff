"""Build a DataFrame with the columns of the stream from slices of Parquet files.

Spark numbers the rows of a file itself (``_metadata.row_index``), so a condition picks the rows of
a slice. The other columns come from the ledger and the commit log, as SQL.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql.types import DataType, StructType, TimestampType

from spark_mq.delta.store_errors import one_line
from spark_mq.errors import StorageError
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.slots import MAX_PRIORITY
from spark_mq.operations.context import QueueContext
from spark_mq.spark.partitions import Piece
from spark_mq.spark.schema import PAYLOAD_COLUMNS, READ_SCHEMA, SEVERAL_SCHEMA
from spark_mq.util.clock import EARLIEST, LATEST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["slice_frame"]


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
# The place of a slice: its first row, the row after its last, a sequence less its row, and the time
# of its commit in microseconds.
_PLACE: Final = "struct<low:bigint,high:bigint,before:bigint,committed_at:bigint>"
_STATE_VALUES: Final = (
    "struct<" + ",".join(f"{field.name}:{_encoded_type(field.dataType)}" for field in _STATE) + ">"
)
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


def slice_frame(
    spark: SparkSession,
    context: QueueContext,
    files: Mapping[str, Sequence[Piece]],
    names: Sequence[str],
    *,
    whole: bool,
) -> DataFrame:
    """Return the rows of some slices, which are given by the path of their file.

    No two paths may end in the same name. `whole` says that the slices are all rows of their
    files. Raises StorageError if Spark cannot read the store.
    """
    rows = _read(spark, context.messages.path, files)
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
    state = of._asdict() | {"lease_expires_at": of.expires_at, "queue": queue}
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
