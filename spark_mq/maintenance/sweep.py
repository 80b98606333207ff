"""The sweep: chores that keep a queue small. None is needed for correct delivery; each is safe to kill, repeat, and run twice at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from spark_mq.delta import legacy as delta
from spark_mq.delta.checkpoints import checkpoint
from spark_mq.delta.store_errors import telling
from spark_mq.maintenance.archive import (
    CLOCK_MARGIN,
    KEEP_SECONDS,
    KEEP_VERSIONS,
    clean_commits,
    clean_messages,
    index_commits,
)
from spark_mq.maintenance.dead_letters import Copy, route
from spark_mq.maintenance.retention import trim
from spark_mq.operations.history import archive, archived
from spark_mq.queue import Queue
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.message_table import MessageTable

__all__ = [
    "KEEP_LEDGER_SECONDS",
    "KEEP_LEDGER_VERSIONS",
    "SweepReport",
    "expire",
    "housekeep",
    "sweep",
    "trim",
]


KEEP_LEDGER_VERSIONS: Final = 500
KEEP_LEDGER_SECONDS: Final = 15.0
"""How much of the log of ``leases/`` stays, beside what is not in ``history/`` yet. delta-rs lists it twice a commit, on a local disk all
of it: 4,000 files take half as long as a lease. Not less: a writer over S3 looks only after 10 s whether the log was cleaned meanwhile."""

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did: messages expired and routed, files trimmed from ``messages/``, commits written down in ``commits/`` and
    ledger commits in ``history/``.

    ``cleaned_files``: of the logs of ``messages/`` and ``commits/``, and log and data of old versions of ``leases/``.
    """

    expired: int = 0
    routed: int = 0
    trimmed_files: int = 0
    cleaned_files: int = 0
    indexed_commits: int = 0
    archived_commits: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in asdict(self).items())


def sweep(queue: Queue, copy: Copy | None = None) -> SweepReport:
    """All chores once: index commits, expire, route, trim, housekeeping. ``copy``: how to copy dead letters, see ``dead_letters.route``.

    The dead-letter queue's own tables are kept small, too; the report is about the queue alone. What fails does not keep the rest from
    being done; the first error is raised at the end.
    """
    chores = _Chores(queue)
    indexed = chores.do(index_commits, queue)  # first: it makes every other look at the log cheaper
    groups = [queue.group(name) for name in queue.groups()]
    expired = sum(chores.do(group.expire) for group in groups)
    routed = sum(chores.do(route, group, copy) for group in groups)
    archived_commits = chores.do(archive, queue)
    report = SweepReport(expired, routed, chores.do(trim, queue), chores.do(housekeep, queue), indexed, archived_commits)
    if (dead := queue.dead_letters).path != queue.path:
        chores.do(index_commits, dead)
        chores.do(expire, dead)
        chores.do(housekeep, dead)
    chores.end()
    return report


