"""The few things spark_mq needs of a Delta table beyond what delta-rs's ``DeltaTable`` offers: its features, its commits, raw files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_mq.commit_log import OPERATION_ID, landed_since, log_path, read_commit
from spark_mq.damage import explained, is_refused, telling
from spark_mq.errors import InvalidOption, UnsupportedTable
from spark_mq.files import Files
from spark_mq.listings import load, mark, newest, update

__all__ = [
    "OPERATION_ID",
    "Files",
    "absolute",
    "check_features",
    "check_protocol",
    "child",
    "commit_properties",
    "exists",
    "landed_since",
    "load",
    "log_path",
    "mark",
    "newest",
    "no_housekeeping",
    "note_of",
    "open_table",
    "paths",
    "read_commit",
    "update",
]

_NO_PATH = re.compile(r"[\[\]^|\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")

_PLAIN_FEATURES = {"appendOnly", "invariants"}
_WITH_MORE = {3: "checkConstraints", 4: "changeDataFeed or generatedColumns", 5: "columnMapping", 6: "identityColumns"}
"""What a writer version above 2 brings where features are not yet named one by one (Delta protocol, "Valid Feature Names")."""


def exists(path: str, storage_options: Mapping[str, str] | None = None) -> bool:
    """Whether there is a Delta table. Raises StoreFailed."""
    files = Files(path, storage_options)
    with telling(path, storage_options, "looking for"):
        return bool(DeltaTable.is_deltatable(path, dict(storage_options or {}))) or (files.lists_late and files.exists(log_path(0)))


def open_table(path: str, storage_options: Mapping[str, str] | None = None) -> DeltaTable | None:
    """The table at its latest version, or None. Raises UnsupportedTable, CorruptLog, StoreFailed."""
    try:
        table = load(path, storage_options)
    except TableNotFoundError as error:
        if is_refused(error):
            raise explained(path, storage_options, error, "opening") from error
        return None
    except DeltaError as error:
        # delta-rs refuses reader features that it does not know while it loads.
        if "feature" in str(error).lower():
            raise UnsupportedTable(
                f"the Delta table at {path} needs features that are not supported here: {error}", path=path, features=[]
            ) from error
        raise explained(path, storage_options, error, "opening") from error
    except OSError as error:
        raise explained(path, storage_options, error, "opening") from error
    check_features(table, path)
    return table


def check_features(table: DeltaTable, path: str) -> None:
    """Refuses a table with features that break one of the engines (DESIGN: plain features only)."""
    protocol = table.protocol()
    check_protocol(
        path, (protocol.min_reader_version, protocol.min_writer_version), protocol.reader_features or (), protocol.writer_features or ()
    )


def check_protocol(
    path: str, versions: tuple[int, int], reader_features: Iterable[str], writer_features: Iterable[str], since: int | None = None
) -> None:
    """The same for a protocol as a table's log tells it: its reader and writer version. ``since``: the commit that brought it."""
    reader, writer = versions
    features = sorted({*map(str, reader_features), *map(str, writer_features)} - _PLAIN_FEATURES)
    if writer in _WITH_MORE:
        features.append(_WITH_MORE[writer])
    if features or (reader > 1 and not list(reader_features)):
        named = ", ".join(features) or f"reader version {reader}"
        raise UnsupportedTable(
            f"the Delta table at {path} has features that spark_mq does not support: {named}"
            + (f", since commit {since}. " if since is not None else ". ")
            + "A queue's tables must stay as Queue.create makes them: publish into a new queue",
            path=path,
            features=features,
        )


def paths(table: DeltaTable) -> list[str]:
    """The data files that a handle's version has."""
    return [unquote(path) for path in pa.table(table.get_add_actions(flatten=True))["path"].to_pylist()]


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
    except (ValueError, TypeError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def no_housekeeping(checkpoint: bool = True) -> PostCommitHookProperties:
    """Checkpoints come at their interval; cleaning the log is the sweep's."""
    return PostCommitHookProperties(create_checkpoint=checkpoint, cleanup_expired_logs=False)


def child(path: str, name: str) -> str:
    """The path of a table under a queue's path."""
    return path.rstrip("/") + "/" + name


def absolute(path: Any, option: str = "path") -> str:
    """A local path made absolute, for other processes have another working directory; a URI as it is.

    Raises InvalidOption for a local path that delta-rs takes for another one, or panics at.
    """
    text = os.fspath(path)
    if "://" in text and not text.startswith("file:///"):
        return text
    local = os.path.abspath(re.sub(r"^file:(//)?(?=/)", "", text))
    if wrong := _NO_PATH.search(local):
        raise InvalidOption(
            f"{option}={local!r} has {wrong[0]!r} in it, with which delta-rs does not find a local table: use another folder",
            option=option, value=local,
        )  # fmt: skip
    return local
