"""Turn commits of ``leases/`` into rows of ``history/``, and find rows again."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.actions import AddFile
from spark_mq.ledger.editor import end_reason_of
from spark_mq.ledger.ranges import EVENT, RANGE_SCHEMA, SETTLED
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, events_of
from spark_mq.storage.ledger_store import LedgerCommit
from spark_mq.util.clock import to_datetime
from spark_mq.util.columns import to_arrow

__all__ = [
    "BEHIND",
    "FAILURES",
    "HISTORY_SCHEMA",
    "Filters",
    "history_rows",
    "history_statistics",
    "matching_rows",
    "may_match",
]

# Conditions on rows. Each has a column, one of ``=``, ``<=``, ``>=``, and a value.
Filters = list[tuple[str, str, Any]]

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_OF_RANGE: Final = [f for f in RANGE_SCHEMA if f.name not in ("suspect", "lease_size", "state")]
# One row for each event of a range, and one for a commit without events.
HISTORY_SCHEMA: Final = pa.schema(
    [
        pa.field("day", pa.date32()),  # the partition
        pa.field("version", pa.int64()),  # of ``leases/``
        pa.field("ordinal", pa.int32()),  # the event's place in its commit
        pa.field("committed_at", _INSTANT),
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
    """Return the history of some commits, from the events that they wrote."""
    known: list[LedgerCommit] = []
    parts, numbers, ordinals = list[pa.Table](), array("q"), array("q")
    for one in commits:
        count = one.events.num_rows
        if not count and one.operation is None:
            continue
        parts.append(one.events if count else _NOTHING)
        numbers.extend([len(known)] * max(1, count))
        ordinals.extend(range(max(1, count)))
        known.append(one)
    if not parts:
        return HISTORY_SCHEMA.empty_table()
    return _table(known, pa.concat_tables(parts).combine_chunks(), numbers, ordinals)


def _table(
    commits: list[LedgerCommit], rows: pa.Table, numbers: array[int], ordinals: array[int]
) -> pa.Table:
    """Return the history of events. ``numbers`` has the place of the commit of each."""
    events, own = events_of(rows), to_arrow(numbers)

    def of_commit(values: Iterable[Any], kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind).take(own)

    failed = pc.and_(pc.is_in(events["event"], value_set=pa.array(FAILURES)), events["suspect"])
    given = {
        "day": of_commit((to_datetime(one.at).date() for one in commits), pa.date32()),
        "version": of_commit((one.version for one in commits), pa.int64()),
        "ordinal": to_arrow(ordinals).cast(pa.int32()),
        "committed_at": of_commit((one.at for one in commits), pa.int64()).cast(_INSTANT),
        "consumer_group": pc.coalesce(
            rows["consumer_group"], of_commit((one.group for one in commits), pa.string())
        ),
        "operation": of_commit((one.operation for one in commits), pa.string()),
        "operation_id": of_commit((one.operation_id for one in commits), pa.string()),
        "outcome": _outcomes(events),
        "reason": pc.if_else(
            pc.fill_null(pc.equal(events["event"], "returned"), False), BEHIND, events["reason"]
        ),
        "batch_size": pc.if_else(failed, events["lease_size"], None),
        "user": of_commit((one.user for one in commits), pa.string()),
        "detail": of_commit((one.detail for one in commits), pa.string()),
    }
    columns = [given[f.name] if f.name in given else events[f.name] for f in HISTORY_SCHEMA]
    return pa.table(columns, schema=HISTORY_SCHEMA)


def _outcomes(events: pa.Table) -> pa.Array:
    names = pc.unique(events["event"])
    ends = pa.array([name and end_reason_of(name) for name in names.to_pylist()], pa.string())
    found = ends.take(pc.index_in(events["event"].combine_chunks(), value_set=names))
    ended = pc.fill_null(pc.equal(events["state"], SETTLED), False)
    return pc.if_else(ended, found, pa.scalar(None, pa.string()))


def history_statistics(rows: pa.Table) -> str:
    """Return the statistics of a file with the bounds for searches."""
    lowest, highest = pc.min(rows["first"]).as_py(), pc.max(rows["last"]).as_py()
    latest = pc.max(rows["committed_at"]).as_py()
    most: dict[str, Any] = {} if latest is None else {"committed_at": _rounded_up(latest)}
    stats: dict[str, Any] = {"numRecords": rows.num_rows, "maxValues": most}
    if lowest is not None:
        stats["minValues"] = {"first": lowest}
        most["last"] = highest
    return json.dumps(stats)


def _rounded_up(at: datetime) -> str:
    """Return an instant rounded up to milliseconds, the unit of Delta's statistics."""
    later = at + timedelta(milliseconds=1)
    return later.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{later.microsecond // 1000:03}Z"


def may_match(file: AddFile, filters: Filters) -> bool:
    """Return whether a file may have rows that match, by its day and its statistics."""
    # Another operator leaves nothing out.
    wanted = {(name, operator): value for name, operator, value in filters}
    since = wanted.get(("committed_at", ">="))
    if since is not None and (file.partition.get("day") or "") < since.date().isoformat():
        return False
    stats = json.loads(file.stats or "{}")
    most = stats.get("maxValues", {})
    latest = most.get("committed_at")
    if since is not None and latest is not None and datetime.fromisoformat(latest) < since:
        return False
    low, high = stats.get("minValues", {}).get("first"), most.get("last")
    if low is None or high is None:
        return True
    return bool(
        low <= wanted.get(("first", "<="), low) and wanted.get(("last", ">="), high) <= high
    )


def matching_rows(rows: pa.Table, filters: Filters) -> pa.Table:
    compare = {"=": pc.equal, "<=": pc.less_equal, ">=": pc.greater_equal}
    for name, operator, value in filters:
        rows = rows.filter(compare[operator](rows[name], value))
    return rows
