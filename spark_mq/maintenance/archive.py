"""The sweep's chores around ``commits/``: writing down what the log of ``messages/`` says, and then cleaning that log."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from spark_mq.delta import legacy as delta
from spark_mq.delta.checkpoints import checkpoint
from spark_mq.delta.store_errors import telling
from spark_mq.storage.commits_table import SMALL_FILES
from spark_mq.storage.message_table import MessageTable

if TYPE_CHECKING:
    from spark_mq.queue import Queue

__all__ = [
    "CLOCK_MARGIN",
    "KEEP_SECONDS",
    "KEEP_VERSIONS",
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

_ATTEMPTS: Final = 10


def index_commits(queue: Queue) -> int:
    """Writes down in ``commits/`` what the commits of ``messages/`` say since the last time. Returns how many commits those were.

    Safe to kill, to repeat, and to run twice at once: each commit is written down once. A queue in memory has nothing to write down.
    """
    if not isinstance(queue.log, MessageTable):
        return 0
    with telling(queue.log.commits.path, queue.storage_options, "writing to"):
        return _index_commits(queue.log)


def _index_commits(log: MessageTable) -> int:
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


def clean_messages(log: MessageTable, keep_versions: int, keep_seconds: float) -> int:
    """Cleans the log of ``messages/`` as far as ``commits/`` reaches. Returns how many files went; never a data file."""
    table = log.commits.open(log.table_id)
    upto = -1 if table is None else log.commits.covered(table, log.table_id)
    return clean_log(log.files, log.refresh().version(), upto, keep_versions, keep_seconds)


def clean_commits(log: MessageTable) -> int:
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
