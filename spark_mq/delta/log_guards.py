"""Notice a log with a gap, and a table made again."""

from __future__ import annotations

from spark_mq.delta.actions import LOG_FOLDER, Commit, log_path, missing_commit_error, version_of
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import NotAQueue

__all__ = ["check_for_gap", "check_same_table", "remade_table_error"]


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
