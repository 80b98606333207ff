"""Delete a whole queue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore, join
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import InvalidOption, NotAQueue, QueueNotFound
from spark_mq.ledger.settings import QueueSettings
from spark_mq.operations.create import DROP_MARK

__all__ = ["drop_queue"]

_PARTS: Final = ("leases", "commits", "history", "dead_letters", "_locks", "messages")
"""The parts in the order of their deletion. Without ``leases/`` nobody can open the queue."""


def drop_queue(root: str, name: str, options: Mapping[str, str] | None = None) -> int:
    """Delete a queue's tables, see :meth:`spark_mq.Queue.drop_at`. Return the number of files."""
    own = root.rstrip("/").rpartition("/")[2]
    if name != own:
        raise InvalidOption(
            f"name={name!r}: a drop deletes the whole queue. To confirm it, give the queue's "
            f"name, {own!r}",
            option="name",
            value=name,
        )
    _require_queue(root, options)
    store, deleted = ObjectStore(root, options), 0
    with wrap_store_errors(root, "dropping"):
        store.write(DROP_MARK, b"{}")
        for part in _PARTS:
            for info in store.list_all(part):
                if info.path != DROP_MARK:
                    store.delete(info.path)
                    deleted += 1
        store.delete(DROP_MARK)
        store.delete_empty_folders(_PARTS)
    return deleted


def _require_queue(root: str, options: Mapping[str, str] | None) -> None:
    with wrap_store_errors(root, "opening"):
        if ObjectStore(root, options).exists(DROP_MARK):
            return  # a drop was killed
        table = DeltaLog(ObjectStore(join(root, "messages"), options)).open()
    if table is None:
        raise QueueNotFound(f"there is no queue at {root} to drop", path=root)
    if not _is_queue(table.description):
        raise NotAQueue(
            f"{root}/messages is a Delta table, but not one of a queue: it is not deleted",
            path=root,
        )


def _is_queue(description: str | None) -> bool:
    """Return whether a spark_mq of any version wrote a table's description."""
    try:
        data = json.loads(description or "")
    except ValueError:
        return False
    return isinstance(data, dict) and data.get("format") == QueueSettings.FORMAT
