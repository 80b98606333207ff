"""Describe the actions of Delta commits (Delta protocol, "Actions"), and read and write their JSON.

Another engine may have written it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from spark_mq.errors import CorruptLog, UnsupportedTable

LOG_FOLDER: Final = "_delta_log"
# In commitInfo, where it shows after a failure whether a commit landed.
OPERATION_ID: Final = "spark_mq_operation_id"
# In commitInfo: the operation id of the commit before it.
PREVIOUS_ID: Final = "spark_mq_previous_operation_id"

_PLAIN_FEATURES: Final = {"appendOnly", "invariants"}
# Features of the writer versions above 2 (Delta protocol, "Valid Feature Names").
_WRITER_FEATURES: Final = {
    3: "checkConstraints",
    4: "changeDataFeed or generatedColumns",
    5: "columnMapping",
    6: "identityColumns",
}

# Functions from a version to a path relative to the table.
log_path: Final = f"{LOG_FOLDER}/{{:020d}}.json".format
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_VERSION: Final = re.compile("[0-9]{20}")
checkpoint_path: Final = f"{LOG_FOLDER}/{{:020d}}.checkpoint.parquet".format
_MAX_ROWS: Final = 2**32  # of one commit, which has as many ordinals
_SAFE: Final = "/=:@!$&'()*+,;~"  # in a path that is encoded as a URL


def parse_foreign(text: str) -> Any:
    """Return the value of JSON by any writer. Raise ValueError or RecursionError."""
    value = json.loads(text)
    if _SURROGATE.search(text):
        # Half of a character becomes a question mark, because no file or table can hold it.
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        value = json.loads(whole)
    return value


def version_of(path: str) -> int:
    """Return the version in the name of a file of a log, or -1 if the name has none."""
    match = _VERSION.match(path.rpartition("/")[2])
    return int(match[0]) if match else -1


LAST_MILLISECOND: Final = 253_402_300_799_000  # that a datetime can hold
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Txn(msgspec.Struct):
    appId: str
    version: Count


class Protocol(msgspec.Struct):
    minReaderVersion: Count
    minWriterVersion: Count
    readerFeatures: list[Any] | None = None
    writerFeatures: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class AddFile:
    """A data file of a table."""

    path: str  # relative to the table
    size: int  # bytes
    rows: int | None = None  # None if it is not recorded
    partition: Mapping[str, str | None] = field(default_factory=dict)
    stats: str | None = None  # as JSON. None writes the row count alone
    modified: int = 0  # milliseconds since 1970. 0 in a new file means now
    tags: Mapping[str, str] = field(default_factory=dict)
    data_change: bool = True  # its commit adds rows

    @property
    def statistics(self) -> dict[str, Any]:
        """Return ``stats`` as Delta names them, such as ``numRecords``."""
        if self.stats is None:
            return {} if self.rows is None else {"numRecords": self.rows}
        statistics: dict[str, Any] = parse_foreign(self.stats)
        return statistics


class RemovedFile(NamedTuple):
    """A data file that a commit removes."""

    path: str
    partition: Mapping[str, str | None]
    data_change: bool = True


@dataclass(frozen=True, slots=True)
class Change:
    """A commit to make, and what it depends on."""

    operation_id: str
    info: Mapping[str, Any]  # goes as JSON into userMetadata, which DESCRIBE HISTORY shows
    adds: Sequence[AddFile] = ()
    removes: Sequence[AddFile] = ()
    # Application transactions, (app id, version). A commit with one of the same app conflicts.
    txns: Sequence[tuple[str, int]] = ()
    # The partitions whose content was read. A commit that changes one of them conflicts.
    partitions: Sequence[Mapping[str, str]] = ()
    whole_table: bool = False  # every other commit conflicts
    data_change: bool = True  # False if no row changes
    metadata: Mapping[str, Any] | None = None  # the table's new metadata, if it changes
    unsynced: bool = False  # the added files were not synced, so the commit syncs them first
    companions: Sequence[str] = ()  # paths of other files that the commit syncs first
    version_app: str | None = None  # an app whose transaction gets the commit's version as number


@dataclass(slots=True)
class Commit:
    """A parsed commit of a log."""

    version: int
    info: Mapping[str, Any] = field(default_factory=dict)
    adds: list[AddFile] = field(default_factory=list)
    removes: list[RemovedFile] = field(default_factory=list)
    txns: dict[str, int] = field(default_factory=dict)
    metadata: dict[str, Any] | None = None
    protocols: list[Protocol] = field(default_factory=list)
    partitions_known: bool = True  # each file has partition values
    has_vectors: bool = False  # a file has a deletion vector

    @classmethod
    def of(cls, version: int, change: Change, now: int) -> Commit:
        """Return a change's commit as readers of the log see it. `now` is in milliseconds."""
        changed = change.data_change
        note = {name: value for name, value in change.info.items() if value is not None}
        return cls(
            version,
            {
                "timestamp": now,
                "userMetadata": json.dumps(note),
                OPERATION_ID: change.operation_id,
            },
            [replace(f, modified=f.modified or now, data_change=changed) for f in change.adds],
            [RemovedFile(f.path, f.partition, changed) for f in change.removes],
            _txns(version, change),
            None if change.metadata is None else dict(change.metadata),
        )

    @property
    def operation_id(self) -> str | None:
        return self.info.get(OPERATION_ID)

    @property
    def timestamp(self) -> int:
        """Return the commit's time by its writer's clock in microseconds, or 0 if not recorded."""
        return min(self.info.get("timestamp") or 0, LAST_MILLISECOND) * 1000

    @property
    def note(self) -> dict[str, Any]:
        """Return the ``info`` of the :class:`Change`, or {} if spark_mq did not write it."""
        try:
            note = parse_foreign(self.info.get("userMetadata") or "{}")
        except (ValueError, TypeError, RecursionError):
            return {}
        return note if isinstance(note, dict) else {}

    def follows(self, operation_id: str | None) -> bool:
        """Return whether the commit before this one is that operation, as far as is known."""
        previous = self.info.get(PREVIOUS_ID)
        return previous is None or operation_id is None or previous == operation_id

    def conflict_with(self, change: Change) -> str | None:
        """Return why the change must be computed again after this commit, or None."""
        if self.protocols or self.metadata is not None:
            return f"commit {self.version} changed the table's protocol or metadata"
        for app, _ in change.txns:
            if app in self.txns:
                return f"commit {self.version} has a transaction of {app}"
        if change.whole_table and (self.adds or self.removes or self.txns):
            return f"commit {self.version} came first"
        for partition in change.partitions:
            if self._touches(partition):
                return f"commit {self.version} changed {dict(partition)}"
        removed = {file.path for file in change.removes}
        if removed and any(file.path in removed for file in self.removes):
            return f"commit {self.version} removed the same files"
        return None

    def _touches(self, partition: Mapping[str, str]) -> bool:
        # A file with unknown partition values counts as one of the partition.
        touched = [file.partition for file in self.adds]
        touched += [file.partition for file in self.removes]
        return not self.partitions_known or any(
            all(values.get(name) == value for name, value in partition.items())
            for values in touched
        )

    def check_features(self, path: str) -> None:
        """Raise UnsupportedTable if the commit brings in a feature that spark_mq lacks."""
        for protocol in self.protocols:
            check_protocol(path, protocol, self.version)
        if self.has_vectors:
            vectors = ["deletionVectors"]
            check_protocol(path, Protocol(3, 7, vectors, vectors), self.version)


