"""Archive the commits of ``messages/`` as an index, ``commits/``.

With it, the log of ``messages/`` can be cleaned, and a process opens a queue by few files.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import AddFile
from spark_mq.delta.state import TableState
from spark_mq.ledger.log_fingerprints import MAX_SEQUENCE
from spark_mq.storage.archive_table import ArchiveTable, Batch, Filters, may_match
from spark_mq.storage.commit_rows import (
    COMMITS_SCHEMA,
    PRODUCER_NUMBER,
    PUBLISH,
    producer_number_rows,
)
from spark_mq.storage.published_files import PublishedFiles
from spark_mq.util.clock import to_datetime
from spark_mq.util.columns import sort_rows

BATCH_FILES: Final = 100_000  # of messages that one commit indexes


class CommitsTable(ArchiveTable):
    """The index of one ``messages/`` table, known by its id."""

    schema = COMMITS_SCHEMA
    order = ("version", "first")
    small_files = 15  # few, because each new process reads all files
    format = "spark_mq commits"
    app = "spark_mq.index"
    operation = "index commits"
    remedy = (
        "; or, as long as the log of messages/ has all its commits, remove the table: the next "
        "sweep writes it again"
    )

    @cached_property
    def description(self) -> str:
        return json.dumps({"format": self.format, "messages": self.source_id})

    def read_after(self, after: int = -1) -> tuple[pa.Table, int] | None:
        """Return the rows and the version that they cover, or None if it is not after `after`.

        Files of which all rows are forgotten are left out.
        """

        def choose(state: TableState) -> Filters | None:
            known = self.up_to(state) <= after
            return None if known else [("last", ">=", self.forgotten(state)[0] + 1)]

        rows, up_to = self.read([], choose=choose)
        return None if up_to <= after else (rows, up_to)

    def past(self, first: int, last: int) -> pa.Table:
        """Return the rows of published files in ``first..last``, also of forgotten ones."""
        return self.read([("kind", "=", PUBLISH), ("first", "<=", last), ("last", ">=", first)])[0]

    def forgotten(self, state: TableState | None = None) -> tuple[int, int]:
        """Return the last forgotten sequence, or -1, and the number of forgotten messages.

        They are of the latest version that was read, or of `state`.
        """
        txns = (state or self.log.state).txns
        to, messages = self._forgotten_apps
        # A log has no negative numbers. No message has sequence 0, as version 0 makes the table.
        return txns.get(to, 0) or -1, txns.get(messages, 0)

    @cached_property
    def _forgotten_apps(self) -> tuple[str, str]:
        own = self.source_id
        return f"spark_mq.forgotten_to:{own}", f"spark_mq.forgotten:{own}"

    def index(
        self, published: PublishedFiles, idle_commits: int, *, keep_since: int | None = None
    ) -> int:
        """Add the commits of `published` that the table lacks. Return their number.

        Fewer commits than `idle_commits`, none of which publishes, are not worth a commit. Readers
        skip forgotten rows. Those from before `keep_since`, in microseconds, are deleted, and None
        keeps all.
        """

        def next_batch(state: TableState, done: int) -> Batch | None:
            index, known = published.index, self.forgotten(state)
            up_to = published.version_after(done, BATCH_FILES)
            rows = published.rows_since(done, up_to)
            forgotten = max((index.forgotten_to, index.forgotten), known)
            idle = up_to <= done or (not rows.num_rows and up_to - done < idle_commits)
            if idle and forgotten[0] == known[0]:
                return None
            noted = zip(self._forgotten_apps, forgotten, strict=True) if forgotten[0] >= 0 else ()
            return Batch(rows, up_to, list(noted))

        commits = self.append(published.index.version, next_batch)
        self.merge(keep_since or 0)
        return commits

    def truncate(self, up_to: int) -> None:
        """Drop the rows of all commits after a version. After version 0, nothing is forgotten."""
        self.truncate_to(up_to, [] if up_to else [(app, 0) for app in self._forgotten_apps])

    def _is_stale(self, file: AddFile, state: TableState, keep_since: int) -> bool:
        since = to_datetime(max(0, keep_since))
        forgotten_to = self.forgotten(state)[0]
        return not (
            may_match(file, [("last", ">=", forgotten_to + 1)])
            or may_match(file, [("committed_at", ">=", since)])
        )

    def _needed(self, rows: pa.Table, state: TableState, keep_since: int) -> pa.Table:
        times = pc.fill_null(rows["committed_at"].cast(pa.int64()), 0)
        last = pc.fill_null(rows["last"], MAX_SEQUENCE)
        known = pc.greater(last, self.forgotten(state)[0])
        return rows.filter(pc.or_(known, pc.greater_equal(times, keep_since)))

    def _combined(self, rows: pa.Table) -> pa.Table:
        """Return the rows, with only the latest number of each app."""
        is_number = pc.equal(rows["kind"], PRODUCER_NUMBER)
        numbers = sort_rows(rows.filter(is_number), "version")
        columns = (numbers[name].to_pylist() for name in ("app", "number", "version"))
        latest = {app: (number, at) for app, number, at in zip(*columns, strict=True)}
        kept = producer_number_rows((app, number, at) for app, (number, at) in latest.items())
        return pa.concat_tables([rows.filter(pc.invert(is_number)), kept])
