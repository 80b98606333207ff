"""Append a DataFrame to the sink of a group: Spark writes the files, and one commit adds them.

Into a Delta table delta-rs commits. Spark's own Delta writer can overwrite the commit of another
process on a local disk, so no transaction in the table's log keeps out what it writes late.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType

from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.store_errors import STORE_ERRORS, one_line
from spark_mq.errors import InvalidOption, InvalidSchema, LeaseLost, StorageError
from spark_mq.ledger.sink_writes import SinkWrite
from spark_mq.operations.sinks import QueueSink, Sink
from spark_mq.parquet.publish_table import check_publishable
from spark_mq.storage.delta_sink import DeltaSink, SinkFile, SinkTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

# Features of a table that an append of plain files keeps.
_KEPT_FEATURES: Final = frozenset(
    ("appendOnly", "changeDataFeed", "deletionVectors", "invariants", "timestampNtz",
     "v2Checkpoint", "vacuumProtocolCheck")
)  # fmt: skip
# What a table asks of each row, and only an engine that knows of it checks or fills in.
_ASKS: Final = ("delta.constraints.", "delta.generationExpression", "delta.identity.",
                "delta.invariants", "CURRENT_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING")  # fmt: skip
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INSTANTS: Final = "spark.sql.parquet.outputTimestampType"


def append_frame(
    sink: Sink, frame: DataFrame, write: SinkWrite, schema_mode: str | None = None
) -> None:
    """Append rows in the write of a lease. With "merge", add new columns to a table.

    Raise InvalidSchema for rows that do not fit, InvalidOption for a table that plain files cannot
    be added to, and LeaseLost if another worker has fenced the write.
    """
    if not (hasattr(frame, "schema") and hasattr(frame, "write")):
        raise InvalidOption(
            f"df is a {type(frame).__name__}: give a Spark DataFrame, made of the batch",
            option="df",
            value=type(frame).__name__,
        )
    if isinstance(sink, QueueSink):
        sink.check_schema_mode(schema_mode)
        _publish(sink, frame, write)
    else:
        _append(sink, frame, write, merge=schema_mode == "merge")


def _publish(sink: QueueSink, frame: DataFrame, write: SinkWrite) -> None:
    check_publishable({field.name: field.dataType.simpleString() for field in frame.schema})
    producer = {"producerId": sink.producer_id(write), "producerSequence": str(write.number)}
    store = {f"storageOptions.{name}": value for name, value in sink.storage_options.items()}
    writer = frame.write.format("spark_mq").mode("append")
    writer.options(**producer, **store).save(sink.path)
    sink.check_own(write)


def _append(sink: DeltaSink, frame: DataFrame, write: SinkWrite, *, merge: bool) -> None:
    table = sink.describe()
    _check_table(sink, table)
    schema = StructType.fromJson(json.loads(table.schema))
    if merge:
        schema = _merged(sink, frame, schema)
    rows, folder = _fitting(frame, schema, fill=merge), f"spark-{uuid.uuid4().hex}"
    store = ObjectStore(sink.path, sink.storage_options)
    _write(rows, f"{sink.path}/{folder}", table.partition_columns)
    instants = {field.name for field in schema if field.dataType.typeName() == "timestamp"}
    files = list(_files(store, folder, instants))
    try:
        sink.append_files(files, write)
    except LeaseLost:
        _delete(store, folder)
        raise


def _check_table(sink: DeltaSink, table: SinkTable) -> None:
    text = f"{table.schema} {' '.join(table.properties)}"
    asks = sorted(table.features - _KEPT_FEATURES | {name for name in _ASKS if name in text})
    if asks:
        raise InvalidOption(
            f"sink={sink.path!r} cannot get the rows of a DataFrame: it has {', '.join(asks)}, "
            "which an append of files does not keep. Use a table without",
            option="sink",
            value=sink.path,
        )


def _merged(sink: DeltaSink, frame: DataFrame, schema: StructType) -> StructType:
    """Return the schema of the table after it got the new columns of the rows."""
    known = {name.lower() for name in schema.names}  # Delta does not tell them apart by case
    new = [
        StructField(field.name, field.dataType)
        for field in frame.schema
        if field.name.lower() not in known
    ]
    if new:
        sink.add_columns([field.json() for field in new])
    return StructType([*schema, *new])


def _fitting(frame: DataFrame, schema: StructType, *, fill: bool) -> DataFrame:
    """Return the columns of the table, in its order. Raise InvalidSchema if a type differs."""
    if fill:  # columns that the rows lack are null
        known = {name.lower() for name in frame.columns}
        lacking = [field for field in schema if field.name.lower() not in known]
        frame = frame.withColumns(
            {field.name: f.lit(None).cast(field.dataType) for field in lacking}
        )
    given, wanted = (
        {field.name: field for field in frame.schema},
        {field.name: field for field in schema},
    )
    if given.keys() != wanted.keys():
        missing = sorted(wanted.keys() - given.keys())
        unknown = sorted(given.keys() - wanted.keys())
        parts = [f"missing {missing}"] * bool(missing) + [f"unknown {unknown}"] * bool(unknown)
        raise InvalidSchema(
            f"the rows do not have the columns of the sink: {', '.join(parts)}. Select the sink's "
            'columns, or give schema_mode="merge" for new columns or missing ones',
            column=(missing or unknown)[0],
        )
    for name, field in wanted.items():
        kind = given[name].dataType.simpleString()
        if kind != field.dataType.simpleString():
            raise InvalidSchema(
                f"column {name!r} has the type {kind}, and in the sink "
                f"{field.dataType.simpleString()}. Cast it",
                column=name,
            )
        if given[name].nullable and not field.nullable:
            raise InvalidSchema(
                f"column {name!r} may be null, and in the sink it may not. Filter the nulls, and "
                "tell Spark by a schema without them",
                column=name,
            )
    return frame.select([f.col(f"`{name.replace('`', '``')}`") for name in wanted])


def _write(rows: DataFrame, path: str, partitions: list[str]) -> None:
    # foreachBatch has a session of its own, so the setting changes no other query.
    conf = rows.sparkSession.conf
    before = str(conf.get(_INSTANTS))
    conf.set(_INSTANTS, "TIMESTAMP_MICROS")  # Spark's default is INT96, which has no statistics
    try:
        writer = rows.write.mode("error").option("timeZone", "UTC")  # of the names of folders
        writer.partitionBy(*partitions).parquet(path)
    finally:
        conf.set(_INSTANTS, before)


def _files(store: ObjectStore, folder: str, instants: Container[str]) -> Iterator[SinkFile]:
    """Yield the files with rows below a folder. Partitions by `instants` are named in UTC."""
    for file in store.list_all(folder):
        name = file.path.rpartition("/")[2]
        if not name.endswith(".parquet") or name.startswith((".", "_")):
            continue
        with store.open(file.path) as opened:
            metadata = pq.ParquetFile(opened).metadata
        if metadata.num_rows:
            values = {
                # Spark reads an instant without a zone in the time zone of its session.
                name: f"{value.replace(' ', 'T')}Z" if value and name in instants else value
                for name, value in _partition_values(file.path)
            }
            stats = json.dumps({"numRecords": metadata.num_rows, **_statistics(metadata)})
            yield SinkFile(file.path, file.size, values, stats)


def _partition_values(path: str) -> Iterator[tuple[str, str | None]]:
    for part in path.split("/")[1:-1]:
        name, _, value = part.partition("=")
        yield unquote(name), None if value == _NULL else unquote(value)


def _statistics(metadata: pq.FileMetaData) -> Mapping[str, Any]:
    """Return the least and greatest values, and the nulls, of plain integer columns."""
    # An engine skips files by these, so a type whose values are stored otherwise has none.
    least, most, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for at in range(metadata.num_columns):
        chunks = [metadata.row_group(n).column(at) for n in range(metadata.num_row_groups)]
        known = [chunk.statistics for chunk in chunks if chunk.is_stats_set]
        name = chunks[0].path_in_schema
        if len(known) < len(chunks) or "." in name:
            continue
        if all(stats.has_null_count for stats in known):
            nulls[name] = sum(stats.null_count for stats in known)
        ends = [stats for stats in known if stats.has_min_max]
        plain = metadata.schema.column(at).logical_type.type in ("NONE", "INT")
        if plain and len(ends) == len(chunks) and {type(stats.min) for stats in ends} == {int}:
            least[name], most[name] = min(e.min for e in ends), max(e.max for e in ends)
    return {"minValues": least, "maxValues": most, "nullCount": nulls}


def _delete(store: ObjectStore, folder: str) -> None:
    """Delete files that no commit names. VACUUM deletes those that cannot be deleted now."""
    try:
        store.delete_many([file.path for file in store.list_all(folder)])
    except (StorageError, *STORE_ERRORS) as error:
        _log.debug("files of a lost lease in %s remain: %s", store.root, one_line(error))