def _txns(version: int, change: Change) -> dict[str, int]:
    own = {} if change.version_app is None else {change.version_app: version}
    return {**dict(change.txns), **own}


def check_protocol(path: str, protocol: Protocol, since: int | None = None) -> None:
    """Raise UnsupportedTable for features beyond the plain ones, which commit `since` added."""
    reader, writer = protocol.minReaderVersion, protocol.minWriterVersion
    readers, writers = protocol.readerFeatures or (), protocol.writerFeatures or ()
    features = sorted({*map(str, readers), *map(str, writers)} - _PLAIN_FEATURES)
    if writer in _WRITER_FEATURES:
        features.append(_WRITER_FEATURES[writer])
    if features or (reader > 1 and not list(readers)):
        named = ", ".join(features) or f"reader version {reader}"
        raise UnsupportedTable(
            f"the Delta table at {path} has features that spark_mq does not support: {named}"
            + (f", since commit {since}. " if since is not None else ". ")
            + "Do not change the tables of a queue. Publish into a new queue",
            path=path,
            features=features,
        )


def restore_hint(path: str, version: int) -> str:
    """Return how to repair a missing or broken commit of a table."""
    if version == 0:  # the table's schema and settings are there
        return f"Restore {log_path(version)} from a backup"
    hint = f"Restore {log_path(version)} from a backup. Without one, "
    table = path.rstrip("/").rpartition("/")[2]
    if table == "messages":
        line = '{"commitInfo":{}}'
        return (
            hint
            + f"give up the messages that it published: put a file with the line {line} in its "
            f"place"
        )
    if table == "leases":
        return (
            hint
            + f"stop the workers and remove version {version} and all later ones from that log: "
            "messages settled since are delivered again"
        )
    return hint + "remove that table if you can lose its content"


def missing_commit_error(path: str, version: int) -> CorruptLog:
    return CorruptLog(
        f"commit {version} of {path} is missing from its log ({log_path(version)}). "
        f"{restore_hint(path, version)}",
        path=path,
        version=version,
    )


_Values = dict[str, str | None]


class _Remove(msgspec.Struct):
    path: str
    partitionValues: _Values | None = None
    dataChange: bool | None = None


class _Add(_Remove):
    size: Count | None = None
    modificationTime: Count | None = None
    stats: str | None = None
    deletionVector: dict[str, Any] | None = None
    tags: dict[str, Any] | None = None


