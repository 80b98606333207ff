"""Delete the commits, checkpoints and data files of old versions."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from spark_mq.delta.actions import LOG_FOLDER, Change, checkpoint_path, log_path
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import FileInfo, ObjectStore
from spark_mq.delta.state import LogListing, TableState

# The note of the commit after which no writer can name the orphans that a sweep has found.
FIND_ORPHANS: Final = {"operation": "find orphans"}
_STALE_SECONDS: Final = 3600.0  # a file this old that no commit names is of a dead writer


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays of a table's past: all from the newest checkpoint that every limit allows."""

    versions: int  # this many latest ones
    seconds: float  # all younger versions, by the store's clock
    after: int | None = None  # all versions after this one
    # Data files whose path sorts before it go, unless the latest version needs them.
    first_path: str = ""


def _base(listing: LogListing, latest: int, keep: Keep) -> int:
    """Return the checkpoint from which the oldest kept version is read, or -1."""
    commits = listing.commits
    now = max(commits.values(), default=0.0)
    young = (version for version in sorted(commits) if now - commits[version] < keep.seconds)
    oldest = min(
        latest - keep.versions,
        next(young, latest),
        latest if keep.after is None else keep.after + 1,
    )
    return max((version for version in listing.checkpoints() if version <= oldest), default=-1)


def clean_table(log: DeltaLog, keep: Keep, *, data_files: bool) -> int:
    """Delete files that no kept version needs, `data_files` too. Return their number."""
    store, state = log.store, log.refresh()
    store.delete_stale_temporaries(LOG_FOLDER, _STALE_SECONDS)
    listing = LogListing.of(store)
    base = _base(listing, state.version, keep)
    live = {file.path for file in state.files()} if data_files else None
    deleted = _clean_log(log, listing, base, live)
    # Only orphans could go while no old checkpoint is there. They can wait, and save a listing.
    if live is not None and (base >= 0 or keep.first_path):
        deleted += _clean_data(log, base, live, keep.first_path)
    return deleted


def _clean_log(log: DeltaLog, listing: LogListing, base: int, live: set[str] | None) -> int:
    """Delete commits and checkpoints before `base`, each commit after the files it removed."""
    deleted = 0
    old = sorted(version for version in listing.commits if version < base)
    if old:
        for path in listing.parts[base]:  # other engines do not sync theirs
            with contextlib.suppress(FileNotFoundError):  # another sweep keeps less by now
                log.store.sync(path)
    for version in old:
        gone = [] if live is None else sorted(_removed_files(log, version) - live)
        deleted += _delete(log.store, [*gone, log_path(version)])
    for paths in (listing.parts, listing.checksums):
        for version in sorted(version for version in paths if version < base):
            deleted += _delete(log.store, paths[version])
    return deleted


def _removed_files(log: DeltaLog, version: int) -> set[str]:
    if version < 0:
        return set()
    try:
        return {file.path for file in log.read_commit(version).removes}
    except FileNotFoundError:
        return set()  # another sweep has cleaned it


def _clean_data(log: DeltaLog, base: int, live: set[str], first_path: str) -> int:
    """Delete unneeded old data files: of lost races, dead writers and the commit `base`."""
    old = {
        info.path
        for info in log.store.iterate_all("")
        if info.path.endswith(".parquet")
        and not info.path.startswith(LOG_FOLDER + "/")
        and info.path not in live
        and is_stale(log.store, info)
    }

    def unnamed(paths: AbstractSet[str]) -> AbstractSet[str]:
        return paths - _kept_files(log, base, log.refresh().version, first_path)

    if not old:
        return 0
    try:
        orphans = unnamed(old)
        removed = _removed_files(log, base) & orphans
        deleted = _delete(log.store, sorted(removed))
        return deleted + delete_orphans(log, orphans - removed, unnamed, _conflict_with_all)
    except FileNotFoundError:
        return 0  # another sweep keeps less by now


def _kept_files(log: DeltaLog, base: int, latest: int, first_path: str) -> set[str]:
    """Return the data files that kept versions need. Raise FileNotFoundError if one is gone."""
    state = TableState()
    if base >= 0:
        with log.store.open(checkpoint_path(base)) as file:
            state.load_checkpoint([file], base, log.path)
    needed = {file.path for file in state.files()}
    for version in range(base + 1, latest + 1):
        needed |= {file.path for file in log.read_commit(version).adds}
    live = {file.path for file in log.state.files()}
    # Files before first_path count only in the latest version.
    return live | {path for path in needed if path >= first_path}


def _conflict_with_all(state: TableState) -> Change:
    """Return a commit that changes nothing, and conflicts with every other one."""
    return Change(uuid.uuid4().hex, FIND_ORPHANS, metadata=state.metadata)


def is_stale(store: ObjectStore, info: FileInfo) -> bool:
    """Return whether a file is so old that its writer has committed it, or died."""
    return info.modified < store.now() - _STALE_SECONDS


def delete_orphans(
    log: DeltaLog,
    orphans: AbstractSet[str],
    unnamed: Callable[[AbstractSet[str]], AbstractSet[str]],
    conflict: Callable[[TableState], Change],
) -> int:
    """Delete stale files that no commit seemed to name. Return their number.

    `unnamed` returns those that no commit names, by a new look at the log. A writer writes its file
    after it has read the table. So after a commit that conflicts with all who read it before,
    nobody can name a file that has no name then. This does not depend on clocks.
    """
    if not orphans:
        return 0
    log.transact(lambda state: (conflict(state), None))
    return _delete(log.store, sorted(unnamed(orphans)))


def _delete(store: ObjectStore, paths: Iterable[str]) -> int:
    deleted = 0
    for path in paths:
        store.delete(path)
        deleted += 1
    return deleted
