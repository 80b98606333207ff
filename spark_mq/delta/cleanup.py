"""Delete the commits, checkpoints and data files of old versions."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from spark_mq.delta.actions import LOG_FOLDER, checkpoint_path, log_path
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState

__all__ = ["CLOCK_MARGIN_SECONDS", "Keep", "clean_table"]

CLOCK_MARGIN_SECONDS: Final = 60.0
"""Times of two files must differ by this much for one to count as older."""
_STALE_SECONDS: Final = 3600.0
"""A temporary file this old belongs to a writer that died."""


@dataclass(frozen=True, slots=True)
class Keep:
    """The part of a table's past that stays.

    ``versions`` is the number of latest versions. ``seconds`` keeps all younger versions by the
    store's clock. ``after`` keeps all versions after this one, if it is given. A cleaner keeps
    everything from the newest checkpoint that all of these need.
    """

    versions: int
    seconds: float
    after: int | None = None


@dataclass(slots=True)
class _Listing:
    """The files of a log."""

    commits: dict[int, float] = field(default_factory=dict)  # version -> time
    checkpoints: dict[int, list[str]] = field(default_factory=dict)  # version -> paths
    others: dict[int, list[str]] = field(
        default_factory=dict
    )  # version -> checksums of other engines

    @classmethod
    def of(cls, store: ObjectStore) -> _Listing:
        listing = cls()
        for info in store.iterate(LOG_FOLDER):
            name = info.path.rpartition("/")[2]
            if not name[:20].isdigit():
                continue
            version = int(name[:20])
            if name[20:] == ".json":
                listing.commits[version] = info.modified
            elif ".checkpoint." in name:
                listing.checkpoints.setdefault(version, []).append(info.path)
            elif name[20:] == ".crc":
                listing.others.setdefault(version, []).append(info.path)
        return listing

    def base(self, latest: int, keep: Keep) -> int:
        """Return the version of the checkpoint to keep, or -1.

        The oldest kept version is read from that checkpoint.
        """
        now = max(self.commits.values(), default=time.time())
        young = (
            version
            for version in sorted(self.commits)
            if now - self.commits[version] < keep.seconds
        )
        oldest = min(
            latest - keep.versions,
            next(young, latest),
            latest if keep.after is None else keep.after + 1,
        )
        return max((version for version in self.checkpoints if version <= oldest), default=-1)


def clean_table(log: DeltaLog, keep: Keep, *, data_files: bool) -> int:
    """Delete the files that no kept version needs. Return their number.

    It deletes the oldest first. If it is killed, the next run continues. Two runs at the same time
    do no harm.

    Parameters
    ----------
    log
        The table. With `data_files`, it must track its files.
    keep
        How much stays.
    data_files
        Whether to delete data files that the deleted commits removed. Also deletes data files of
        commits that lost their race. The data files of ``messages/`` have rules of their own.
    """
    store, state = log.store, log.refresh()
    store.delete_stale_temporaries(LOG_FOLDER, _STALE_SECONDS)
    listing = _Listing.of(store)
    base = listing.base(state.version, keep)
    deleted = _clean_log(
        log, listing, base, {file.path for file in state.files()} if data_files else None
    )
    if data_files and base >= 0:
        deleted += _clean_orphans(log, state, listing, base)
    return deleted


def _clean_log(log: DeltaLog, listing: _Listing, base: int, live: set[str] | None) -> int:
    """Delete the commits and checkpoints before a version.

    Each commit goes after the files that it removed.
    """
    deleted = 0
    old = sorted(version for version in listing.commits if version < base)
    if old:
        for path in listing.checkpoints[base]:  # other engines do not sync theirs
            with contextlib.suppress(FileNotFoundError):  # another sweep keeps less by now
                log.store.sync(path)
    for version in old:
        gone = [] if live is None else _removed_files(log, version, live)
        deleted += _delete(log.store, [*gone, log_path(version)])
    for found in (listing.checkpoints, listing.others):
        for version in sorted(version for version in found if version < base):
            deleted += _delete(log.store, found[version])
    return deleted


def _removed_files(log: DeltaLog, version: int, live: set[str]) -> list[str]:
    try:
        commit = log.read_commit(version)
    except FileNotFoundError:
        return []  # another sweep has cleaned it
    return sorted({remove["path"] for remove in commit.removes} - live)


def _clean_orphans(log: DeltaLog, state: TableState, listing: _Listing, base: int) -> int:
    """Delete the data files of commits that lost their race.

    Such a file is in no kept version, and older than the newest file of its folder. Its writer,
    however slow, read the table before that file landed, so its commit is a conflict.
    """
    store = log.store
    needed = _kept_files(log, base, state.version)
    if needed is None:
        return 0
    base_time = listing.commits.get(base, 0.0)
    live = {file.path for file in state.files()}
    newest: dict[str, float] = {}
    orphans: list[tuple[str, float]] = []
    for info in store.iterate_all(""):
        if info.path.startswith(LOG_FOLDER + "/") or not info.path.endswith(".parquet"):
            continue
        if info.path in live:
            folder = _folder(info.path)
            newest[folder] = max(newest.get(folder, 0.0), info.modified)
        elif info.path not in needed:
            orphans.append((info.path, info.modified))

    def limit(path: str) -> float:
        return min(newest.get(_folder(path), 0.0), base_time) - CLOCK_MARGIN_SECONDS

    return _delete(store, sorted(path for path, at in orphans if at < limit(path)))


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _kept_files(log: DeltaLog, base: int, latest: int) -> set[str] | None:
    """Return the data files of all versions from a checkpoint on.

    None: another sweep keeps less by now.
    """
    state = TableState()
    try:
        file = log.store.open(checkpoint_path(base))
        try:
            state.load_checkpoint([file], base, log.path)
        finally:
            file.close()
        needed = {file.path for file in state.files()}
        for version in range(base + 1, latest + 1):
            needed |= {add["path"] for add in log.read_commit(version).adds}
    except FileNotFoundError:
        return None
    return needed


def _delete(store: ObjectStore, paths: Iterable[str]) -> int:
    deleted = 0
    for path in paths:
        store.delete(path)
        deleted += 1
    return deleted
