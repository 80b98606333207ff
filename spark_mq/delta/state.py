"""Hold the metadata, transactions and data files of a table, and find where its log starts."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import (
    LOG_FOLDER,
    AddFile,
    Commit,
    Protocol,
    Txn,
    check_protocol,
    checkpoint_path,
    log_path,
    missing_commit_error,
    version_of,
)
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import CorruptLog

_logger = logging.getLogger(__name__)

PartitionKey = tuple[tuple[str, str | None], ...]  # sorted pairs of column and value

_NO_FILES: Final[dict[str, AddFile]] = {}
# The field that shows whether a row of a checkpoint has an action.
_REQUIRED: Final = {
    "metaData": "id", "protocol": "minReaderVersion", "txn": "appId", "add": "path",
}  # fmt: skip
_BATCH_ROWS: Final = 10_000  # rows of a checkpoint that are read together

CHECKPOINT_HINT: Final = f"{LOG_FOLDER}/_last_checkpoint"
_LOOKS: Final = 2
_UNREADABLE = (pa.ArrowException, ValueError, FileNotFoundError)

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


@dataclass(slots=True)
class LogListing:
    """The files of a log by version."""

    commits: dict[int, float] = field(default_factory=dict)  # when each was written
    parts: dict[int, list[str]] = field(default_factory=dict)  # the paths of checkpoints
    checksums: dict[int, list[str]] = field(default_factory=dict)  # of other engines

    @classmethod
    def of(cls, store: ObjectStore) -> LogListing:
        listing = cls()
        for info in store.iterate(LOG_FOLDER):
            name = info.path.rpartition("/")[2]
            version, kind = version_of(name), name[20:]
            if version < 0:
                continue
            if kind == ".json":
                listing.commits[version] = info.modified
            elif kind.startswith(".checkpoint.") and kind.endswith(".parquet"):
                listing.parts.setdefault(version, []).append(info.path)
            elif kind == ".crc":
                listing.checksums.setdefault(version, []).append(info.path)
        return listing

    def checkpoints(self) -> dict[int, list[str]]:
        """Return the paths of the complete checkpoints, the oldest first."""
        return {at: paths for at, paths in sorted(self.parts.items()) if _is_complete(paths)}

    def newest_checkpoint(self) -> list[str] | None:
        return next(reversed(self.checkpoints().values()), None)


def find_start(store: ObjectStore) -> Sequence[str] | None:
    """Return the newest checkpoint's files, () for none, None without a table. Raise CorruptLog."""
    for _ in range(_LOOKS):
        hinted = last_checkpoint(store)
        if hinted >= 0 and store.exists(path := checkpoint_path(hinted)):
            return [path]
        if store.exists(log_path(0)):
            return ()
        listing = LogListing.of(store)
        files = listing.newest_checkpoint()
        if files is not None or not listing.commits:
            return files
        # The table may have been created, or cleaned, between the looks.
    raise missing_commit_error(store.root, 0)


def last_checkpoint(store: ObjectStore) -> int:
    """Return the version of the last checkpoint by its hint, or -1."""
    try:
        return max(-1, int(json.loads(store.read(CHECKPOINT_HINT))["version"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return -1  # the hint may be broken, and is then ignored


def listed_checkpoint(store: ObjectStore) -> list[str] | None:
    """List the newest checkpoint, None without commits. Raise CorruptLog if only it is missing."""
    listing = LogListing.of(store)
    files = listing.newest_checkpoint()
    if files is None and listing.commits:
        raise missing_commit_error(store.root, 0)
    return files


def _is_complete(paths: list[str]) -> bool:
    """Return whether files of one version are a whole checkpoint: a single file, or all parts."""
    parts = [path.rpartition("/")[2].split(".") for path in paths]
    if any(len(part) == 3 for part in parts):  # version.checkpoint.parquet
        return True
    numbered = [part for part in parts if len(part) == 5]  # version.checkpoint.part.parts.parquet
    return bool(numbered) and numbered[0][3] == f"{len(numbered):010d}"


def starting_state(store: ObjectStore, files: Sequence[str], track_files: TrackFiles) -> TableState:
    """Return a checkpoint's state, or an empty one without files. Raise CorruptLog."""
    if not files:
        return TableState(track_files)
    try:
        return _state_at(store, files, track_files)
    except _UNREADABLE as error:
        if isinstance(error, FileNotFoundError):
            newer = find_start(store)
            if newer and list(newer) != list(files):  # a cleaner deleted the old one meanwhile
                return starting_state(store, newer, track_files)
        state = _older_start(store, files[0], track_files)
        if state is not None:
            _logger.warning(
                "checkpoint %s of %s cannot be read: the log starts from an older one",
                files[0],
                store.root,
            )
            return state
        raise _unreadable(store, files[0], error) from error


def check_start(store: ObjectStore) -> None:
    files = find_start(store) or LogListing.of(store).newest_checkpoint()
    if not files:
        return
    try:
        _state_at(store, files, False)
    except _UNREADABLE as error:
        raise _unreadable(store, files[0], error) from error


def _unreadable(store: ObjectStore, path: str, error: Exception) -> CorruptLog:
    return CorruptLog(
        f"checkpoint {path} of {store.root} cannot be read: {error}. Restore it from a backup; "
        f"or, as long as "
        "all commits from an older checkpoint on are there, remove it, and _last_checkpoint with "
        "it",
        path=store.root,
        version=version_of(path),
    )


def _state_at(store: ObjectStore, files: Sequence[str], track_files: TrackFiles) -> TableState:
    state = TableState(track_files)
    opened = [store.open(path) for path in files]
    try:
        state.load_checkpoint(opened, version_of(files[0]), store.root)
    finally:
        for file in opened:
            file.close()
    return state


def _older_start(store: ObjectStore, path: str, track_files: TrackFiles) -> TableState | None:
    """Return the state of the newest older checkpoint with all later commits, or None."""
    broken, listing = version_of(path), LogListing.of(store)
    starts = [(-1, list[str]()), *listing.checkpoints().items()]
    for version, files in reversed(starts):
        following = range(version + 1, broken + 1)
        if version >= broken or not all(each in listing.commits for each in following):
            continue
        try:
            return _state_at(store, files, track_files) if files else TableState(track_files)
        except _UNREADABLE:
            continue
    return None
