"""Archive the events of all ledger commits, ``history/``.

Its rows name the messages, the person or worker, and the time. A ledger commit carries its events
until it is cleaned away, so the sweep archives it before that.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.ledger.editor import end_reason_of
from spark_mq.ledger.ranges import EVENT, RANGE_SCHEMA, SETTLED
from spark_mq.parquet.schema import INSTANT
from spark_mq.storage import archive_table
from spark_mq.storage.archive_table import ArchiveTable, Batch, tables_disagree
from spark_mq.storage.ledger_files import LEASES_SCHEMA, GroupChange, LedgerCommit, events_of
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.clock import SECOND, to_datetime
from spark_mq.util.columns import to_arrow

BATCH: Final = 1_000  # ledger commits archived by one commit

_OF_RANGE: Final = [
    f for f in RANGE_SCHEMA if f.name not in ("suspect", "lease_size", "state", "sink_writes")
]
# One row for each event of a range, and one for a commit without events.
HISTORY_SCHEMA: Final = pa.schema(
    [
        pa.field("day", pa.date32()),  # the partition
        pa.field("version", pa.int64()),  # of ``leases/``
        pa.field("ordinal", pa.int32()),  # the event's place in its commit
        pa.field("committed_at", INSTANT),
        pa.field("consumer_group", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("operation_id", pa.string()),
        pa.field("event", pa.string()),  # null for a commit without events
        pa.field("state", pa.string()),  # after the event
        # How the message ended: acked, dead_lettered, dropped, expired, skipped, lost, redriven.
        pa.field("outcome", pa.string()),
        *_OF_RANGE,
        pa.field("user", pa.string()),  # who made the change, if a person made it
        # The size of a lease that failed as a whole. Then ``error`` belongs to the lease.
        pa.field("batch_size", pa.int64()),
        # A person's request: a reason, changed settings, a seek's target or a redrive's condition.
        pa.field("detail", pa.string()),
    ]
)
# The events of a delivery that failed.
FAILURES: Final = ("nacked", "rejected", "lease_expired", "given_back")
# The reason of the event "returned". The ledger keeps no reason for a message that waits.
BEHIND: Final = "an earlier message of its key waits"

# The event of a commit without events.
_NOTHING: Final = pa.table(
    [
        pa.array([EVENT]) if field.name == "state" else pa.nulls(1, field.type)
        for field in LEASES_SCHEMA
    ],
    schema=LEASES_SCHEMA,
)


def history_rows(commits: Iterable[LedgerCommit]) -> pa.Table:
    known: list[tuple[LedgerCommit, GroupChange]] = []
    parts, numbers, ordinals = list[pa.Table](), array("q"), array("q")
    for commit in commits:
        first = 0
        for change in commit.changes:
            count = change.events.num_rows
            if not count and change.operation is None:
                continue
            parts.append(change.events if count else _NOTHING)
            following = first + max(1, count)
            numbers.extend([len(known)] * (following - first))
            ordinals.extend(range(first, following))
            first = following
            known.append((commit, change))
    if not parts:
        return HISTORY_SCHEMA.empty_table()
    return _table(known, pa.concat_tables(parts).combine_chunks(), numbers, ordinals)


def _table(
    known: Sequence[tuple[LedgerCommit, GroupChange]],
    rows: pa.Table,
    numbers: array[int],
    ordinals: array[int],
) -> pa.Table:
    """Return the history of events. ``numbers`` has the place of the change of each."""
    commits, changes = [commit for commit, _ in known], [change for _, change in known]
    events, own = events_of(rows), to_arrow(numbers)

    def of_commit(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(own)

    failed = pc.and_(pc.is_in(events["event"], value_set=pa.array(FAILURES)), events["suspect"])
    given = {
        "day": of_commit((to_datetime(commit.at).date() for commit in commits), pa.date32()),
        "version": of_commit((commit.version for commit in commits), pa.int64()),
        "ordinal": to_arrow(ordinals).cast(pa.int32()),
        "committed_at": of_commit((commit.at for commit in commits), pa.int64()).cast(INSTANT),
        "consumer_group": pc.coalesce(
            rows["consumer_group"], of_commit((change.group for change in changes), pa.string())
        ),
        "operation": of_commit((change.operation for change in changes), pa.string()),
        "operation_id": of_commit((commit.operation_id for commit in commits), pa.string()),
        "outcome": _outcomes(events),
        "reason": pc.if_else(pc.equal(events["event"], "returned"), BEHIND, events["reason"]),
        "batch_size": pc.if_else(failed, events["lease_size"], None),
        "user": of_commit((change.user for change in changes), pa.string()),
        "detail": of_commit((change.detail for change in changes), pa.string()),
    }
    columns = [given[f.name] if f.name in given else events[f.name] for f in HISTORY_SCHEMA]
    return pa.table(columns, schema=HISTORY_SCHEMA)


def _outcomes(events: pa.Table) -> pa.Array:
    names = pc.unique(events["event"])
    ends = pa.array([name and end_reason_of(name) for name in names.to_pylist()], pa.string())
    outcomes = ends.take(pc.index_in(events["event"].combine_chunks(), value_set=names))
    ended = pc.equal(events["state"], SETTLED)
    return pc.if_else(ended, outcomes, pa.scalar(None, pa.string()))


class Archived(NamedTuple):
    """The number of archived commits, and the last archived version of ``leases/``."""

    commits: int
    up_to: int


class HistoryTable(ArchiveTable):
    """The archive of a ledger table."""

    schema = HISTORY_SCHEMA
    order = ("version", "ordinal")
    partition = "day"
    small_files = 100
    format = "spark_mq history"
    app = "spark_mq.history"
    operation = "archive"
    remedy = ""

    def __init__(
        self,
        path: str,
        ledgers: LedgerTable,
        storage_options: Mapping[str, str] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        super().__init__(path, ledgers.log, storage_options, durable=durable)
        self._ledgers = ledgers

    def archive(self, retention: int) -> Archived:
        """Archive new ledger commits and drop days older than `retention` microseconds."""
        if (agreed := self.agreed_up_to()) is not None:
            reason = f"history/ has commits of leases/ after version {agreed} that it lacks"
            raise tables_disagree(self.path, reason)
        latest = self._ledgers.version()

        @lru_cache(maxsize=1)  # because a try that lost its race needs the same rows again
        def next_batch(done: int) -> Batch | None:
            return self._next_batch(done, latest)

        if self.open() is None and next_batch(-1) is None:
            return Archived(0, -1)  # most dead-letter queues have nothing to archive
        commits = self.append(latest, lambda _, done: next_batch(done))
        archived = Archived(commits, self.up_to(self.log.state))
        first_day = self._drop_old_days(retention)
        self.merge()
        self.clean(first_path=first_day)
        return archived

    def _next_batch(self, done: int, latest: int) -> Batch | None:
        while done < latest:
            up_to, size = min(latest, done + BATCH), 0
            parts = [HISTORY_SCHEMA.empty_table()]
            for commit in self._ledgers.commits(done + 1, up_to):
                parts.append(history_rows([commit]))
                size += parts[-1].nbytes
                if size > archive_table.MAX_BYTES:
                    up_to = commit.version
                    break
            rows = pa.concat_tables(parts)
            if rows.num_rows:
                return Batch(rows, up_to, self._check(up_to))
            done = up_to  # nothing to write: the next commits that have rows include it
        return None

    def _drop_old_days(self, retention: int) -> str:
        """Drop the files of days before the retention. Return where those of later days begin."""
        if retention >= 10_000 * 86_400 * SECOND:
            return ""
        now = datetime.fromtimestamp(self.files.now(), UTC)
        oldest = (now - timedelta(microseconds=retention)).date().isoformat()
        self.expire(lambda file: (file.partition.get("day") or "") < oldest)
        return f"day={oldest}"

    # -- whether it is of these ledgers

    def agreed_up_to(self) -> int | None:
        """Return the last ledger version that archive and ledgers share, or None if they agree."""
        with wrap_store_errors(self.path, "reading"):
            state, latest = self.open(), self._ledgers.version()
            done = self.up_to(state)
            if state is None or (done <= latest and self._is_same(state, done)):
                return None
            versions = self._operations(state)
            for version in range(min(done, latest), 0, -1):
                operation = self._ledgers.operation_at(version)
                if operation is None or versions.get(version) == operation:
                    return version
            return 0  # which made the table

    def _is_same(self, state: TableState, done: int) -> bool:
        """Return whether the last archived commit still is the ledgers' commit."""
        operation = self._ledgers.operation_at(done)
        known = state.txns.get(self._check_id())
        return operation is None or known is None or known == _number_of(operation)

    def _operations(self, state: TableState) -> dict[int, str]:
        tables = [self._read_file(file) for file in state.files()]
        rows = pa.concat_tables([HISTORY_SCHEMA.empty_table(), *tables])
        pairs = zip(rows["version"].to_pylist(), rows["operation_id"].to_pylist(), strict=True)
        return {version: operation for version, operation in pairs if operation}

    def truncate(self, up_to: int) -> None:
        self.truncate_to(up_to, self._check(up_to))

    def _check(self, up_to: int) -> list[tuple[str, int]]:
        return [(self._check_id(), _number_of(self._ledgers.operation_at(up_to)))]

    def _check_id(self) -> str:
        """Return the app id whose number identifies the last archived commit."""
        return f"spark_mq.history_check:{self.source_id}"


def _number_of(operation_id: str | None) -> int:
    return zlib.crc32((operation_id or "").encode())
