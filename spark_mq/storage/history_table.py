"""``history/``: what each commit of the ledgers did, to which messages, by whom and when.

Each ledger commit carries its events and is cleaned away later. The sweep archives it before that.
Each version is archived once: its number is committed with its rows, as an application transaction.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

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

__all__ = ["BATCH", "HISTORY_SCHEMA", "Archived", "HistoryStore", "HistoryTable", "history_rows"]

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
"""One row for each event of a range. A commit without events has one row with a null event.

``version`` is that of ``leases/``. ``ordinal`` is the event's place in its commit. ``day`` is the
partition. ``state`` is the state after the event. ``outcome`` says how the message ended: acked,
dead_lettered, dropped, expired, skipped, lost, redriven.
"""

BATCH: Final = 1_000
"""Ledger commits archived by one commit."""
MAX_FILES: Final = 100
"""Files of one day before they are compacted, in memory, if the day is smaller than MAX_BYTES."""
MAX_BYTES: Final = 64 * 2**20
_MAX_CONFLICTS: Final = 100


class Archived(NamedTuple):
    """What an archive did: the number of commits, and the last version of ``leases/`` in it."""

    commits: int
    up_to: int


class HistoryStore(Protocol):
    """The archive of ledger commits. A queue in memory has none."""

    def read(self, filters: list[tuple[str, str, Any]]) -> tuple[pa.Table, int]:
        """Return the archived rows that match, and the last archived version (-1: none)."""

    def archive(self, retention: int) -> Archived:
        """Archive new ledger commits and drop days older than `retention` microseconds."""


@dataclass
class HistoryTable:
    """The archive of a ledger table in the Delta table at ``path``."""

    path: str
    ledgers: LedgerTable
    storage_options: Mapping[str, str]

    def read(self, filters: list[tuple[str, str, Any]]) -> tuple[pa.Table, int]:
        table = self._open()
        if table is None:
            return HISTORY_SCHEMA.empty_table(), -1
        up_to = self._archived_version(table)
        rows = table.to_pyarrow_table(filters=filters or None)
        columns = [rows[f.name].cast(f.type) for f in HISTORY_SCHEMA]
        return pa.table(columns, schema=HISTORY_SCHEMA), up_to

    def archive(self, retention: int) -> Archived:
        with telling(self.path, self.storage_options, "archiving to"):
            table = self._open()
            table, archived = self._append_new(table)
            if table is not None:
                expire_and_compact(table, retention)
            return archived

    def _append_new(self, table: DeltaTable | None) -> tuple[DeltaTable | None, Archived]:
        total, conflicts = 0, 0
        done = -1 if table is None else self._archived_version(table)
        archived, latest = done, self.ledgers.version()
        while done < latest:
            up_to = min(latest, done + BATCH)
            rows = history_rows(self.ledgers.commits(done + 1, up_to))
            if not rows.num_rows:  # nothing to write: these go with the next commits that have rows
                done = up_to
                continue
            table = table or self._create()
            before = table.version()
            try:
                self._append(table, rows, up_to)
                total, done = total + up_to - done, up_to
            except Exception as error:  # another archive was first, or this one landed after all
                table = self._open() or table
                if table.version() == before:
                    raise
                conflicts += 1
                if conflicts > _MAX_CONFLICTS:
                    raise self._timed_out(conflicts) from error
                time.sleep(0.01)
                done = self._archived_version(table)
            archived = done
        return table, Archived(total, archived)

    def _append(self, table: DeltaTable, rows: pa.Table, up_to: int) -> None:
        write_deltalake(
            table,
            rows,
            mode="append",
            commit_properties=delta.commit_properties(
                uuid.uuid4().hex, {"operation": "archive"}, [(self._app_id(), up_to)], retries=0
            ),
            post_commithook_properties=delta.no_housekeeping(),
        )

    def _timed_out(self, conflicts: int) -> ContentionTimeout:
        return ContentionTimeout(
            f"archiving to {self.path} lost {conflicts} races; nothing is lost. "
            "The next sweep archives the rest",
            group=None,
            attempts=conflicts,
        )

    def _open(self) -> DeltaTable | None:
        return delta.open_table(self.path, self.storage_options)

    def _create(self) -> DeltaTable:
        try:
            DeltaTable.create(
                self.path,
                HISTORY_SCHEMA,
                partition_by=["day"],
                description=json.dumps({"format": "spark_mq history"}),
                storage_options=dict(self.storage_options),
            )
        except DeltaError:
            if self._open() is None:  # else another sweep created it at the same moment
                raise
        table = self._open()
        assert table is not None
        return table

    def _app_id(self) -> str:
        """Return the app id of this very ``leases/`` table: a new one counts from 0 again."""
        return f"spark_mq.history:{self.ledgers.refresh().metadata().id}"

    def _archived_version(self, table: DeltaTable) -> int:
        files = delta.Files(self.path, self.storage_options)
        delta.update(table, files)
        found, _ = delta.mark(table, self._app_id(), files)
        return -1 if found is None else found


def history_rows(commits: Iterable[LedgerCommit]) -> pa.Table:
    """Return the history of some commits, from the events that they wrote."""
    parts = [HISTORY_SCHEMA.empty_table()]
    for one in commits:
        happened = one.rows.filter(pc.equal(one.rows["state"], EVENT))
        if happened.num_rows:
            parts.append(_table(one, events_of(happened), happened["consumer_group"]))
        elif one.operation is not None:
            fields = (*RANGE_SCHEMA, pa.field("event", pa.string()))
            nothing = pa.table({f.name: pa.nulls(1, f.type) for f in fields})
            parts.append(_table(one, nothing, pa.array([one.group], pa.string())))
    return pa.concat_tables(parts)


def _table(commit: LedgerCommit, events: pa.Table, groups: Any) -> pa.Table:
    n, at = events.num_rows, to_datetime(commit.at)
    ended = pc.fill_null(pc.equal(events["state"], SETTLED), False).to_pylist()
    outcomes = [
        outcome_of(event) if end else None
        for event, end in zip(events["event"].to_pylist(), ended, strict=True)
    ]
    given = {
        "day": pa.repeat(pa.scalar(at.date()), n),
        "version": pa.repeat(pa.scalar(commit.version, pa.int64()), n),
        "ordinal": pa.array(range(n), pa.int32()),
        "committed_at": pa.repeat(pa.scalar(commit.at, pa.int64()).cast(_INSTANT), n),
        "consumer_group": groups,
        "operation": pa.repeat(pa.scalar(commit.operation, pa.string()), n),
        "operation_id": pa.repeat(pa.scalar(commit.operation_id, pa.string()), n),
        "outcome": pa.array(outcomes, pa.string()),
    }
    columns = [given[f.name] if f.name in given else events[f.name] for f in HISTORY_SCHEMA]
    return pa.table(columns, schema=HISTORY_SCHEMA)


def expire_and_compact(table: DeltaTable, retention: int) -> None:
    """Drop days beyond the retention and compact small files. The next sweep retries a failure."""
    oldest = None
    if retention < 10_000 * 86_400 * SECOND:
        oldest = (datetime.now(UTC) - timedelta(microseconds=retention)).date()
    try:
        table.update_incremental()
        days = pa.table(table.get_add_actions(flatten=True))
        if oldest and days.num_rows and pc.min(days["partition.day"]).as_py() < oldest:
            table.delete(f"day < '{oldest.isoformat()}'")
        elif _compact_day(table, days):
            table.vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)
    except DeltaError as error:
        _log.warning("history/ could not be tidied: %s", error)


def _compact_day(table: DeltaTable, files: pa.Table) -> bool:
    """Write a day of many small files as one. Returns whether there was such a day.

    Not by OPTIMIZE: delta-rs lets two of them that remove the same files both land, and then each
    row is there twice. It refuses to replace a partition that has changed meanwhile.
    """
    if not files.num_rows:
        return False
    sizes = files.group_by("partition.day").aggregate(
        [("size_bytes", "sum"), ("size_bytes", "count")]
    )
    many = [
        one["partition.day"]
        for one in sizes.to_pylist()
        if one["size_bytes_count"] > MAX_FILES and one["size_bytes_sum"] < MAX_BYTES
    ]
    if not many:
        return False
    day = min(many)
    rows = table.to_pyarrow_table(filters=[("day", "=", day)])
    write_deltalake(
        table,
        rows.sort_by([("version", "ascending"), ("ordinal", "ascending")]),
        mode="overwrite",
        predicate=f"day = '{day.isoformat()}'",
        commit_properties=delta.commit_properties(
            uuid.uuid4().hex, {"operation": "tidy"}, retries=0
        ),
        post_commithook_properties=delta.no_housekeeping(),
    )
    return True
