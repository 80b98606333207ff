"""Find where the log of a Delta table starts, read it ahead, and notice a gap or another table."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from spark_mq.delta.action_json import parse_commit
from spark_mq.delta.actions import (
    LOG_FOLDER,
    Commit,
    checkpoint_path,
    log_path,
    missing_commit_error,
    version_of,
)
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState, TrackFiles
from spark_mq.errors import CorruptLog, NotAQueue

_logger = logging.getLogger(__name__)

CHECKPOINT_HINT: Final = f"{LOG_FOLDER}/_last_checkpoint"
_LOOKS: Final = 2
_UNREADABLE = (pa.ArrowException, ValueError, FileNotFoundError)


def find_start(store: ObjectStore) -> Sequence[str] | None:
    """Return the newest checkpoint's files, () for none, None without a table. Raise CorruptLog."""
    for _ in range(_LOOKS):
        hinted = last_checkpoint(store)
        if hinted >= 0 and store.exists(path := checkpoint_path(hinted)):
            return [path]
        if store.exists(log_path(0)):
            return ()
        files, any_commit = _newest_checkpoint(store)
        if files is not None or not any_commit:
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
    files, any_commit = _newest_checkpoint(store)
    if files is None and any_commit:
        raise missing_commit_error(store.root, 0)
    return files


def _newest_checkpoint(store: ObjectStore) -> tuple[list[str] | None, bool]:
    """Return the newest complete checkpoint, and whether any commit exists."""
    by_version: dict[int, list[str]] = {}
    any_commit = False
    for info in store.list(LOG_FOLDER):
        name = info.path.rpartition("/")[2]
        version = version_of(name)
        if version < 0:
            continue
        if ".checkpoint." in name and name.endswith(".parquet"):
            by_version.setdefault(version, []).append(info.path)
        any_commit |= name[20:] == ".json"
    complete = [version for version, paths in by_version.items() if _is_complete(paths)]
    return (by_version[max(complete)] if complete else None), any_commit


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
        return _loaded(store, files, track_files)
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
    """Raise CorruptLog if the newest checkpoint cannot be read."""
    files = find_start(store) or _newest_checkpoint(store)[0]
    if not files:
        return
    try:
        _loaded(store, files, False)
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


def _loaded(store: ObjectStore, files: Sequence[str], track_files: TrackFiles) -> TableState:
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
    broken = version_of(path)
    names = [info.path.rpartition("/")[2] for info in store.list(LOG_FOLDER)]
    numbered = [(version_of(name), name[20:]) for name in names if version_of(name) >= 0]
    commits = {version for version, kind in numbered if kind == ".json"}
    older = {
        version for version, kind in numbered if kind == ".checkpoint.parquet" and version < broken
    }
    for version in (*sorted(older, reverse=True), -1):
        if not all(following in commits for following in range(version + 1, broken + 1)):
            continue
        try:
            return (
                _loaded(store, [checkpoint_path(version)], track_files)
                if version >= 0
                else TableState(track_files)
            )
        except _UNREADABLE:
            continue
    return None


def check_for_gap(store: ObjectStore, version: int) -> None:
    """Raise CorruptLog if only the commit after `version` is missing."""
    names = (info.path.rpartition("/")[2] for info in store.list(LOG_FOLDER))
    beyond = any(name[20:] == ".json" and version_of(name) > version + 1 for name in names)
    if beyond and not store.exists(log_path(version + 1)) and store.exists(log_path(version)):
        raise missing_commit_error(store.root, version + 1)


def check_same_table(path: str, commit: Commit, table_id: str) -> None:
    """Raise NotAQueue if a commit makes another table of the known one."""
    if str((commit.metadata or {}).get("id")) != table_id:
        raise NotAQueue(
            f"commit {commit.version} of {path} replaced the table. Open the queue again",
            path=path,
        )


def remade_table_error(path: str) -> NotAQueue:
    return NotAQueue(
        f"the Delta table at {path} was created again after this handle was opened. Open the queue "
        "again",
        path=path,
    )


def read_ahead(store: ObjectStore, version: int, count: int) -> list[Commit]:
    """Return up to `count` commits, up to the first missing one."""

    def text(at: int) -> bytes | None:
        try:
            return store.read(log_path(at))
        except FileNotFoundError:
            return None

    texts = list(store.for_each(range(version, version + count), text))
    there = texts[: texts.index(None)] if None in texts else texts
    return [
        parse_commit(version + at, text, store.root)
        for at, text in enumerate(there)
        if text is not None
    ]
