"""Create Delta tables and write their checkpoints."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import (
    OPERATION_ID,
    AddFile,
    add_action,
    checkpoint_path,
    encode_actions,
    version_of,
)
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import (
    CHECKPOINT_HINT,
    TableState,
    check_start,
    find_start,
    last_checkpoint,
    starting_state,
)
from spark_mq.delta.store_errors import to_storage_error

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


# Makes files durable that a commit did not sync. Of a checkpoint that names others, no commit might
# be left from which they could be written again.
Secure = Callable[[Iterable[AddFile]], None]
# In the metadata of a checkpoint: whether its writer has made its files durable.
_SECURED: Final = b"spark_mq.secured"


def encode_checkpoint(
    log: DeltaLog,
    state: TableState,
    base: Sequence[str],
    since: int,
    secure: Secure | None = None,
) -> tuple[memoryview, int]:
    """Return a checkpoint as Parquet, and its number of rows. Raise FileNotFoundError."""
    touched: set[str] = set()
    added: dict[str, AddFile] = {}
    for version in range(since + 1, state.version + 1):
        commit = log.read_commit(version)
        for gone in commit.removes:
            touched.add(gone.path)
            added.pop(gone.path, None)
        for file in commit.adds:
            touched.add(file.path)
            added[file.path] = file
    if secure is not None:
        secure(added.values())
        secure(file for file in _unsecured(log.store, base) if file.path not in touched)
    rows: list[dict[str, Any]] = [
        {"protocol": msgspec.to_builtins(state.protocol)},
        {"metaData": _metadata(state.metadata)},
        *({"txn": {"appId": app, "version": number}} for app, number in state.txns.items()),
        *({"add": _as_row(add_action(file, 0, False))} for file in added.values()),
    ]
    old = [_old_files(log, path, touched) for path in base]
    table = pa.concat_tables([pa.Table.from_pylist(rows, _SCHEMA), *old])
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, _SCHEMA, compression="snappy", store_schema=False) as writer:
        writer.write_table(table)
        if secure is not None:
            writer.add_key_value_metadata({_SECURED: b"true"})
    return memoryview(sink.getvalue()), table.num_rows


def _unsecured(store: ObjectStore, checkpoint: Sequence[str]) -> list[AddFile]:
    """Return the files of a checkpoint whose writer has not made them durable."""
    if not checkpoint or all(_is_secured(store, path) for path in checkpoint):
        return []
    return starting_state(store, checkpoint, True).files()


def _is_secured(store: ObjectStore, path: str) -> bool:
    with store.open(path) as file:
        return _SECURED in (pq.ParquetFile(file).metadata.metadata or ())


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


_logger = logging.getLogger(__name__)

SWEEP_INTERVAL: Final = 16  # commits from one checkpoint of a sweep to the next
# Properties of a table whose old versions only the sweep deletes. Spark refuses time travel to
# versions older than the last property allows, though they are there, and VACUUM obeys it, too.
KEPT_BY_THE_SWEEP: Final = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.deletedFileRetentionDuration": "interval 36500 days",
}

_ATTEMPTS: Final = 5
_writing: dict[str, threading.Thread] = {}  # threads that write checkpoints, by the table's path


def create_table(
    store: ObjectStore,
    schema: pa.Schema,
    *,
    description: str,
    partition_by: Sequence[str] = (),
    configuration: Mapping[str, str] | None = None,
    operation_id: str | None = None,  # several processes may do one operation
) -> bool:
    """Create a table by its commit 0. Return False if another operation has created it."""
    from deltalake import Schema  # here, because it is slow to load and few processes create tables

    metadata = {
        "id": str(uuid.uuid4()),
        "name": None,
        "description": description,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(schema).to_json(),
        "partitionColumns": list(partition_by),
        "createdTime": int(store.now() * 1000),
        "configuration": dict(configuration or {}),
    }
    operation = operation_id or uuid.uuid4().hex
    info = {
        "timestamp": metadata["createdTime"],
        "operation": "CREATE TABLE",
        "operationParameters": {
            "mode": "ErrorIfExists",
            "partitionBy": json.dumps(list(partition_by)),
        },
        "engineInfo": "spark_mq",
        OPERATION_ID: operation,
    }
    data = encode_actions(
        [
            {"commitInfo": info},
            # Plain features, so that every engine can read and append.
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": metadata},
        ]
    )
    log = DeltaLog(store, track_files=False)
    return log.put(0, data) or log.foreign_commit(0, operation) is None


def write_checkpoint(store: ObjectStore, secure: Secure | None = None) -> int:
    """Write a checkpoint of the latest version, and return it. Raise CorruptLog, StorageError."""
    for left in reversed(range(_ATTEMPTS)):  # a cleaner may delete a file during the read
        try:
            return _write_checkpoint(store, secure)
        except (OSError, pa.ArrowInvalid) as error:
            if not left:
                check_start(store)
                if not isinstance(error, OSError):
                    raise  # of no file, so a bug
                raise to_storage_error(store.root, error, "writing a checkpoint of") from error
    raise AssertionError("unreachable")


def _write_checkpoint(store: ObjectStore, secure: Secure | None) -> int:
    log = DeltaLog(store, track_files=False)
    state = log.refresh()
    base = find_start(store) or ()
    since = version_of(base[0]) if base else -1
    if since < state.version:
        data, rows = encode_checkpoint(log, state, base, since, secure)
        # A cleaner deletes the commits before it, so it must survive a power cut.
        store.write(checkpoint_path(state.version), data)
        since = state.version
    else:
        if secure is not None:
            secure(_unsecured(store, base))
        with store.open(checkpoint_path(since)) as file:
            rows = pq.ParquetFile(file).metadata.num_rows
    if last_checkpoint(store) < since:
        store.write(CHECKPOINT_HINT, json.dumps({"version": since, "size": rows}).encode())
    return since


def checkpoint_soon(store: ObjectStore, version: int, secure: Secure | None = None) -> None:
    """Write a checkpoint in a thread, unless this process is writing one of the table."""
    thread = _writing.get(store.root)
    if thread is not None and thread.is_alive():
        return
    # Not a daemon. The interpreter waits for it at exit, because delta-rs must not be cut off.
    thread = threading.Thread(
        target=_checkpoint, args=(store, version, secure), name=f"checkpoint-{version}"
    )
    _writing[store.root] = thread
    try:
        thread.start()
    except RuntimeError as error:  # no thread is left, but the commit has landed
        _writing.pop(store.root, None)
        _log_not_written(store, version, error)


def _checkpoint(store: ObjectStore, version: int, secure: Secure | None) -> None:
    try:
        write_checkpoint(store, secure)
    except Exception as error:
        _log_not_written(store, version, error)
    finally:
        if _writing.get(store.root) is threading.current_thread():
            del _writing[store.root]


def _log_not_written(store: ObjectStore, version: int, error: Exception) -> None:
    text = "checkpoint %d of %s was not written. A later commit writes one: %s"
    # At the end of the interpreter no thread starts, and there is nothing that a user could mend.
    level = logging.WARNING if threading.main_thread().is_alive() else logging.DEBUG
    _logger.log(level, text, version, store.root, error)


def wait_for_checkpoints(path: str | None = None) -> None:
    for root, thread in list(_writing.items()):
        if path in (None, root):
            thread.join()


def checkpoint_if_due(store: ObjectStore, version: int, secure: Secure | None = None) -> None:
    """Write a checkpoint if the last one is too old, or with `secure` names files that may go."""
    last = last_checkpoint(store)
    if version - last >= SWEEP_INTERVAL or (
        secure is not None and last >= 0 and not _is_secured(store, checkpoint_path(last))
    ):
        write_checkpoint(store, secure)