class _Chores:
    """Does one after the other: what is broken in one group or table keeps none of the rest from its turn, and is told at the end."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._failed: list[Exception] = []

    def do(self, chore: Callable[..., int], *args: Any) -> int:
        try:
            with telling(self._queue.path, self._queue.storage_options, f"a sweep ({chore.__name__.replace('_', ' ')}) of"):
                return chore(*args)
        except Exception as error:
            if not any(str(error) == str(before) for before in self._failed):
                _log.error("a chore of the sweep failed, the others go on: %s", error)
                self._failed.append(error)
            return 0

    def end(self) -> None:
        if self._failed:
            raise self._failed[0]


def expire(queue: Queue) -> int:
    """Folds the leases past their deadline in every group. Returns how many messages they held."""
    return sum(queue.group(name).expire() for name in queue.groups())


def housekeep(queue: Queue, *, keep_versions: int | None = None, keep_seconds: float | None = None) -> int:
    """Checkpoints the tables, cleans their logs, and drops old versions of the ledger with the files only they need.

    By default what each table needs stays (KEEP_..., KEEP_LEDGER_...). The log of ``messages/`` is cleaned as far as ``commits/`` reaches.
    Returns how many files went.
    """
    if not isinstance(queue.leases, LedgerTable) or not isinstance(queue.log, MessageTable):
        return 0
    archive(queue)  # what has not been archived is not cleaned
    with telling(queue.path, queue.storage_options, "housekeeping of"):
        checkpoint(queue.log.files)
        versions, seconds = _given(keep_versions, KEEP_VERSIONS), _given(keep_seconds, KEEP_SECONDS)
        cleaned = clean_messages(queue.log, versions, seconds) + clean_commits(queue.log)
        versions, seconds = _given(keep_versions, KEEP_LEDGER_VERSIONS), _given(keep_seconds, KEEP_LEDGER_SECONDS)
        return cleaned + clean(queue.leases, versions, seconds, archived=archived(queue))


def _given(value: T | None, otherwise: T) -> T:
    return otherwise if value is None else value


def clean(leases: LedgerTable, keep_versions: int, keep_seconds: float, *, archived: int | None = None) -> int:
    """Deletes what no version of the ledger that is kept needs. Returns how many files went.

    Kept are the last `keep_versions`, all after the last one `archived`, and all that were written within `keep_seconds` of the last one
    (by the store's clock: the sweeper's may be wrong), from the checkpoint on that the oldest of them is read from. A commit below that
    goes oldest first, after the data files that it removed: killed at any point, the next run goes on from there. Not delta-rs's own
    clean-up, for that keeps by time alone, and VACUUM knows nothing of versions.
    """
    table = checkpoint(leases.files)
    latest, live = table.version(), set(delta.paths(table))
    log = [
        (int(name[:20]), path, at)
        for path, at in leases.files.ages("_delta_log").items()
        if (name := path.rsplit("/", 1)[1])[:20].isdigit()
    ]
    commits = sorted((version, path, at) for version, path, at in log if path.endswith(".json"))
    checkpoints = [(version, path) for version, path, _ in log if ".checkpoint." in path]
    now = max((at for _, _, at in commits), default=0.0)
    young = (version for version, _, at in commits if now - at < keep_seconds)
    oldest = min(latest - keep_versions, next(young, latest), latest if archived is None else archived + 1)
    base = max((version for version, _ in checkpoints if version <= oldest), default=-1)
    cleaned = 0
    for version, path, _ in commits:
        if version >= base:
            break
        try:
            actions = delta.read_commit(leases.files, version, leases.path)
        except FileNotFoundError:
            continue  # another sweep is at it, and has been here
        removed = {unquote(a["remove"]["path"]) for a in actions if "remove" in a}
        for gone in [*sorted(removed - live), path]:
            leases.files.delete(gone)
            cleaned += 1
    for path in [path for version, path in checkpoints if version < base]:
        leases.files.delete(path)
        cleaned += 1
    kept = [(version, at) for version, _, at in commits if version >= base >= 0]
    return cleaned + (_clean_orphans(leases, kept, live) if kept else 0)


def _clean_orphans(leases: LedgerTable, kept: list[tuple[int, float]], live: set[str]) -> int:
    """Deletes the data files of commits that lost their race. Returns how many.

    Such a file is in none of the versions kept (``(version, time)``), and older than the file that its group has now: whoever wrote it,
    however slow, read the group before that, so that delta-rs would refuse the commit.
    """
    base, base_time = kept[0]
    old = _paths(leases, base)
    if old is None:
        return 0
    needed = live | old
    orphans = set()
    for folder in {path.rpartition("/")[0] for path in live}:
        ages = leases.files.ages(folder)
        newest = max((at for path, at in ages.items() if path in live), default=0.0)
        orphans |= {path for path, at in ages.items() if path not in needed and at < min(newest, base_time) - CLOCK_MARGIN}
    if orphans:  # almost always right already; but a slow writer may have landed after the base what it had written before
        for version, _ in kept:
            try:
                actions = delta.read_commit(leases.files, version, leases.path)
            except FileNotFoundError:
                return 0  # another sweep keeps less by now: the next one looks again
            orphans -= {unquote(a["add"]["path"]) for a in actions if "add" in a}
    for path in sorted(orphans):
        leases.files.delete(path)
    return len(orphans)


def _paths(leases: LedgerTable, version: int) -> set[str] | None:
    """The data files of the ledgers at a version that has a checkpoint; None if another sweep, which keeps less by now, has been here."""
    try:
        table = delta.load(leases.path, leases.storage_options, version)
    except DeltaError:
        if any(f"/{version:020d}.checkpoint." in path for path in leases.files.list("_delta_log")):
            raise
        return None
    return set(delta.paths(table))
