"""Read and write the JSON of Delta commits, which another engine may have written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from spark_mq.delta.actions import (
    LAST_MILLISECOND,
    PREVIOUS_ID,
    AddFile,
    Change,
    Commit,
    Count,
    Protocol,
    RemovedFile,
    Txn,
    parse_foreign,
    restore_hint,
)
from spark_mq.errors import CorruptLog

_MAX_ROWS: Final = 2**32  # of one commit, which has as many ordinals
_SAFE: Final = "/=:@!$&'()*+,;~"  # in a path that is encoded as a URL

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
