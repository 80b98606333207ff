"""Hold what the commits of a table add up to: its metadata, transactions and data files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Commit, check_protocol

__all__ = ["PartitionKey", "TableState", "partition_key"]

PartitionKey = tuple[tuple[str, str | None], ...]
"""The values of a partition, as sorted pairs of column and value."""

_NO_FILES: Final[dict[str, AddFile]] = {}


def partition_key(values: Mapping[str, str | None]) -> PartitionKey:
    """Return the key of a partition from its values."""
    return tuple(sorted(values.items()))


@dataclass(slots=True)
class TableState:
    """The table as of ``version``. Its owner applies commits in order.

    ``track_files`` is False for a table whose data files nobody asks for: they cost time and
    memory.
    """

    track_files: bool = True
    version: int = -1
    operation_id: str | None = None
    """Of the last commit; None if spark_mq did not write it, or if it is not known."""
    metadata: dict[str, Any] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    partitions: dict[PartitionKey, dict[str, AddFile]] = field(default_factory=dict)
    _partition_of: dict[str, PartitionKey] = field(default_factory=dict)

    @property
    def table_id(self) -> str:
        """The id of the table: a table made again at the same path has another."""
        return str(self.metadata.get("id"))

    @property
    def description(self) -> str | None:
        """The table's description."""
        return self.metadata.get("description")

    def files(self) -> list[AddFile]:
        """Return all data files."""
        # Other threads may apply commits: the list of partitions is taken at once.
        return [file for files in list(self.partitions.values()) for file in files.values()]

    def partition(self, values: Mapping[str, str | None]) -> dict[str, AddFile]:
        """Return the data files of one partition, by path."""
        return self.partitions.get(partition_key(values), _NO_FILES)

    def apply(self, commit: Commit) -> None:
        """Take in the next commit."""
        if commit.metadata is not None:
            self.metadata = commit.metadata
        self.txns.update(commit.txns)
        if self.track_files:
            for remove in commit.removes:
                self.remove(remove["path"])
            for add in commit.adds:
                self.add(_added(add))
        self.version, self.operation_id = commit.version, commit.operation_id

    def add(self, file: AddFile) -> None:
        """Add a data file, in place of one with the same path."""
        self.remove(file.path)
        key = self._partition_of[file.path] = partition_key(file.partition)
        # A new dict: whoever read the partition keeps what was read.
        self.partitions[key] = {**self.partitions.get(key, _NO_FILES), file.path: file}

    def remove(self, path: str) -> None:
        """Remove a data file; one that is not there is no error."""
        key = self._partition_of.pop(path, None)
        if key is not None:
            left = {name: file for name, file in self.partitions[key].items() if name != path}
            if left:
                self.partitions[key] = left
            else:
                del self.partitions[key]

    def load_checkpoint(self, files: Iterable[Any], version: int, path: str) -> None:
        """Take in a checkpoint: the open Parquet files of it. Raise pa.ArrowException,
        ValueError."""
        wanted = ["metaData", "protocol", "txn"] + (["add"] if self.track_files else [])
        for file in files:
            parquet = pq.ParquetFile(file)
            names = [name for name in wanted if name in parquet.schema_arrow.names]
            table = parquet.read(columns=names)
            for name in names:
                self._load_actions(name, _present(table, name), path)
        if not self.metadata:
            raise ValueError("it has no metadata")
        self.version, self.operation_id = version, None

    def _load_actions(self, name: str, rows: list[dict[str, Any]], path: str) -> None:
        for row in rows:
            if name == "metaData":
                self.metadata = {**row, "configuration": dict(row.get("configuration") or ())}
            elif name == "protocol":
                check_protocol(path, row)
            elif name == "txn":
                self.txns[row["appId"]] = row["version"]
            else:
                stats = row.get("stats")
                values = dict(row.get("partitionValues") or ())
                given = _rows_of(stats)
                at = row.get("modificationTime") or 0
                tags = dict(row.get("tags") or ())
                path_in = unquote(row["path"])
                self.add(AddFile(path_in, row["size"], given, values, stats, at, tags))


def _present(table: pa.Table, name: str) -> list[dict[str, Any]]:
    """Return the rows in which an action is there."""
    column = table[name]
    kind = column.type
    required = next(
        f for f in ("id", "path", "appId", "minReaderVersion") if kind.get_field_index(f) >= 0
    )
    there = pc.is_valid(pc.struct_field(column, required))
    found: list[dict[str, Any]] = column.filter(there).to_pylist()
    return found


def _added(add: Mapping[str, Any]) -> AddFile:
    values = add.get("partitionValues") or {}
    stats = add["stats"]
    return AddFile(
        add["path"],
        int(add.get("size") or 0),
        stats.get("numRecords"),
        values,
        json.dumps(stats),
        int(add.get("modificationTime") or 0),
        add.get("tags") or {},
    )


def _rows_of(stats: str | None) -> int | None:
    try:
        rows = json.loads(stats or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    return rows if isinstance(rows, int) else None
