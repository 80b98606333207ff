"""Keep the events of all ledger commits in a Delta table, ``history/``.

Its rows name the messages, the person or worker, and the time. A ledger commit carries its events
until it is cleaned away, so the sweep archives it before that. Each version is archived once,
because its number is committed with its rows, as an application transaction.
"""

from __future__ import annotations

import io
import json
import uuid
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.cleanup import Keep, clean_table
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.delta.tables import (
    KEPT_BY_THE_SWEEP,
    checkpoint_soon,
    create_table,
    last_checkpoint,
    write_checkpoint,
)
from spark_mq.storage.history_rows import (
    HISTORY_SCHEMA,
    Filters,
    history_rows,
    history_statistics,
    matching_rows,
    may_match,
)
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.log_recovery import tables_disagree
from spark_mq.util.clock import SECOND
from spark_mq.util.columns import sort_rows

__all__ = ["BATCH", "Archived", "HistoryTable"]

BATCH: Final = 1_000  # ledger commits archived by one commit
MAX_FILES: Final = 100  # small files of one day before they are compacted
LARGE_FILE_BYTES: Final = 4 * 2**20  # a file of this size is not small
MAX_BYTES: Final = 32 * 2**20  # of rows that an archive or a compaction holds in memory
CHECKPOINT_VERSIONS: Final = 16  # from one checkpoint to the next
# How much of its own log stays, because nobody reads its past.
KEEP_VERSIONS: Final = 100
KEEP_SECONDS: Final = 600.0


class Archived(NamedTuple):
    """The number of archived commits, and the last archived version of ``leases/``."""

    commits: int
    up_to: int


