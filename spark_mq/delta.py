"""The few things spark_mq needs of a Delta table beyond what delta-rs's ``DeltaTable`` offers: reading its log, raw files.

All access, local or object store, goes through delta-rs and its storage options, so that there is one way to configure it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, FileType, PyFileSystem

from spark_mq.errors import CorruptLog, UnsupportedTable

__all__ = [
    "OPERATION_ID",
    "Files",
    "check_features",
    "commit_properties",
    "exists",
    "no_housekeeping",
    "note_of",
    "open_table",
    "read_commit",
]

OPERATION_ID = "spark_mq_operation_id"
"""Key in a commit's ``commitInfo``: tells, after any failure, whether a commit landed all the same."""

_PLAIN_FEATURES = {"appendOnly", "invariants"}
_WITH_MORE = {3: "checkConstraints", 4: "changeDataFeed or generatedColumns", 5: "columnMapping", 6: "identityColumns"}
"""What a writer version above 2 brings where features are not yet named one by one (Delta protocol, "Valid Feature Names")."""


class Files:
    """The files under a table's root, by paths relative to it."""

    def __init__(self, root: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._options = dict(storage_options or {})

    @cached_property
    def _handler(self) -> DeltaStorageHandler:
        # Lazy: a local root must exist, and before the table is made it does not.
        return DeltaStorageHandler(self._root, self._options)

    @cached_property
    def _files(self) -> PyFileSystem:
        return PyFileSystem(self._handler)

    def open(self, path: str) -> Any:
        """A random-access file for pyarrow. Raises FileNotFoundError."""
        return self._files.open_input_file(path)

    def read(self, path: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""
        with self.open(path) as file:
            return cast(bytes, file.read())

    def write(self, path: str, data: bytes) -> None:
        """Writes a new file; it is whole once this returns."""
        # Not through PyFileSystem: pyarrow 26 hands its buffers on, which the handler of deltalake 1.6 does not take.
        out: Any = self._handler._handler.open_output_stream(path, None)
        out.write(data)
        out.close()

    def delete(self, path: str) -> None:
        """Deletes a file; one that is gone already is no error."""
        try:
            self._files.delete_file(path)
        except (FileNotFoundError, OSError) as error:
            if not isinstance(error, FileNotFoundError) and self.exists(path):
                raise

    def exists(self, path: str) -> bool:
        return self._files.get_file_info(path).type == FileType.File

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Size and time of writing of a file: another file at the path has another one. None where there is none."""
        info = self._files.get_file_info(path)
        return (info.size or 0, info.mtime_ns or 0) if info.type == FileType.File else None

    def list(self, folder: str) -> list[str]:
        """Paths of the files in a folder, sorted."""
        return sorted(self.ages(folder))

    def ages(self, folder: str) -> dict[str, float]:
        """The files in a folder, with when they were written (seconds since 1970, by the store's clock)."""
        found = self._files.get_file_info(FileSelector(folder, allow_not_found=True))
        return {info.path: (info.mtime_ns or 0) / 1e9 for info in found if info.type == FileType.File}

    def read_parquet(self, path: str, schema: pa.Schema) -> pa.Table:
        """A whole Parquet file in a given schema: missing columns are null, view types become plain ones."""
        with self.open(path) as file:
            table = pq.ParquetFile(file).read()
        columns = [table[f.name].cast(f.type) if f.name in table.schema.names else pa.nulls(table.num_rows, f.type) for f in schema]
        return pa.table(columns, schema=schema)


def exists(path: str, storage_options: Mapping[str, str] | None = None) -> bool:
    """Whether there is a Delta table."""
    return bool(DeltaTable.is_deltatable(path, dict(storage_options or {})))


def open_table(path: str, storage_options: Mapping[str, str] | None = None) -> DeltaTable | None:
    """The table at its latest version, or None. Raises UnsupportedTable."""
    try:
        table = DeltaTable(path, storage_options=dict(storage_options or {}))
    except TableNotFoundError:
        return None
    except DeltaError as error:
        # delta-rs refuses reader features that it does not know while it loads.
        if "feature" in str(error).lower():
            raise UnsupportedTable(
                f"the Delta table at {path} needs features that are not supported here: {error}", path=path, features=[]
            ) from error
        raise
    check_features(table, path)
    return table


def check_features(table: DeltaTable, path: str) -> None:
    """Refuses a table with features that break one of the engines (DESIGN: plain features only)."""
    protocol = table.protocol()
    features = sorted({*(protocol.reader_features or ()), *(protocol.writer_features or ())} - _PLAIN_FEATURES)
    if protocol.min_writer_version in _WITH_MORE:
        features.append(_WITH_MORE[protocol.min_writer_version])
    if features or (protocol.min_reader_version > 1 and not protocol.reader_features):
        named = ", ".join(features) or f"reader version {protocol.min_reader_version}"
        raise UnsupportedTable(
            f"the Delta table at {path} has features that spark_mq does not support: {named}. "
            "A queue's tables must stay as Queue.create makes them: publish into a new queue",
            path=path,
            features=features,
        )


def commit_properties(
    operation_id: str, note: Mapping[str, Any], marks: Iterable[tuple[str, int]] = (), retries: int | None = None
) -> CommitProperties:
    """What goes with a commit: its operation id, what it did, and the marks (``Transaction``) it sets.

    What it did is JSON in ``userMetadata``, the one free field that Spark's DESCRIBE HISTORY shows.
    """
    told = json.dumps({name: value for name, value in note.items() if value is not None})
    return CommitProperties(
        custom_metadata={OPERATION_ID: operation_id, "userMetadata": told},
        max_commit_retries=retries,
        app_transactions=[Transaction(app, number) for app, number in marks] or None,
    )


def note_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a commit says it did, from its ``commitInfo``; nothing for one that is not ours."""
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def no_housekeeping(checkpoint: bool = True) -> PostCommitHookProperties:
    """Checkpoints come at their interval; cleaning the log is the sweep's."""
    return PostCommitHookProperties(create_checkpoint=checkpoint, cleanup_expired_logs=False)


def read_commit(files: Files, version: int, path: str) -> list[dict[str, Any]]:
    """The actions of one commit of the log, in order.

    Raises FileNotFoundError where the log no longer has it, CorruptLog where it is not readable.
    """
    text = files.read(log_path(version))
    try:
        return [json.loads(line) for line in text.decode("utf-8").splitlines() if line.strip()]
    except ValueError as error:
        raise CorruptLog(
            f"commit {version} of {path} cannot be read ({error}); restore {log_path(version)} from a backup",
            path=path,
            version=version,
        ) from error


def log_path(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def landed_since(files: Files, table_path: str, version: int, latest: int, operation_id: str) -> int | None:
    """The version after `version` in which an operation landed, or None."""
    for candidate in range(version + 1, latest + 1):
        try:
            actions = read_commit(files, candidate, table_path)
        except FileNotFoundError:
            continue
        if any(a.get("commitInfo", {}).get(OPERATION_ID) == operation_id for a in actions):
            return candidate
    return None


def child(path: str, name: str) -> str:
    """The path of a table under a queue's path."""
    return path.rstrip("/") + "/" + name


def absolute(path: Any) -> str:
    """A local path made absolute, for other processes have another working directory; a URI as it is."""
    text = os.fspath(path)
    if "://" in text:
        return text[7:] if text.startswith("file:///") else text
    if text.startswith("file:/"):
        return text[5:]
    return os.path.abspath(text)
