"""Find the queues under a path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from spark_mq.delta.object_store import ObjectStore, absolute_path, join
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import InvalidOption
from spark_mq.util.validation import validate_count

__all__ = ["find_queues"]

_TABLES: Final = ("messages", "leases")


def find_queues(
    root: str, storage_options: Mapping[str, str] | None = None, *, max_depth: int = 3
) -> list[str]:
    """Return the paths of the queues under an absolute path or URI, in order.

    A folder with the tables ``messages/`` and ``leases/`` is a queue. Names that no queue can have
    are left out. For the parameters see :meth:`spark_mq.Queue.find_all`.
    """
    validate_count("max_depth", max_depth, least=0, most=100)
    store = ObjectStore(root, storage_options)
    with wrap_store_errors(root, "listing"):
        found = [join(root, name) if name else root for name in _find(store, "", max_depth + 1)]
    return sorted(found)


def _find(store: ObjectStore, folder: str, depth: int) -> Iterator[str]:
    names = store.folders(folder)
    if set(_TABLES) <= set(names):
        yield folder
    elif depth and "_delta_log" not in names:
        for name in names:
            if not name.startswith((".", "_")) and _is_name(join(store.root, name)):
                yield from _find(store, f"{folder}/{name}" if folder else name, depth - 1)


def _is_name(path: str) -> bool:
    try:
        absolute_path(path)
    except InvalidOption:
        return False
    return True
