"""Delete old versions of tables, the data files of trimmed messages, and those of dead publishes.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from spark_mq.delta.actions import Change
from spark_mq.delta.cleanup import FIND_ORPHANS, Keep, clean_table, delete_orphans, is_stale
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.tables import Secure, checkpoint_if_due
from spark_mq.errors import CommitConflict
from spark_mq.ledger.data_files import FileList
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.commits_table import CommitsTable
from spark_mq.storage.id_files import DEDUP_APP, IdFiles, head_of, new_name
from spark_mq.storage.published_files import PublishedFiles

# How much of the log of messages/ stays, and of leases/ in an object store. A writer over a store
# looks each 5 to 10 s if the log was cleaned. The rest is for a pause of its machine that none of
# its clocks has noticed.
MESSAGE_VERSIONS: Final = 2_000
MESSAGE_SECONDS: Final = 600.0
# How much of leases/ stays on a local disk, for time travel.
LEDGER_VERSIONS: Final = 500
LEDGER_SECONDS: Final = 15.0
# App id of the transaction that notes the last sequence dropped by a trim.
TRIMMED: Final = "spark_mq.trimmed"
BLOCK_FILES: Final = 50_000  # that one step holds in memory
COMMIT_FILES: Final = 10_000  # that one commit removes

# The txn whose number names the last list of leftovers.
_LIST_APP: Final = "spark_mq.leftovers"
_FOLDER: Final = "_leftovers"  # Delta's VACUUM leaves folders with an underscore alone.
_LOOKED: Final = f"{_FOLDER}/looked"  # its time, by the store's clock, is when we last looked
LOOK_SECONDS: Final = 3600.0  # between two looks, because each lists the whole folder
# Files of this age are listed. Long Spark jobs write their first files hours before their commit.
OLD_SECONDS: Final = 86_400.0
# Those of other Delta writers have the age after which their own VACUUM deletes such files.
FOREIGN_SECONDS: Final = 7 * 86_400.0
_OWN: Final = re.compile(r"part-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet")
_MAX_LISTED: Final = 10_000  # by one look


def clean_message_tables(log: DeltaLog, commits: CommitsTable) -> int:
    """Delete commits of ``messages/`` that ``commits/`` has. Return the number of files."""
    checkpoint_if_due(log.store, log.state.version)
    index = commits.open()
    keep = Keep(MESSAGE_VERSIONS, MESSAGE_SECONDS, commits.up_to(index))
    cleaned = clean_table(log, keep, data_files=False)
    return cleaned if index is None else cleaned + commits.clean()


def clean_ids(log: DeltaLog, ids: IdFiles) -> int:
    """Delete the files of ids that no publish needs. Return their number."""
    stale = {info.path for info in ids.listed() if is_stale(log.store, info)}

    def unnamed(paths: AbstractSet[str]) -> AbstractSet[str]:
        head = head_of(log.refresh().txns)
        return paths - ids.named(head) if head else set()

    orphans = unnamed(stale) if stale else stale
    return delete_orphans(log, orphans, unnamed, _conflict_with_ids)


def _conflict_with_ids(state: TableState) -> Change:
    """Return a commit that publishes nothing, and conflicts with all that have ids."""
    return Change(uuid.uuid4().hex, FIND_ORPHANS, txns=[(DEDUP_APP, state.txns[DEDUP_APP])])


def clean_ledger_table(log: DeltaLog, archived: int, secure: Secure | None) -> int:
    """Delete archived versions of ``leases/``. Return the number of files."""
    checkpoint_if_due(log.store, log.state.version, secure)
    seconds = LEDGER_SECONDS if log.store.is_local else MESSAGE_SECONDS
    return clean_table(log, Keep(LEDGER_VERSIONS, seconds, archived), data_files=True)


def drop_files(
    store: ObjectStore, files: FileList, count: int, rewritten: set[str], horizon: int
) -> int:
    """Delete the first `count` files and the `rewritten` ones. Return how many there were."""
    removed, folders = _remove(store, rewritten, horizon), _folders(rewritten)
    for paths in _blocks(files, count):
        removed += _remove(store, paths, horizon)
        folders |= _folders(paths)
    _delete(store, folders, files, count, rewritten)
    return removed


def _blocks(files: FileList, count: int) -> Iterator[set[str]]:
    for low in range(0, count, BLOCK_FILES):
        paths = files.columns(low, min(count, low + BLOCK_FILES)).paths
        yield set(paths.values.to_pylist())


def _folders(paths: set[str]) -> set[str]:
    return {path.rpartition("/")[0] for path in paths}


def _remove(store: ObjectStore, paths: set[str], horizon: int) -> int:
    """Remove data files without a data change, so streams on the table continue."""
    if not paths:
        return 0

    def compute(state: TableState) -> tuple[Change | None, int]:
        files = state.files()[:COMMIT_FILES]
        change = Change(
            uuid.uuid4().hex,
            {"operation": "trim"},
            removes=files,
            # An older ``leases/`` cannot know the horizon.
            txns=[(TRIMMED, max(horizon, state.txns.get(TRIMMED, -1)))],
            data_change=False,
        )
        return change if files else None, len(files)

    log, total = DeltaLog(store, track_files=paths.__contains__), 0
    while removed := log.transact(compute)[1]:
        total += removed
    return total


def _delete(
    store: ObjectStore, folders: set[str], files: FileList, count: int, rewritten: set[str]
) -> None:
    """Delete all trimmed and rewritten files in some folders, even those of interrupted runs."""
    for folder in sorted(folders):
        for info in store.iterate(folder):
            place = files.find(info.path)
            if info.path in rewritten or (place is not None and place < count):
                store.delete(info.path)


def fence_in(txns: Mapping[str, int]) -> int:
    return txns.get(_LIST_APP, 0)


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
    """Delete old files that no commit names, at most once an hour. Return their number."""
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
        change = Change(uuid.uuid4().hex, note, metadata=state.metadata, txns=[(_LIST_APP, name)])
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
