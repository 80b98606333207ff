"""``leases/``: the ledgers of all groups in one Delta table, each change one optimistic commit.

A change replaces its group's partition (delta-rs ``overwrite`` with the group as predicate, what Delta calls replaceWhere), from a
table pinned at the version the ledger was read at. delta-rs refuses it if the group changed since, and lets it pass over
commits of other groups. Every change rewrites the group's floor row with ``revision + 1``. Measured beside a MERGE of the changed
rows this was 2.7 times as fast (benchmarks/README.md).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import ColumnProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from spark_mq.delta import legacy as delta
from spark_mq.delta.actions import log_path
from spark_mq.delta.store_errors import STORE_ERRORS, explained, plain, telling
from spark_mq.errors import CommitConflict, CorruptLog, NotAQueue, SparkMQError, UnsupportedTable
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage import cleanup
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, from_rows, to_rows
from spark_mq.storage.ledger_store import LedgerCommit, LedgerSnapshot
from spark_mq.util.fair_lock import FairLock, door_at
from spark_mq.util.notifier import notifier_for
from spark_mq.util.validation import RESERVED_PREFIX

__all__ = ["HORIZON", "LedgerTable"]

HORIZON: Final = f"{RESERVED_PREFIX}horizon"
"""The reserved group whose floor is the trim horizon: all below it may be gone from ``messages/``."""

_log = logging.getLogger(__name__)

_STRINGS: Final = [f.name for f in LEASES_SCHEMA if pa.types.is_string(f.type) and f.name != "consumer_group"]
_NUMBERS: Final = [f.name for f in LEASES_SCHEMA if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)]
# Nobody prunes a group's one file, so it has no statistics: see create(), too. In one row group a million ranges take a tenth less.
_PROPERTIES: Final = WriterProperties(
    compression="SNAPPY",
    max_row_group_size=1_000_000,
    # Numbers here ascend or repeat, so that a ledger of 500,000 ranges takes 79 KB and 126 ms, where by default it took 6 MB and 173.
    column_properties={name: ColumnProperties(dictionary_enabled=True, statistics_enabled="NONE") for name in _STRINGS}
    | {name: ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED", statistics_enabled="NONE") for name in _NUMBERS},
)
_BATCH_ROWS: Final = 65_536
CHECKPOINT_INTERVAL: Final = 100
"""A commit takes 12 ms after a checkpoint, and 23 after 500 commits without one."""
_SLOW: Final = 10.0
"""Seconds. The sweep deletes no commit that is younger than KEEP_LEDGER_SECONDS."""
MOST_LOOKED_UP: Final = 50
"""Commits that are read one by one for the marks of lines; for more, delta-rs is asked."""

_TAKEN, _SERVED = f"{RESERVED_PREFIX}line.taken:", f"{RESERVED_PREFIX}line.served:"
"""The marks of a line (``Transaction`` ids)."""


def _in_batches(rows: pa.Table) -> pa.Table:
    """The rows in pieces that delta-rs writes one after the other: a million as one take a fifth longer."""
    return pa.Table.from_batches(rows.to_batches(max_chunksize=_BATCH_ROWS), rows.schema)


class LedgerTable:
    """The ledgers in a Delta table at ``path``. Safe to use from several threads."""

    def __init__(self, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.storage_options = dict(storage_options or {})
        self.files = delta.Files(path, self.storage_options)
        self.bell = notifier_for(path)
        self._table: DeltaTable | None = None
        self._id: str | None = None
        self._cache: dict[str, tuple[tuple[str, ...], Ledger]] = {}
        self._lock = threading.RLock()
        self._doors: dict[str, FairLock] = {}
        self.pace = 0.02
        self.given_up: dict[str, int] = {}
        self._lines: dict[str, int] = {}  # the marks of all lines, as of the version `_lines_at`
        self._lines_at: int | None = None

    def create(self, description: str) -> None:
        """Makes the table. Raises deltalake's error where there is one."""
        DeltaTable.create(
            self.path,
            LEASES_SCHEMA,
            partition_by=["consumer_group"],
            description=description,
            storage_options=self.storage_options,
            configuration={
                "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                "delta.enableExpiredLogCleanup": "false",
                # Statistics of 20 columns in each commit, which delta-rs parses: a fifth of its time.
                "delta.dataSkippingNumIndexedCols": "0",
                # Else each checkpoint carries a week of tombstones, one a commit.
                "delta.deletedFileRetentionDuration": "interval 10 minutes",
            },
        )

    def door(self, group: str) -> FairLock:
        return self._doors.setdefault(group, door_at(self.path, group))

    def refresh(self) -> DeltaTable:
        """The table at its latest version."""
        with self._lock:
            if self._table is not None:
                if self._is_latest(self._table.version()):
                    return self._table
                try:
                    with telling(self.path, self.storage_options, "reading", only=OSError):
                        delta.update(self._table, self.files)
                    delta.check_features(self._table, self.path)
                    return self._table
                except UnsupportedTable:
                    self._table = None  # so that it is refused again
                    raise
                except DeltaError:
                    self._table = None  # a handle older than what housekeeping left: open anew, once
            opened = delta.open_table(self.path, self.storage_options)
            if opened is None:
                raise NotAQueue(f"there is no Delta table at {self.path} any more", path=self.path)
            table_id = str(opened.metadata().id)
            if self._id not in (None, table_id):
                raise NotAQueue(
                    f"the Delta table at {self.path} was made anew since this handle was opened; open the queue again", path=self.path
                )
            self._table, self._id = opened, table_id
            return self._table

    def _is_latest(self, version: int) -> bool:
        """Whether nothing was committed after a version, by names: a listing, as delta-rs does it, looks at each file of the log."""
        # In this order: the log is cleaned from its start, so while this commit is there the next one has not been cleaned away.
        return not self.files.exists(log_path(version + 1)) and self.files.exists(log_path(version))

    def read(self, group: str, *, blind: bool = False) -> LedgerSnapshot:
        with self._lock:
            seen = -1
            while True:
                table = self.refresh()
                if blind:
                    return LedgerSnapshot(group, None, table.version())
                try:
                    return LedgerSnapshot(group, self._load(table, group), table.version())
                except FileNotFoundError as error:
                    # Housekeeping, or a VACUUM, deleted the file after another commit replaced it: a lost race, if the table moved on.
                    if seen == table.version():
                        raise self._unreadable(group, error) from error
                    seen, self._table = table.version(), None
                except (pa.ArrowException, NotAQueue) as error:
                    raise self._unreadable(group, error) from error
                except OSError as error:
                    if "parquet" in str(error).lower():  # as pyarrow calls a broken file, too
                        raise self._unreadable(group, error) from error
                    raise explained(self.path, self.storage_options, error, "reading") from error

    def _unreadable(self, group: str, error: Exception) -> CorruptLog:
        table = self.refresh()
        return CorruptLog(
            f"the ledger of group {group!r} cannot be read: {', '.join(self._paths(table, group))} of {self.path}: {plain(error)}. "
            f"Restore the file from a backup; or give the ledger up by Queue.drop_group({group!r}): the group then begins anew, and gets "
            "all messages that are there again. Other groups are not concerned",
            path=self.path, version=table.version(),
        )  # fmt: skip

    def _load(self, table: DeltaTable, group: str) -> Ledger | None:
        paths = self._paths(table, group)
        cached = self._cache.get(group)
        if cached is None or cached[0] != paths:
            if not paths:
                return None
            rows = pa.concat_tables([self.files.read_parquet(path, LEASES_SCHEMA) for path in paths])
            cached = self._cache[group] = (paths, from_rows(rows))
        return cached[1]

    @staticmethod
    def _paths(table: DeltaTable, group: str) -> tuple[str, ...]:
        adds = pa.table(table.get_add_actions(flatten=True))
        return tuple(sorted(adds.filter(pc.equal(adds["partition.consumer_group"], group))["path"].to_pylist())) if adds.num_rows else ()

    def write(
        self,
        stored: LedgerSnapshot,
        ledger: Ledger | None,
        *,
        operation_id: str,
        note: Mapping[str, Any],
        mark: tuple[str, int] | None = None,
        whole_table: bool = False,
        served: tuple[str, int] | None = None,
    ) -> None:
        marks = [mark] if mark else []
        if served is not None:
            # Never back: who was passed by may still come.
            marks.append((_SERVED + served[0], max(served[1], self.line(served[0])[1])))
        with self._lock:
            table, started = self._pinned(stored), time.monotonic()
            try:
                # The group's name is checked (letters, digits, dot, hyphen, underscore): it can end no literal.
                write_deltalake(
                    table,
                    LEASES_SCHEMA.empty_table() if ledger is None else _in_batches(to_rows(stored.group, ledger)),
                    mode="overwrite",
                    predicate=f"consumer_group = '{stored.group}'",
                    writer_properties=_PROPERTIES,
                    post_commithook_properties=delta.no_housekeeping(),
                    commit_properties=delta.commit_properties(operation_id, note, marks, retries=0 if whole_table else None),
                )
            except Exception as error:  # whatever failed, the commit may have landed all the same
                if not isinstance(error, STORE_ERRORS):
                    raise
                latest, landed = self._after(error, stored, operation_id)
                if not landed:
                    if latest == stored.token:  # nobody else committed: this is no lost race
                        raise explained(self.path, self.storage_options, error, f"changing group {stored.group!r} in") from error
                    raise CommitConflict(str(error)) from error
            else:
                # Asked each time where asking costs a look at a name, for there a clock may jump.
                looks = not self.files.lists_late or time.monotonic() - started > _SLOW
                if looks and not self.files.exists(log_path(stored.token)):
                    # Frozen in the middle, for so long that the log was cleaned: then the number was free although it had been taken, and
                    # nobody will ever see this commit.
                    self._table = None
                    raise CommitConflict(f"the log was cleaned beyond version {stored.token} while this was written")
                self.pace += 0.2 * (time.monotonic() - started - self.pace)
                if self._lines_at == stored.token and table.version() == stored.token + 1:
                    self._lines_at = table.version()  # nobody else has committed, so there is nothing to look up
                    if served is not None:
                        self._lines[marks[-1][0]] = marks[-1][1]
                if ledger is None:
                    self._cache.pop(stored.group, None)
                else:
                    self._cache[stored.group] = (self._paths(table, stored.group), Ledger(ledger.head, ledger.ranges))

    def _after(self, error: Exception, stored: LedgerSnapshot, operation_id: str) -> tuple[int, bool]:
        """The latest version after a failure, and whether it landed all the same."""
        try:
            latest = self.refresh()
            if latest.version() == stored.token:
                self._table = None  # or the handle knows no better: what it stood on may be gone
                latest = self.refresh()
            found = delta.landed_since(self.files, self.path, stored.token, latest.version(), operation_id)
            return latest.version(), found is not None
        except STORE_ERRORS as second:
            doing = f"changing group {stored.group!r} in"
            raise explained(self.path, self.storage_options, error, doing, landed=None) from second

    def mark(self, stored: LedgerSnapshot, app: str) -> int | None:
        with self._lock, self._as_of(stored):
            try:
                return self._mark(self._pinned(stored), app)
            except DeltaError:
                self._table = None  # so that a log that is broken is told as such
                raise

    # -- lines: see spark_mq.turns

    def line(self, name: str) -> tuple[int, int]:
        with self._lock:
            table = self._table or self.refresh()
            if self._lines_at is None or not 0 <= table.version() - self._lines_at <= MOST_LOOKED_UP:
                self._lines, self._lines_at = {}, table.version()
            for version in range(self._lines_at + 1, table.version() + 1):
                self._lines.update(self._marks_of(version))
            self._lines_at = table.version()
            for app in (_TAKEN + name, _SERVED + name):
                if app not in self._lines:  # it replays the log: 11 ms at 250 commits
                    with telling(self.path, self.storage_options, "reading"):
                        self._lines[app] = self._mark(table, app) or 0
            return self._lines[_TAKEN + name], self._lines[_SERVED + name]

    def _mark(self, table: DeltaTable, app: str) -> int | None:
        found, knew = delta.mark(table, app, self.files)
        if table is self._table:
            self._table = knew  # the other one would fail each time
        return found

    def _marks_of(self, version: int) -> dict[str, int]:
        """The marks of lines that a commit has set."""
        try:
            actions = delta.read_commit(self.files, version, self.path)
        except FileNotFoundError:
            return {}  # cleaned away: it is old
        marks = (a["txn"] for a in actions if "txn" in a)
        return {mark["appId"]: mark["version"] for mark in marks if mark["appId"].startswith((_TAKEN, _SERVED))}

    def look(self) -> bool:
        with self._lock:
            table = self._table or self.refresh()
            before = table.version()
            # By the file's name first: that costs a twentieth of a refresh.
            return self.files.exists(log_path(before + 1)) and self.refresh().version() != before

    def take_ticket(self, name: str) -> int | None:
        with self._lock:
            self.refresh()
            ticket = self.line(name)[0] + 1
            return ticket if self._sign("get in line", name, (_TAKEN + name, ticket)) else None

    def leave_line(self, name: str, ticket: int) -> None:
        with self._lock, contextlib.suppress(SparkMQError):
            self.refresh()
            self._sign("leave the line", name, (_SERVED + name, max(ticket, self.line(name)[1])))

    def _sign(self, operation: str, name: str, mark: tuple[str, int]) -> bool:
        """Commits nothing but a mark. An overwrite of a partition that never is: delta-rs passes it over all other commits."""
        with self._lock:
            try:
                write_deltalake(
                    self._table or self.refresh(),
                    LEASES_SCHEMA.empty_table(),
                    mode="overwrite",
                    predicate=f"consumer_group = '{RESERVED_PREFIX}line'",
                    post_commithook_properties=delta.no_housekeeping(),
                    commit_properties=delta.commit_properties(uuid.uuid4().hex, {"operation": operation, "line": name}, [mark]),
                )
                return True
            except Exception as error:
                # Mostly that somebody else took the number. Whatever it is, the commit that this is about tells it better.
                _log.debug("%s %s: %s", operation, name, error)
                return False

    def groups(self) -> list[str]:
        with self._lock:
            adds = pa.table(self.refresh().get_add_actions(flatten=True))
        names = adds["partition.consumer_group"].to_pylist() if adds.num_rows else []
        return sorted({name for name in names if not name.startswith(RESERVED_PREFIX)})

    def version(self) -> int:
        return self.refresh().version()

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        for version in range(first, last + 1):
            try:
                actions = delta.read_commit(self.files, version, self.path)
            except FileNotFoundError:
                continue
            info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
            note = delta.note_of(info)
            adds = [a["add"] for a in actions if "add" in a and a["add"].get("dataChange", True)]
            rows = [self._rows(version, unquote(add["path"]), add.get("partitionValues", {}).get("consumer_group")) for add in adds]
            yield LedgerCommit(
                version, int(info.get("timestamp") or 0) * 1000, note.get("group"), note.get("operation"), info.get(delta.OPERATION_ID),
                pa.concat_tables([LEASES_SCHEMA.empty_table(), *rows]),
            )  # fmt: skip

    def clean(self, keep_versions: int | None, keep_seconds: float | None, *, archived: int) -> int:
        versions = cleanup.KEEP_LEDGER_VERSIONS if keep_versions is None else keep_versions
        seconds = cleanup.KEEP_LEDGER_SECONDS if keep_seconds is None else keep_seconds
        return cleanup.clean(self, versions, seconds, archived=archived)

    def _rows(self, version: int, path: str, group: str | None) -> pa.Table:
        """A file with its partition's value, which Delta leaves out of it. Empty where it is gone or broken: that is past, and told."""
        try:
            rows = self.files.read_parquet(path, LEASES_SCHEMA)
        except (FileNotFoundError, pa.ArrowException) as error:
            _log.error("what commit %d of %s did cannot be told: %s: %s", version, self.path, path, plain(error))
            return LEASES_SCHEMA.empty_table()
        return rows.set_column(0, LEASES_SCHEMA.field(0), pa.repeat(pa.scalar(group, pa.string()), rows.num_rows))

    def _pinned(self, stored: LedgerSnapshot) -> DeltaTable:
        """The table at the version that was read: the shared handle, or, where another thread has moved that on, one of its own.

        (To call it a lost race would let the threads of a busy group starve those of another.)
        """
        if self._table is not None and self._table.version() == stored.token:
            return self._table
        with self._as_of(stored):
            return delta.load(self.path, self.storage_options, stored.token)

    @contextlib.contextmanager
    def _as_of(self, stored: LedgerSnapshot) -> Iterator[None]:
        """While the version that was read is read once more: that it is not to be had is a lost race."""
        with telling(self.path, self.storage_options, "reading", only=OSError):
            try:
                yield
            except DeltaError as error:
                raise CommitConflict(f"version {stored.token} has been cleaned away") from error
