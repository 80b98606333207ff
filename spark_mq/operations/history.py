"""``history/``: what each commit of the ledgers did, to which messages, by whom and when. The archive behind trace and finished.

Each ledger commit carries its events (see ``leases.to_rows``), and is cleaned away in time. The sweep archives it before: each version
once, whatever crashes, since the last one archived is committed with the rows, as ``Transaction(app, version)``.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from spark_mq.delta import legacy as delta
from spark_mq.delta.store_errors import telling
from spark_mq.errors import ContentionTimeout
from spark_mq.ledger.editor import outcome_of
from spark_mq.ledger.ranges import EVENT, RANGE_SCHEMA, SETTLED
from spark_mq.storage.ledger_rows import events_of
from spark_mq.storage.ledger_store import LedgerCommit
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.util.validation import SECOND, to_datetime

if TYPE_CHECKING:
    from spark_mq.queue import Queue

__all__ = ["HISTORY_SCHEMA", "archive", "archived", "history"]

_log = logging.getLogger(__name__)

_INSTANT: Final = pa.timestamp("us", tz="UTC")
_OF_RANGE: Final = [f for f in RANGE_SCHEMA if f.name not in ("suspect", "lease_size", "state")]
HISTORY_SCHEMA: Final = pa.schema(
    [
        pa.field("day", pa.date32()),
        pa.field("version", pa.int64()),
        pa.field("ordinal", pa.int32()),
        pa.field("committed_at", _INSTANT),
        pa.field("consumer_group", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("operation_id", pa.string()),
        pa.field("event", pa.string()),
        pa.field("state", pa.string()),
        pa.field("outcome", pa.string()),
        *_OF_RANGE,
    ]
)
"""One row an event of a range; a commit without events has one row with a null event. ``version`` is that of ``leases/``, ``ordinal``
the event's place in its commit, ``day`` the partition. ``state`` is what came of it, ``outcome`` how it ended: acked, dead_lettered,
dropped, expired, skipped, lost, redriven."""

BATCH: Final = 1_000
"""Ledger commits archived by one commit."""
MOST_FILES: Final = 100
"""Files of one day from which on they are put together, in memory: as long as the day is smaller than that."""
MOST_BYTES: Final = 64 * 2**20


# -- reading


def history(queue: Queue, *, sequence: int | None = None, group: str | None = None) -> pa.Table:
    """All that is known of the queue's past, archived or not yet, in order; of one message or one group, if given."""
    stored = _open(queue)
    upto = -1 if stored is None else _last(stored, queue)
    filters: list[tuple[str, str, Any]] = []
    if sequence is not None:
        filters += [("first", "<=", sequence), ("last", ">=", sequence)]
    if group is not None:
        filters.append(("consumer_group", "=", group))
    parts = [HISTORY_SCHEMA.empty_table()]
    if stored is not None:
        found = stored.to_pyarrow_table(filters=filters or None)
        parts.append(pa.table([found[f.name].cast(f.type) for f in HISTORY_SCHEMA], schema=HISTORY_SCHEMA))
    parts += [_filtered(rows, sequence, group) for rows in _since(queue, upto)]
    return pa.concat_tables(parts).sort_by([("version", "ascending"), ("ordinal", "ascending")])


def _filtered(rows: pa.Table, sequence: int | None, group: str | None) -> pa.Table:
    if sequence is not None:
        rows = rows.filter(pc.and_(pc.less_equal(rows["first"], sequence), pc.greater_equal(rows["last"], sequence)))
    return rows if group is None else rows.filter(pc.equal(rows["consumer_group"], group))


def _since(queue: Queue, version: int) -> Iterator[pa.Table]:
    """The rows of the ledger's commits after a version, in batches."""
    latest = queue.leases.version()
    for first in range(version + 1, latest + 1, BATCH):
        yield _rows(queue.leases.commits(first, min(first + BATCH - 1, latest)))


def _rows(commits: Iterable[LedgerCommit]) -> pa.Table:
    """The history of some commits, from what they wrote."""
    parts = [HISTORY_SCHEMA.empty_table()]
    for one in commits:
        happened = one.rows.filter(pc.equal(one.rows["state"], EVENT))
        if happened.num_rows:
            parts.append(_table(one, events_of(happened), happened["consumer_group"]))
        elif one.operation is not None:
            nothing = {f.name: pa.nulls(1, f.type) for f in (*RANGE_SCHEMA, pa.field("event", pa.string()))}
            parts.append(_table(one, pa.table(nothing), pa.array([one.group], pa.string())))
    return pa.concat_tables(parts)


def _table(told: LedgerCommit, events: pa.Table, groups: Any) -> pa.Table:
    n, at = events.num_rows, to_datetime(told.at)
    ended = pc.fill_null(pc.equal(events["state"], SETTLED), False)
    outcomes = pa.array([outcome_of(e) if end else None for e, end in zip(events["event"].to_pylist(), ended.to_pylist(), strict=True)])
    given = {
        "day": pa.repeat(pa.scalar(at.date()), n),
        "version": pa.repeat(pa.scalar(told.version, pa.int64()), n),
        "ordinal": pa.array(range(n), pa.int32()),
        "committed_at": pa.repeat(pa.scalar(told.at, pa.int64()).cast(_INSTANT), n),
        "consumer_group": groups,
        "operation": pa.repeat(pa.scalar(told.operation, pa.string()), n),
        "operation_id": pa.repeat(pa.scalar(told.operation_id, pa.string()), n),
        "outcome": outcomes.cast(pa.string()),
    }
    return pa.table([given[f.name] if f.name in given else events[f.name] for f in HISTORY_SCHEMA], schema=HISTORY_SCHEMA)


