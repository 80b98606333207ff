"""Repair ``commits/`` and ``messages/`` after one was restored alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import LOG_FOLDER, AddFile, log_path, version_of
from spark_mq.delta.log import DeltaLog
from spark_mq.errors import TablesDisagree
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import MessageIndex, sequence
from spark_mq.storage.commits_table import CommitsTable
from spark_mq.storage.published_files import PublishedFiles, commit_matches


@dataclass(frozen=True, slots=True)
class LogPlan:
    """The planned recovery of the log of messages and its index."""

    index: MessageIndex  # of the log's messages, without the gap
    covered: int = -1  # the last version that ``commits/`` has
    agreed: int = -1  # the last version up to which ``commits/`` and the log agree
    gap: Interval | None = None  # sequences of commits that neither the log nor ``commits/`` has
    unknown: Sequence[AddFile] = field(default=())  # data files that no known commit added
    published: PublishedFiles | None = None

    @property
    def unknown_rows(self) -> int:
        return sum(file.rows or 0 for file in self.unknown)


def tables_disagree(path: str, reason: str) -> TablesDisagree:
    """Return the error for a table that was restored alone."""
    return TablesDisagree(
        f"the tables of a queue disagree: {reason}. One of them was restored alone. Restore all "
        "tables of one backup, or stop all workers and run Queue.recover(dry_run=True)",
        path=path,
        version=None,
    )


def plan_recovery(log: DeltaLog, commits: CommitsTable, published: PublishedFiles) -> LogPlan:
    """Compare the log of ``messages/`` with ``commits/``, and index what they have."""
    state = log.refresh()
    rows, covered = commits.read_after() or (None, -1)
    agreed = min(covered, state.version)
    if rows is not None:
        agreed = _agreed(log, rows, agreed)
        forgotten = commits.forgotten()
        if forgotten[0] >= sequence(agreed + 1, 0):
            rows, agreed = None, -1  # it has forgotten more than both agree on
        else:
            published.forget_as(*forgotten)
    if rows is not None:
        published.load_rows(rows.filter(pc.less_equal(rows["version"], agreed)), agreed)
    gap = _gap(log, agreed, state.version)
    for commit in log.following(gap[1] + 1 if gap else agreed + 1):
        published.apply(commit)
    if gap is None:
        return LogPlan(published.index, covered, agreed, published=published)
    files = _all_files(log)
    unknown = [file for file in files if not published.knows(file.path)]
    within = sequence(gap[0], 0), sequence(gap[1] + 1, 0) - 1
    return LogPlan(published.index, covered, agreed, within, unknown, published)


def _agreed(log: DeltaLog, rows: pa.Table, upto: int) -> int:
    """Return the last version up to which the log and ``commits/`` agree."""
    agreed, version = upto, upto
    while version >= 0:
        try:
            commit = log.read_commit(version)
        except FileNotFoundError:  # cleaned, and all before it
            break
        if not commit_matches(rows, commit):
            agreed = version - 1
        version -= 1
    return agreed


def _gap(log: DeltaLog, covered: int, latest: int) -> Interval | None:
    """Return the versions after `covered` that the log lacks, or None."""
    if covered >= latest or log.store.exists(log_path(covered + 1)):
        return None
    names = (info.path.rpartition("/")[2] for info in log.store.list(LOG_FOLDER))
    versions = (version_of(name) for name in names if name[20:] == ".json")
    return covered + 1, min(version for version in versions if version > covered) - 1


def _all_files(log: DeltaLog) -> list[AddFile]:
    files = DeltaLog(log.store).refresh().files()
    return sorted(files, key=lambda file: (file.modified, file.path))