class _Stats(msgspec.Struct):
    numRecords: Count | None = None
    nullCount: dict[str, Any] | None = None


class _Action(msgspec.Struct):
    """One line of a commit. What spark_mq does not use is left out."""

    add: _Add | None = None
    remove: _Remove | None = None
    txn: Txn | None = None
    commitInfo: dict[str, Any] | None = None
    metaData: dict[str, Any] | None = None
    protocol: Protocol | None = None


_ACTIONS: Final = msgspec.json.Decoder(_Action)
_STATS: Final = msgspec.json.Decoder(_Stats)
_ENCODER: Final = msgspec.json.Encoder()


def parse_commit(version: int, text: bytes, path: str) -> Commit:
    """Parse a commit of the table at `path`. Raise CorruptLog if it cannot be read."""
    try:
        return _parsed(version, text)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CorruptLog(
            f"commit {version} of {path} cannot be read: {error}. {restore_hint(path, version)}",
            path=path,
            version=version,
        ) from error


def _parsed(version: int, text: bytes) -> Commit:
    commit = Commit(version)
    for action in _actions(text):
        if action.add is not None:
            commit.adds.append(_added(action.add))
            commit.has_vectors |= action.add.deletionVector is not None
        if (gone := action.remove) is not None:
            values, changed = gone.partitionValues or {}, gone.dataChange is not False
            commit.removes.append(RemovedFile(unquote(gone.path), values, changed))
        for file in (action.add, action.remove):
            commit.partitions_known &= file is None or file.partitionValues is not None
        if action.txn is not None:
            commit.txns[action.txn.appId] = action.txn.version
        if action.commitInfo is not None and not commit.info:
            commit.info = action.commitInfo
        if action.metaData is not None:
            given = action.metaData.items()
            commit.metadata = {name: value for name, value in given if value is not None}
        if action.protocol is not None:
            commit.protocols.append(action.protocol)
    msgspec.convert(commit.info.get("timestamp"), Count | None)
    rows = sum(file.rows or 0 for file in commit.adds)
    if rows > _MAX_ROWS:
        raise ValueError(f"it adds {rows} rows, more than a commit may have")
    return commit


def _actions(text: bytes) -> list[_Action]:
    try:
        return _ACTIONS.decode_lines(text)
    except (msgspec.MsgspecError, ValueError):
        # JSON of others may have NaN, or half of a character. Only line feeds end a line of it.
        lines = text.decode("utf-8").split("\n")
        return msgspec.convert(
            [parse_foreign(line) for line in lines if line.strip()], list[_Action]
        )


def _added(add: _Add) -> AddFile:
    text = add.stats or "{}"
    try:
        stats = _STATS.decode(text)
    except (msgspec.MsgspecError, ValueError):
        stats = msgspec.convert(parse_foreign(text), _Stats)
    return AddFile(
        unquote(add.path),
        add.size or 0,
        stats.numRecords,
        add.partitionValues or {},
        text,
        min(add.modificationTime or 0, LAST_MILLISECOND),
        add.tags or {},
        add.dataChange is not False,
    )


def encode(change: Change, commit: Commit, previous_id: str | None) -> bytes:
    now = commit.info["timestamp"]
    parameters = {"mode": "Append" if not change.removes else "Overwrite"}
    if change.partitions:
        files = (*change.removes, *change.adds)
        changed = dict.fromkeys(tuple(file.partition.items()) for file in files)
        parameters["predicate"] = " OR ".join(
            " AND ".join(f"{k} = '{v}'" for k, v in values) for values in changed
        )
    info: dict[str, Any] = {
        **commit.info,
        "operation": "WRITE",
        "operationParameters": parameters,
        "engineInfo": "spark_mq",
        "isBlindAppend": not change.partitions and not change.removes and not change.whole_table,
    }
    if previous_id is not None:
        info[PREVIOUS_ID] = previous_id
    actions: list[dict[str, Any]] = [{"commitInfo": info}]
    actions += [
        {"txn": {"appId": app, "version": number, "lastUpdated": now}}
        for app, number in commit.txns.items()
    ]
    if change.metadata is not None:
        actions.append({"metaData": dict(change.metadata)})
    actions += [{"remove": _remove(file, now, change.data_change)} for file in change.removes]
    actions += [{"add": add_action(file, now, change.data_change)} for file in change.adds]
    return encode_actions(actions)


def encode_actions(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return _ENCODER.encode_lines(actions)


def add_action(file: AddFile, now: int, data_change: bool) -> dict[str, Any]:
    """Return the ``add`` of a data file. `now` is the time of a new file in milliseconds."""
    stats = json.dumps({"numRecords": file.rows}) if file.stats is None else file.stats
    tags = {"tags": dict(file.tags)} if file.tags else {}
    return {
        "path": quote(file.path, safe=_SAFE),
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": file.modified or now,
        "dataChange": data_change,
        "stats": stats,
        **tags,
    }


def _remove(file: AddFile, now: int, data_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe=_SAFE),
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.size,
    }