# -- archiving


def archive(queue: Queue) -> int:
    """Archives the ledger's commits that have not been. Returns how many. Safe to kill, to repeat, and to run twice at once."""
    if not isinstance(queue.leases, LedgerTable):
        return 0
    with telling(_path(queue), queue.storage_options, "archiving to"):
        return _archive(queue)


def _archive(queue: Queue) -> int:
    table, total, lost = _open(queue), 0, 0
    done, latest = -1 if table is None else _last(table, queue), queue.leases.version()
    while done < latest:
        upto = min(latest, done + BATCH)
        rows = _rows(queue.leases.commits(done + 1, upto))
        if not rows.num_rows:  # nothing to tell: those go with the next that have
            done = upto
            continue
        table = table or _create(queue)
        before = table.version()
        try:
            write_deltalake(
                table,
                rows,
                mode="append",
                commit_properties=delta.commit_properties(uuid.uuid4().hex, {"operation": "archive"}, [(_app(queue), upto)], retries=0),
                post_commithook_properties=delta.no_housekeeping(),
            )
            total, done = total + upto - done, upto
        except Exception as error:  # somebody else's archive came first, or this one landed all the same
            table = _open(queue) or table
            if table.version() == before:
                raise
            lost += 1
            if lost > 100:
                raise ContentionTimeout(f"archiving {queue.path} lost {lost} races; all is kept", group=None, attempts=lost) from error
            time.sleep(0.01)
            done = _last(table, queue)
    if table is not None:
        _tidy(table, queue.settings.history_retention)
    return total


def archived(queue: Queue) -> int | None:
    """The last version of ``leases/`` that has been archived; -1 if none has; None where nothing is archived (a queue in memory)."""
    if not isinstance(queue.leases, LedgerTable):
        return None
    table = _open(queue)
    return -1 if table is None else _last(table, queue)


def _path(queue: Queue) -> str:
    return delta.child(queue.path, "history")


def _open(queue: Queue) -> DeltaTable | None:
    return delta.open_table(_path(queue), queue.storage_options) if isinstance(queue.leases, LedgerTable) else None


def _create(queue: Queue) -> DeltaTable:
    try:
        DeltaTable.create(
            _path(queue),
            HISTORY_SCHEMA,
            partition_by=["day"],
            description=json.dumps({"format": "spark_mq history"}),
            storage_options=queue.storage_options,
        )
    except DeltaError:
        if _open(queue) is None:  # else somebody has made it in the same moment
            raise
    table = _open(queue)
    assert table is not None
    return table


def _app(queue: Queue) -> str:
    """Of this very ``leases/`` table: one made anew counts its versions from 0 again."""
    assert isinstance(queue.leases, LedgerTable)
    return f"spark_mq.history:{queue.leases.refresh().metadata().id}"


def _last(table: DeltaTable, queue: Queue) -> int:
    files = delta.Files(_path(queue), queue.storage_options)
    delta.update(table, files)
    found, _ = delta.mark(table, _app(queue), files)
    return -1 if found is None else found


def _tidy(table: DeltaTable, retention: int) -> None:
    """Drops days beyond the retention, and puts small files together. What fails here is tried again by the next sweep."""
    oldest = (datetime.now(UTC) - timedelta(microseconds=retention)).date() if retention < 10_000 * 86_400 * SECOND else None
    try:
        table.update_incremental()
        days = pa.table(table.get_add_actions(flatten=True))
        if oldest is not None and days.num_rows and pc.min(days["partition.day"]).as_py() < oldest:
            table.delete(f"day < '{oldest.isoformat()}'")
        elif _put_together(table, days):
            table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
    except DeltaError as error:
        _log.warning("history/ could not be tidied: %s", error)


def _put_together(table: DeltaTable, files: pa.Table) -> bool:
    """Writes a day of many small files as one. Whether it did.

    Not by OPTIMIZE: delta-rs lets one pass over another that has removed the same files, and then each row is there twice. A partition
    that was changed meanwhile, by whatever, it does not let anybody replace.
    """
    if not files.num_rows:
        return False
    sizes = files.group_by("partition.day").aggregate([("size_bytes", "sum"), ("size_bytes", "count")]).to_pylist()
    many = [one["partition.day"] for one in sizes if one["size_bytes_count"] > MOST_FILES and one["size_bytes_sum"] < MOST_BYTES]
    if not many:
        return False
    day = min(many)
    rows = table.to_pyarrow_table(filters=[("day", "=", day)])
    write_deltalake(
        table,
        rows.sort_by([("version", "ascending"), ("ordinal", "ascending")]),
        mode="overwrite",
        predicate=f"day = '{day.isoformat()}'",
        commit_properties=delta.commit_properties(uuid.uuid4().hex, {"operation": "tidy"}, retries=0),
        post_commithook_properties=delta.no_housekeeping(),
    )
    return True
