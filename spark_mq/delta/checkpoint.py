"""Build the checkpoint of a Delta table, without tombstones.

delta-rs and Spark copy the tombstone of each removed file into every checkpoint until it expires. A
queue's tables keep removed files until the sweep deletes them, so their tombstones would never
expire, and a checkpoint would grow with each commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.action_json import add_action
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.state import TableState

__all__ = ["encode_checkpoint"]

_STRINGS: Final = pa.map_(pa.string(), pa.string())
_ADD: Final = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": _STRINGS,
        "size": pa.int64(),
        "modificationTime": pa.int64(),
        "dataChange": pa.bool_(),
        "stats": pa.string(),
        "tags": _STRINGS,
    }
)
# The columns of a checkpoint that spark_mq writes (Delta protocol, "Checkpoint Schema").
_SCHEMA: Final = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": _ADD,
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _STRINGS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _STRINGS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)


def encode_checkpoint(
    log: DeltaLog, state: TableState, base: Iterable[str], since: int
) -> tuple[memoryview, int]:
    """Return a checkpoint as a Parquet file, and its number of rows.

    It continues an older checkpoint: the files `base` of version `since`, or no files and -1. Raise
    FileNotFoundError if a cleaner has deleted one of them, or a commit after it.
    """
    touched: set[str] = set()
    added: dict[str, dict[str, Any]] = {}
    for version in range(since + 1, state.version + 1):
        commit = log.read_commit(version)
        for gone in commit.removes:
            touched.add(gone.path)
            added.pop(gone.path, None)
        for file in commit.adds:
            touched.add(file.path)
            added[file.path] = _as_row(add_action(file, 0, False))
    rows: list[dict[str, Any]] = [
        {"protocol": msgspec.to_builtins(state.protocol)},
        {"metaData": _metadata(state.metadata)},
        *({"txn": {"appId": app, "version": number}} for app, number in state.txns.items()),
        *({"add": row} for row in added.values()),
    ]
    old = [_old_files(log, path, touched) for path in base]
    table = pa.concat_tables([pa.Table.from_pylist(rows, _SCHEMA), *old])
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="snappy", store_schema=False)
    return memoryview(sink.getvalue()), table.num_rows


def _metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    form = metadata.get("format") or {"provider": "parquet"}
    return {
        **metadata,
        "format": {**form, "options": _pairs(form.get("options"))},
        "configuration": _pairs(metadata.get("configuration")),
    }


def _as_row(add: Mapping[str, Any]) -> dict[str, Any]:
    return {**add, "partitionValues": _pairs(add["partitionValues"])}


def _pairs(values: Any) -> list[tuple[str, Any]]:
    """Return the pairs of a map. A checkpoint stores a map as pairs, a commit as an object."""
    return list(dict(values or ()).items())


def _old_files(log: DeltaLog, path: str, touched: set[str]) -> pa.Table:
    """Return the checkpoint's files that no later commit adds or removes."""
    file = log.store.open(path)
    try:
        parquet = pq.ParquetFile(file)
        if "add" not in parquet.schema_arrow.names:
            return _SCHEMA.empty_table()
        column = parquet.read(columns=["add"])["add"].combine_chunks()
    finally:
        file.close()
    column = column.filter(pc.is_valid(pc.struct_field(column, "path")))
    paths = pc.struct_field(column, "path").to_pylist()
    column = column.filter(pa.array([unquote(p) not in touched for p in paths], pa.bool_()))
    fields = [_field(column, field) for field in _ADD]
    adds = pa.StructArray.from_arrays(fields, fields=list(_ADD))
    rows = [pa.nulls(len(adds), f.type) if f.name != "add" else adds for f in _SCHEMA]
    return pa.table(rows, schema=_SCHEMA)


def _field(column: Any, field: pa.Field) -> Any:
    """Return a field of the files, or nulls if the checkpoint's writer has left it out."""
    if field.name == "dataChange":  # no row changes by a checkpoint
        return pa.repeat(pa.scalar(False), len(column))
    if column.type.get_field_index(field.name) < 0:
        return pa.nulls(len(column), field.type)
    return pc.struct_field(column, field.name).cast(field.type)
