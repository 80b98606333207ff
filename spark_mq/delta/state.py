"""Hold the metadata, transactions and data files of a table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Commit, Protocol, Txn, check_protocol

PartitionKey = tuple[tuple[str, str | None], ...]  # sorted pairs of column and value

_NO_FILES: Final[dict[str, AddFile]] = {}
# The field that shows whether a row of a checkpoint has an action.
_REQUIRED: Final = {
    "metaData": "id", "protocol": "minReaderVersion", "txn": "appId", "add": "path",
}  # fmt: skip
_BATCH_ROWS: Final = 10_000  # rows of a checkpoint that are read together

TrackFiles = bool | Callable[[str], bool]  # all data files, none, or those with certain paths


def partition_key(values: Mapping[str, str | None]) -> PartitionKey:
    return tuple(sorted(values.items()))


@dataclass(slots=True)
class TableState:
    """The table as of ``version``. Its owner applies commits in order."""

    track_files: TrackFiles = True  # data files that nobody needs cost time and memory
    version: int = -1
    operation_id: str | None = None  # of the last commit. None if not known, or of another engine
    metadata: dict[str, Any] = field(default_factory=dict)
    protocol: Protocol | None = None
    txns: dict[str, int] = field(default_factory=dict)
    partitions: dict[PartitionKey, dict[str, AddFile]] = field(default_factory=dict)
    _partition_of: dict[str, PartitionKey] = field(default_factory=dict)

    @property
    def table_id(self) -> str:
        """Return the table's id. A table made again at the same path has another one."""
        return str(self.metadata.get("id"))

    @property
    def description(self) -> str | None:
        return self.metadata.get("description")

    def files(self) -> list[AddFile]:
        # Other threads may apply commits, so the list of partitions is copied in one step.
        return [file for files in list(self.partitions.values()) for file in files.values()]

    def partition(self, values: Mapping[str, str | None]) -> dict[str, AddFile]:
        return self.partitions.get(partition_key(values), _NO_FILES)

    def apply(self, commit: Commit) -> None:
        if commit.metadata is not None:
            self.metadata = commit.metadata
        if commit.protocols:
            self.protocol = commit.protocols[-1]
        self.txns.update(commit.txns)
        if self.track_files is not False:
            adds = (file for file in commit.adds if self._tracks(file.path))
            self._change((file.path for file in commit.removes), adds)
        self.version, self.operation_id = commit.version, commit.operation_id

    def _tracks(self, path: str) -> bool:
        return self.track_files is True or (callable(self.track_files) and self.track_files(path))

    def _change(self, removes: Iterable[str], adds: Iterable[AddFile]) -> None:
        """Remove files, known or not, and add others, which replace those with the same path."""
        # New dicts, one for each partition. A reader of a partition keeps the dict it read.
        changed: dict[PartitionKey, dict[str, AddFile]] = {}

        def files_of(key: PartitionKey) -> dict[str, AddFile]:
            if key not in changed:
                changed[key] = dict(self.partitions.get(key, _NO_FILES))
            return changed[key]

        def remove(path: str) -> None:
            key = self._partition_of.pop(path, None)
            if key is not None:
                del files_of(key)[path]

        for path in removes:
            remove(path)
        for file in adds:
            remove(file.path)
            key = self._partition_of[file.path] = partition_key(file.partition)
            files_of(key)[file.path] = file
        for key, files in changed.items():
            if files:
                self.partitions[key] = files
            else:
                self.partitions.pop(key, None)

    def load_checkpoint(self, files: Iterable[Any], version: int, path: str) -> None:
        """Load the open files of a checkpoint. Raise ArrowException, ValueError if broken."""
        wanted = ["metaData", "protocol", "txn"]
        if self.track_files is not False:
            wanted.append("add")
        for file in files:
            with _malformed_is_broken():
                parquet = pq.ParquetFile(file)
                names = [name for name in wanted if name in parquet.schema_arrow.names]
                # In parts, because a table may have a million files.
                for batch in parquet.iter_batches(_BATCH_ROWS, columns=names):
                    for name in names:
                        self._load_actions(name, _present(batch, name), path)
        if not self.metadata or not self.protocol:
            raise ValueError("it has no metadata or no protocol")
        self.version, self.operation_id = version, None

    def _load_actions(self, name: str, rows: list[dict[str, Any]], path: str) -> None:
        for row in rows:
            if name == "metaData":
                self.metadata = _metadata(row)
            elif name == "protocol":
                self.protocol = msgspec.convert(row, Protocol)
                check_protocol(path, self.protocol)
            elif name == "txn":
                txn = msgspec.convert(row, Txn)
                self.txns[txn.appId] = txn.version
            elif self._tracks(unquote(row["path"])):
                file = _loaded(row)
                key = self._partition_of[file.path] = partition_key(file.partition)
                # Nobody has read the partition yet, so it may change.
                self.partitions.setdefault(key, {})[file.path] = file


@contextlib.contextmanager
def _malformed_is_broken() -> Iterator[None]:
    """Raise ValueError for what another engine, or a damaged disk, may do to a checkpoint."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, OSError, msgspec.MsgspecError) as error:
        if getattr(error, "errno", None) is not None:  # of the store
            raise
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _present(batch: pa.RecordBatch, name: str) -> list[dict[str, Any]]:
    column = batch.column(name)
    there = pc.is_valid(pc.struct_field(column, _REQUIRED[name]))
    present: list[dict[str, Any]] = column.filter(there).to_pylist()
    return present


def _loaded(row: Mapping[str, Any]) -> AddFile:
    stats = row.get("stats")
    values, tags = (dict(row.get(name) or ()) for name in ("partitionValues", "tags"))
    at = row.get("modificationTime") or 0
    size = row.get("size") or 0
    return AddFile(unquote(row["path"]), size, _rows_of(stats), values, stats, at, tags)


def _metadata(row: dict[str, Any]) -> dict[str, Any]:
    """Return metadata as a commit has it. pyarrow returns maps as lists of pairs."""
    given = {name: value for name, value in row.items() if value is not None}
    form = dict(given.get("format") or {})
    if form:
        given["format"] = {**form, "options": dict(form.get("options") or ())}
    return {**given, "configuration": dict(given.get("configuration") or ())}


def _rows_of(stats: str | None) -> int | None:
    try:
        rows = json.loads(stats or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return rows if isinstance(rows, int) else None