class HistoryTable:
    """The archive of a ledger table in the Delta table at ``path``. Thread-safe."""

    def __init__(
        self,
        path: str,
        ledgers: LedgerTable,
        storage_options: Mapping[str, str] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        self.path = path
        self.files = ObjectStore(path, storage_options, durable=durable)
        self._ledgers = ledgers
        self._log = DeltaLog(self.files, replaceable=True, on_checkpoint=checkpoint_soon)

    def read(self, filters: Filters, columns: Sequence[str] | None = None) -> tuple[pa.Table, int]:
        """Return the rows that match, and the last archived version, or -1 without an archive."""
        names = HISTORY_SCHEMA.names if columns is None else list(columns)
        needed = {*names, *(name for name, _, _ in filters)}
        with wrap_store_errors(self.path, "reading"):
            for left in (1, 0):
                state = self._log.open()
                if state is None:
                    return HISTORY_SCHEMA.empty_table().select(names), -1
                files = [file for file in state.files() if may_match(file, filters)]
                try:
                    tables = [
                        matching_rows(self._read_file(file, needed), filters).select(names)
                        for file in files
                    ]
                except FileNotFoundError:
                    if not left:  # a compaction replaces files, once
                        raise
                    continue
                archived = state.txns.get(self._app_id(), -1)
                nothing = HISTORY_SCHEMA.empty_table().select(names)
                return pa.concat_tables([nothing, *tables]), archived
        raise AssertionError("unreachable")

    def progress(self) -> tuple[int, int | None]:
        """Return the last archived version, or -1, and the commit time in microseconds, or None."""
        with wrap_store_errors(self.path, "reading"):
            state = self._log.open()
            if state is None:
                return -1, None
            return state.txns.get(self._app_id(), -1), self._log.commit_time(state.version)

    def agreed_up_to(self) -> int | None:
        """Return the last ledger version that archive and ledgers share, or None if they agree."""
        with wrap_store_errors(self.path, "reading"):
            state = self._log.open()
            done = -1 if state is None else state.txns.get(self._app_id(), -1)
            latest = self._ledgers.version()
            if state is None or (done <= latest and self._is_same(state, done)):
                return None
            versions = self._operations(state)
            for version in range(min(done, latest), -1, -1):
                operation = self._ledgers.operation_at(version)
                if operation is None or versions.get(version) == operation:
                    return version
            return -1

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
        """Drop the rows of all ledger versions after one."""
        with wrap_store_errors(self.path, "writing to"):
            self._log.transact(lambda state: (self._truncation(state, up_to), None))

    def _truncation(self, state: TableState, up_to: int) -> Change:
        added: list[AddFile] = []
        removed: list[AddFile] = []
        for file in state.files():
            rows = self._read_file(file)
            kept = rows.filter(pc.less_equal(rows["version"], up_to))
            if kept.num_rows < rows.num_rows:
                removed.append(file)
                added += self._write(kept)
        return Change(
            uuid.uuid4().hex,
            {"operation": "truncate", "up_to": up_to},
            adds=added,
            removes=removed,
            txns=self._txns(up_to),
            whole_table=True,
        )

    def archive(self, retention: int) -> Archived:
        """Archive new ledger commits and drop days older than `retention` microseconds."""
        with wrap_store_errors(self.path, "archiving to"):
            if (agreed := self.agreed_up_to()) is not None:
                reason = f"history/ has commits of leases/ after version {agreed} that it lacks"
                raise tables_disagree(self.path, reason)
            archived = self._append_new()
            if self._log.open() is not None:
                first_day = self._drop_old_days(retention)
                self._log.transact(self._compaction)
                # Without a checkpoint nothing can be cleaned, and a day of few files has none.
                if self._log.state.version - last_checkpoint(self.files) >= CHECKPOINT_VERSIONS:
                    write_checkpoint(self.files)
                keep = Keep(KEEP_VERSIONS, KEEP_SECONDS, first_path=first_day)
                clean_table(self._log, keep, data_files=True)
            return archived

    def _append_new(self) -> Archived:
        total, latest, app = 0, self._ledgers.version(), self._app_id()
        state = self._log.open()
        done = -1 if state is None else state.txns.get(app, -1)
        archived = done
        while done < latest:
            rows, up_to = self._next_rows(done, latest)
            if not rows.num_rows:  # nothing to write: the next commits that have rows include it
                done = up_to
                continue
            self._create()
            total += self._append(app, rows, archived, up_to)
            archived = done = self._log.refresh().txns.get(app, -1)
        return Archived(total, archived)

    def _next_rows(self, done: int, latest: int) -> tuple[pa.Table, int]:
        """Return the rows of the next commits that fit in memory, and their last version."""
        up_to, size = min(latest, done + BATCH), 0
        parts = [HISTORY_SCHEMA.empty_table()]
        for commit in self._ledgers.commits(done + 1, up_to):
            parts.append(history_rows([commit]))
            size += parts[-1].nbytes
            if size > MAX_BYTES:
                return pa.concat_tables(parts), commit.version
        return pa.concat_tables(parts), up_to

    def _append(self, app: str, rows: pa.Table, archived: int, up_to: int) -> int:
        """Append the rows of the ledger commits after `archived`. Return their number."""
        written: list[AddFile] = []

        def compute(state: TableState) -> tuple[Change | None, int]:
            while written:  # of a try that lost its race
                self.files.delete(written.pop().path)
            if state.txns.get(app, -1) != archived:
                return None, 0  # another sweep has archived some: the next sweep continues
            written.extend(self._write(rows))
            change = Change(
                uuid.uuid4().hex,
                {"operation": "archive"},
                adds=list(written),
                txns=self._txns(up_to),
            )
            return change, up_to - archived

        return self._log.transact(compute)[1]

    def _create(self) -> None:
        """Create the table if it is missing."""
        if self._log.open() is None:
            create_table(
                self.files,
                HISTORY_SCHEMA,
                partition_by=["day"],
                description=json.dumps({"format": "spark_mq history"}),
                configuration=KEPT_BY_THE_SWEEP,
            )

    def _write(self, rows: pa.Table) -> Iterator[AddFile]:
        """Write one file for each day of the rows."""
        for day in sorted(set(rows["day"].to_pylist())):
            part = rows.filter(pc.equal(rows["day"], day)).drop_columns(["day"])
            path, buffer = f"day={day.isoformat()}/part-{uuid.uuid4()}.parquet", io.BytesIO()
            pq.write_table(part, buffer, compression="snappy", write_page_checksum=True)
            self.files.write(path, buffer.getvalue())
            partition = {"day": day.isoformat()}
            yield AddFile(path, buffer.tell(), part.num_rows, partition, history_statistics(part))

    def _read_file(self, file: AddFile, names: Container[str] | None = None) -> pa.Table:
        """Return the rows of a file, perhaps only some columns."""
        schema = pa.schema([f for f in HISTORY_SCHEMA if names is None or f.name in names])
        rows = self.files.read_parquet(file.path, schema)
        if "day" not in schema.names:
            return rows
        day = date.fromisoformat(file.partition["day"] or "")
        return rows.set_column(0, HISTORY_SCHEMA.field(0), pa.repeat(pa.scalar(day), rows.num_rows))

    def _drop_old_days(self, retention: int) -> str:
        """Drop the files of days before the retention. Return where those of later days begin."""
        if retention >= 10_000 * 86_400 * SECOND:
            return ""
        now = datetime.fromtimestamp(self.files.now(), UTC)
        oldest = (now - timedelta(microseconds=retention)).date().isoformat()

        def compute(state: TableState) -> tuple[Change | None, None]:
            old = [file for file in state.files() if (file.partition.get("day") or "") < oldest]
            return (
                Change(uuid.uuid4().hex, {"operation": "drop old days"}, removes=old)
                if old
                else None
            ), None

        self._log.transact(compute)
        return f"day={oldest}"

    def _compaction(self, state: TableState) -> tuple[Change | None, None]:
        """Return the change that merges many small files of a day, or None if no day has many."""
        for key, files in sorted(state.partitions.items()):
            small = [file for file in files.values() if file.size < LARGE_FILE_BYTES]
            if len(small) <= MAX_FILES:
                continue
            merged, rows = self._some(sorted(small, key=lambda file: file.modified))
            if len(merged) > 1:
                change = Change(
                    uuid.uuid4().hex,
                    {"operation": "compact"},
                    adds=list(self._write(sort_rows(rows, "version", "ordinal"))),
                    removes=merged,
                    partition={name: value or "" for name, value in key},
                    data_change=False,
                )
                return change, None
        return None, None

    def _some(self, files: list[AddFile]) -> tuple[list[AddFile], pa.Table]:
        """Return the first files that fit in memory, and their rows."""
        parts: list[pa.Table] = []
        for file in files:
            parts.append(self._read_file(file))
            if sum(part.nbytes for part in parts) > MAX_BYTES:
                break
        return files[: len(parts)], pa.concat_tables(parts)

    def _txns(self, up_to: int) -> list[tuple[str, int]]:
        operation = self._ledgers.operation_at(up_to)
        return [(self._app_id(), up_to), (self._check_id(), _number_of(operation))]

    def _check_id(self) -> str:
        """Return the app id whose number identifies the last archived commit."""
        return f"spark_mq.history_check:{self._ledgers.table_id}"

    def _app_id(self) -> str:
        """Return the app id of this ``leases/`` table. A new table counts from 0 again."""
        return f"spark_mq.history:{self._ledgers.table_id}"


def _number_of(operation_id: str | None) -> int:
    return zlib.crc32((operation_id or "").encode())
