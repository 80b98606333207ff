"""Write down the commits of ``messages/`` and delete what no kept version of a table needs.

Each function is safe to kill, to repeat, and to run twice at once.
"""

from __future__ import annotations

import time
from typing import Final, Protocol
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark_mq.delta import legacy as delta
from spark_mq.delta.checkpoints import checkpoint
from spark_mq.storage.commits_table import SMALL_FILES, CommitsTable
from spark_mq.storage.published_files import PublishedFiles

__all__ = [
    "CLOCK_MARGIN",
    "KEEP_LEDGER_SECONDS",
    "KEEP_LEDGER_VERSIONS",
    "KEEP_SECONDS",
    "KEEP_VERSIONS",
    "clean",
    "clean_commits",
    "clean_log",
    "clean_messages",
    "index_commits",
]

KEEP_VERSIONS: Final = 2_000
KEEP_SECONDS: Final = 600
"""How much of a log stays: so many versions, and at least so long."""

KEEP_OWN_VERSIONS: Final = 100
"""The same of ``commits/`` itself: nobody asks for its past."""

CLOCK_MARGIN: Final = 60.0
"""Seconds by which the times of two files must differ for one to count as the older."""

IDLE_COMMITS: Final = 100
"""Fewer commits than that, none of which says anything (trims), are not worth one of ``commits/``."""

KEEP_LEDGER_VERSIONS: Final = 500
KEEP_LEDGER_SECONDS: Final = 15.0
"""How much of the log of ``leases/`` stays, beside what is not in ``history/`` yet. delta-rs lists it twice a commit, on a local disk all
of it: 4,000 files take half as long as a lease. Not less: a writer over S3 looks only after 10 s whether the log was cleaned meanwhile."""

_ATTEMPTS: Final = 10


class _Messages(Protocol):
    """What a cleaning needs to know of ``messages/``."""

    files: delta.Files
    commits: CommitsTable

    @property
    def table_id(self) -> str: ...

    def refresh(self) -> DeltaTable: ...

    def state(self) -> PublishedFiles: ...


class _Ledgers(Protocol):
    """What a cleaning needs to know of ``leases/``."""

    path: str
    storage_options: dict[str, str]
    files: delta.Files


def index_commits(log: _Messages) -> int:
    """Write down in ``commits/`` what the commits of ``messages/`` say. Returns their number."""
    for attempt in range(_ATTEMPTS):
        state = log.state()
        table = log.commits.open(log.table_id) or log.commits.create(log.table_id)
        done, upto = log.commits.covered(table, log.table_id), state.index.version
        rows = state.since(done)
        if upto <= done or (not rows.num_rows and upto - done < IDLE_COMMITS):
            return 0
        before = table.version()
        try:
            log.commits.write(table, log.table_id, rows, upto)
            return upto - done
        except Exception:
            # It may have landed all the same, and its reply got lost; or another sweep was first: look again.
            after = log.commits.open(log.table_id)
            if after is None or after.version() == before or attempt + 1 == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def clean_messages(log: _Messages, keep_versions: int, keep_seconds: float) -> int:
    """Cleans the log of ``messages/`` as far as ``commits/`` reaches. Returns how many files went; never a data file."""
    table = log.commits.open(log.table_id)
    upto = -1 if table is None else log.commits.covered(table, log.table_id)
    return clean_log(log.files, log.refresh().version(), upto, keep_versions, keep_seconds)


def clean_commits(log: _Messages) -> int:
    """Cleans ``commits/``: its own log, and data files that were rewritten, or whose commit lost its race. Returns how many files went."""
    table, files = log.commits.open(log.table_id), log.commits.files
    if table is None:
        return 0
    checkpoint(files, table, every=SMALL_FILES)
    live, ages = set(delta.paths(table)), files.ages("")
    # Whoever wrote a file that is older than the newest one in the table had read the table before that landed: it cannot land any more.
    newest = max((ages[path] for path in live if path in ages), default=0.0)
    gone = [path for path, at in ages.items() if path not in live and at < newest - CLOCK_MARGIN]
    for path in gone:
        files.delete(path)
    return len(gone) + clean_log(files, table.version(), table.version(), KEEP_OWN_VERSIONS, KEEP_SECONDS)


def clean_log(files: delta.Files, latest: int, upto: int, keep_versions: int, keep_seconds: float) -> int:
    """Deletes the commits and checkpoints of a table's log that no version that is kept needs. Returns how many files went.

    Kept are the last `keep_versions` up to `latest`, what comes after `upto`, and all that was written within `keep_seconds`, from the
    checkpoint on that the oldest of them is read from. The oldest go first: killed at any point, the next run goes on from there.
    """
    log = sorted((int(name[:20]), path, at) for path, at in files.ages("_delta_log").items()
                 if (name := path.rsplit("/", 1)[1])[:20].isdigit())  # fmt: skip
    commits = [(version, at) for version, path, at in log if path == delta.log_path(version)]
    young = (version for version, at in commits if time.time() - at < keep_seconds)
    oldest = min(latest - keep_versions, upto, next(young, latest))
    base = max((version for version, path, _ in log if ".checkpoint." in path and version <= oldest), default=-1)
    gone = [path for version, path, _ in log if version < base]
    for path in gone:
        files.delete(path)
    return len(gone)


def clean(leases: _Ledgers, keep_versions: int, keep_seconds: float, *, archived: int | None = None) -> int:
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


def _clean_orphans(leases: _Ledgers, kept: list[tuple[int, float]], live: set[str]) -> int:
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


def _paths(leases: _Ledgers, version: int) -> set[str] | None:
    """The data files of the ledgers at a version that has a checkpoint; None if another sweep, which keeps less by now, has been here."""
    try:
        table = delta.load(leases.path, leases.storage_options, version)
    except DeltaError:
        if any(f"/{version:020d}.checkpoint." in path for path in leases.files.list("_delta_log")):
            raise
        return None
    return set(delta.paths(table))
