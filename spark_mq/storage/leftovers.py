"""Delete the data files of ``messages/`` that no commit names, because their publish has died.

A publish writes its files before its commit, so only their age tells a dead publish from a slow
one, and no age is proof. A sweep therefore lists the old files, and makes a commit that names the
list and conflicts with every publish under way. A publish that computes again after it commits no
file that is listed or gone, so the sweep may delete what it has listed. No clock decides that.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from spark_mq.delta.actions import Change
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.errors import CommitConflict
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.id_files import new_name
from spark_mq.storage.published_files import PublishedFiles

# The txn whose number names the last list.
_APP: Final = "spark_mq.leftovers"
_FOLDER: Final = "_leftovers"  # Delta's VACUUM leaves folders with an underscore alone.
_LOOKED: Final = f"{_FOLDER}/looked"  # its time is that of the last look, by the store's clock
LOOK_SECONDS: Final = 3600.0  # between two looks, because each lists the whole folder
# Files of this age are listed. Long Spark jobs write their first files hours before their commit.
OLD_SECONDS: Final = 86_400.0
# Those of other Delta writers have the age after which their own VACUUM deletes such files.
FOREIGN_SECONDS: Final = 7 * 86_400.0
_OWN: Final = re.compile(r"part-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")
_MAX_LISTED: Final = 10_000  # by one look


def fence_in(txns: Mapping[str, int]) -> int:
    """Return the name of the last list, or 0 before the first."""
    return txns.get(_APP, 0)


def has_leftovers(store: ObjectStore, fence: int, files: Iterable[WrittenFile]) -> bool:
    """Return whether a sweep has listed or deleted one of the files, so it may not be committed."""
    suspects = [file.path for file in files if fence not in (0, file.fence)]
    if not suspects:
        return False
    try:
        listed = _read(store, fence)
    except FileNotFoundError:
        return True  # a later list has replaced it
    if not listed.isdisjoint(suspects):
        return True
    return not all(store.for_each(suspects, store.exists))


def clean_leftovers(log: DeltaLog, look: Callable[[], PublishedFiles]) -> int:
    """Delete old files that no commit names, at most once an hour. Return their number.

    `look` returns what all commits publish, up to the latest.
    """
    store = log.store
    looked = store.stat(_LOOKED)
    if looked is not None and abs(store.now() - looked.modified) < LOOK_SECONDS:
        return 0
    store.write(_LOOKED, b"")
    looked = store.stat(_LOOKED)
    if looked is None:
        return 0
    now = looked.modified
    deleted = store.delete_stale_temporaries("", OLD_SECONDS)
    state = log.refresh()
    fence = fence_in(state.txns)
    listed = set[str]()
    if fence:
        with contextlib.suppress(FileNotFoundError, ValueError):
            listed = _read(store, fence)
    known = look()
    old = {
        info.path
        for info in store.iterate("")
        if (info.path in listed or now - info.modified > _patience(info.path))
        and not known.knows(info.path)
    }
    # Another look, because a commit may have landed since the listing.
    # What is listed already stays so, because the sweep that listed it may be about to delete it.
    order = sorted(_unnamed(log, old, look), key=lambda path: (path not in listed, path))
    leftovers = set(order[:_MAX_LISTED])
    if leftovers:
        name = new_name()
        store.write(_path(name), json.dumps(sorted(leftovers)).encode())
        note = {"operation": "find leftovers"}
        change = Change(uuid.uuid4().hex, note, metadata=state.metadata, txns=[(_APP, name)])
        try:
            log.commit(change, state.version)
        except CommitConflict:  # the next look finds them again
            store.delete(_path(name))
            return deleted
        gone = sorted(_unnamed(log, leftovers, look))
        store.delete_many(gone)
        deleted, fence = deleted + len(gone), name
    lists = [
        info.path
        for info in store.list(_FOLDER)
        if info.path not in (_LOOKED, _path(fence)) and now - info.modified > OLD_SECONDS
    ]
    store.delete_many(lists)
    return deleted


def _patience(path: str) -> float:
    if not path.endswith(".parquet"):
        return float("inf")
    return OLD_SECONDS if _OWN.fullmatch(path) else FOREIGN_SECONDS


def _unnamed(log: DeltaLog, paths: set[str], look: Callable[[], PublishedFiles]) -> set[str]:
    if not paths:
        return paths
    known = look()
    unknown = {path for path in paths if not known.knows(path)}
    live = DeltaLog(log.store, track_files=unknown.__contains__).refresh().files()
    return unknown - {file.path for file in live}


def _path(name: int) -> str:
    return f"{_FOLDER}/{name:016x}.json"


def _read(store: ObjectStore, name: int) -> set[str]:
    return set(json.loads(store.read(_path(name))))
