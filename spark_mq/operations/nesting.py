"""Find queues under a path, and keep one from lying within another."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Final

from spark_mq.delta.log import DeltaLog
from spark_mq.delta.memory_files import is_in_memory
from spark_mq.delta.object_store import ObjectStore, absolute_path, canonical_path, join
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import InvalidOption, NotAQueue, SparkMQError
from spark_mq.ledger.settings import QueueSettings

_TABLES: Final = ("messages", "leases")  # the folders that a queue has and another place has not
OWN_DEAD_LETTERS: Final = "./dead_letters"
_MAX_DEPTH: Final = 3  # of folders between a new queue and one below it


def find_folders(
    store: ObjectStore, depth: int, folder: str = "", *, denied: bool = False
) -> Iterator[str]:
    """Yield the folders of queues, without those within a queue.

    A folder below the root that may not be read is skipped, or with `denied` taken for a queue.
    """
    try:
        names = store.folders(folder)
    except PermissionError:
        if not folder:
            raise
        if denied:
            yield folder
        return
    if set(_TABLES) <= set(names):
        yield folder
    elif depth and "_delta_log" not in names:
        for name in names:
            if not name.startswith((".", "_")) and _is_name(join(store.root, name)):
                inner = f"{folder}/{name}" if folder else name
                yield from find_folders(store, depth - 1, inner, denied=denied)


def is_queue(description: str | None) -> bool:
    """Return whether a spark_mq of any version wrote a table's description."""
    try:
        settings = json.loads(description or "")
    except (ValueError, RecursionError):
        return False
    return isinstance(settings, dict) and settings.get("format") == QueueSettings.FORMAT


def is_queue_at(path: str, options: Mapping[str, str]) -> bool:
    return is_queue(_description(join(path, "messages"), options))


def refuse_nested(root: str, options: Mapping[str, str]) -> None:
    """Raise NotAQueue for a new queue within another one, unless for its letters, or around one."""
    for outer in _parents(root):
        description = _description(join(outer, "messages"), options)
        if not is_queue(description):
            continue
        place = _dead_letters(outer, description)
        if place is not None and canonical_path(place, options) == canonical_path(root, options):
            return
        raise NotAQueue(
            f"{root} lies within the queue at {outer}, whose drop would leave half of it, and no "
            "list of queues would show it. Give the new queue a folder beside that one",
            path=root,
        )
    with wrap_store_errors(root, "listing"):
        folders = set(find_folders(ObjectStore(root, options), _MAX_DEPTH + 1))
    if inner := min(folders - {"", OWN_DEAD_LETTERS[2:]}, default=None):
        raise NotAQueue(
            f"there is a queue at {join(root, inner)}, which would lie within a queue at {root}. "
            "Give the new queue a folder beside that one",
            path=root,
        )


def _parents(root: str) -> Iterator[str]:
    """Yield the folders around a path, the nearest first."""
    scheme, remote, place = root.partition("://")
    if not remote:
        place = os.path.realpath(root)
    while "/" in place:
        place = place.rpartition("/")[0]
        yield scheme + remote + place if remote else place or "/"


def _description(path: str, options: Mapping[str, str]) -> str | None:
    """Return a table's description, or None if there is none, or nobody may read it."""
    if "://" not in path and not os.path.isdir(path):
        return None
    try:
        state = DeltaLog(ObjectStore(path, options), track_files=False).open()
    except (OSError, SparkMQError):  # a key may be for the new queue's own folder only
        return None
    return None if state is None else state.description


def _dead_letters(outer: str, description: str | None) -> str | None:
    try:
        settings = QueueSettings.from_json(description)
    except SparkMQError:  # of another version
        return None
    place = (settings and settings.dead_letter_path) or OWN_DEAD_LETTERS
    return join(outer, place[2:]) if place.startswith("./") else None


def _is_name(path: str) -> bool:
    if is_in_memory(path):
        return True
    try:
        absolute_path(path)
    except InvalidOption:
        return False
    return True
