"""Read the archived and the new ledger commits of a queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.owner_commands import CREATE_GROUP
from spark_mq.operations.context import QueueContext
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.storage.history_rows import HISTORY_SCHEMA, history_rows
from spark_mq.storage.history_table import BATCH, HistoryTable
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.log_recovery import tables_disagree
from spark_mq.util.clock import to_datetime
from spark_mq.util.columns import sort_rows

__all__ = ["read_group_history", "read_history"]


def read_history(
    context: QueueContext,
    *,
    sequence: int | None = None,
    group: str | None = None,
    since: int | None = None,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Return the events of a queue, in order. `since` is in microseconds since 1970."""
    past = _Past(context.history, context.ledgers, context.path)
    return past.read(sequence, group, since, columns)


def read_group_history(group: GroupLedger, columns: Sequence[str]) -> pa.Table:
    """Return columns of a group's events since its creation, in order."""
    past = _Past(group.history, group.ledgers, group.queue_path)
    rows = past.read(None, group.name, columns=list({*columns, "version", "operation"}))
    created = rows.filter(pc.equal(rows["operation"], CREATE_GROUP))["version"]
    # A group that was dropped may have had the same name.
    first = pc.max(created).as_py()
    if first is not None:
        rows = rows.filter(pc.greater_equal(rows["version"], first))
    return rows.select(list(columns))


class _Past(NamedTuple):
    """The archive and the ledgers, which together have all events of a queue."""

    history: HistoryTable
    ledgers: LedgerTable
    path: str

    def read(
        self,
        sequence: int | None,
        group: str | None,
        since: int | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        filters: list[tuple[str, str, Any]] = []
        if sequence is not None:
            filters += [("first", "<=", sequence), ("last", ">=", sequence)]
        if group is not None:
            filters.append(("consumer_group", "=", group))
        if since is not None:
            filters.append(("committed_at", ">=", to_datetime(since)))
        names = HISTORY_SCHEMA.names if columns is None else list(columns)
        needed = [name for name in HISTORY_SCHEMA.names if name in {*names, "version", "ordinal"}]
        archived, up_to = self.history.read(filters, needed)
        if up_to > self.ledgers.version():
            reason = f"history/ has commits of leases/ up to version {up_to}, which it lacks"
            raise tables_disagree(self.path, reason)
        recent = [
            _matching(rows, sequence, group, since).select(needed)
            for rows in _commits_after(self.ledgers, up_to)
        ]
        rows = pa.concat_tables([archived, *recent])
        return sort_rows(rows, "version", "ordinal").select(names)


def _commits_after(ledgers: LedgerTable, version: int) -> Iterator[pa.Table]:
    """Yield the history of the ledger commits after a version, in batches."""
    latest = ledgers.version()
    for first in range(version + 1, latest + 1, BATCH):
        yield history_rows(ledgers.commits(first, min(first + BATCH - 1, latest)))


def _matching(
    rows: pa.Table, sequence: int | None, group: str | None, since: int | None
) -> pa.Table:
    if since is not None:
        rows = rows.filter(pc.greater_equal(rows["committed_at"].cast(pa.int64()), since))
    if sequence is not None:
        inside = pc.and_(
            pc.less_equal(rows["first"], sequence), pc.greater_equal(rows["last"], sequence)
        )
        rows = rows.filter(inside)
    return rows if group is None else rows.filter(pc.equal(rows["consumer_group"], group))
