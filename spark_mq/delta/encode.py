"""Build the text of Delta commits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

from spark_mq.delta.actions import OPERATION_ID, PREVIOUS_ID, AddFile, Change
from spark_mq.delta.parse import Action

__all__ = ["add_action", "encode", "encode_actions"]

ENGINE: Final = "spark_mq"
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def encode(change: Change, previous_id: str | None, operation: str, now: int) -> bytes:
    """Return a commit as JSON, with Delta's own name of the operation and `now` in milliseconds."""
    note = {name: value for name, value in change.info.items() if value is not None}
    parameters = {"mode": "Append" if not change.removes else "Overwrite"}
    if change.partition is not None:
        parameters["predicate"] = " AND ".join(f"{k} = '{v}'" for k, v in change.partition.items())
    info = {
        "timestamp": now,
        "operation": operation,
        "operationParameters": parameters,
        "engineInfo": ENGINE,
        "isBlindAppend": change.partition is None and not change.removes and not change.whole_table,
        "userMetadata": json.dumps(note),
        OPERATION_ID: change.operation_id,
    }
    if previous_id is not None:
        info[PREVIOUS_ID] = previous_id
    actions: list[Action] = [{"commitInfo": info}]
    actions += [
        {"txn": {"appId": app, "version": number, "lastUpdated": now}}
        for app, number in change.txns
    ]
    if change.metadata is not None:
        actions.append({"metaData": dict(change.metadata)})
    actions += [{"remove": _remove(file, now, change.data_change)} for file in change.removes]
    actions += [{"add": add_action(file, now, change.data_change)} for file in change.adds]
    return encode_actions(actions)


def encode_actions(actions: Iterable[Action]) -> bytes:
    return "\n".join(_to_json(action) for action in actions).encode() + b"\n"


def add_action(file: AddFile, now: int, data_change: bool) -> dict[str, Any]:
    """Return the ``add`` of a data file. `now` is the time of a new file in milliseconds."""
    stats = json.dumps({"numRecords": file.rows}) if file.stats is None else file.stats
    tags = {"tags": dict(file.tags)} if file.tags else {}
    return {
        "path": quote(file.path, safe="/=:@!$&'()*+,;~"),
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": file.modified or now,
        "dataChange": data_change,
        "stats": stats,
        **tags,
    }


def _remove(file: AddFile, now: int, data_change: bool) -> dict[str, Any]:
    return {
        "path": quote(file.path, safe="/=:@!$&'()*+,;~"),
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition),
        "size": file.size,
    }
