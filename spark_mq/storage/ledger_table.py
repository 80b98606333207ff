"""Keep the ledgers of all groups in one Delta table, ``leases/``; each change is one optimistic
commit.

A change replaces the data file of its group's partition. It is refused if the group changed since
it was
read; commits of other groups pass. Each change writes the group's header row with ``revision + 1``.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from spark_mq.delta.actions import AddFile, Change, Commit
from spark_mq.delta.cleanup import Keep, clean_table
from spark_mq.delta.log import CHECKPOINT_INTERVAL, DeltaLog
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState
from spark_mq.delta.store_errors import one_line, to_storage_error, wrap_store_errors
from spark_mq.delta.tables import (
    KEPT_BY_THE_SWEEP,
    checkpoint_soon,
    create_table,
    write_checkpoint,
)
from spark_mq.errors import CommitConflict, CorruptLog, NotAQueue, SparkMQError, StorageError
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.give_way import WayRequests
from spark_mq.storage.ledger_rows import LEASES_SCHEMA, from_rows, to_rows
from spark_mq.storage.ledger_scan import scan_ledgers
from spark_mq.storage.ledger_store import LedgerCommit, LedgerSnapshot
from spark_mq.util.fair_lock import FairLock, fair_lock_for
from spark_mq.util.notifier import notifier_for
from spark_mq.util.recent import RecentDict
from spark_mq.util.validation import RESERVED_PREFIX

__all__ = ["HORIZON", "LedgerTable"]

HORIZON: Final = f"{RESERVED_PREFIX}horizon"
"""The reserved group whose ack floor is the trim horizon: ``messages/`` may lack all below it."""

_log = logging.getLogger(__name__)

KEEP_VERSIONS: Final = 500
KEEP_SECONDS: Final = 15.0
"""How much of the table stays for time travel. Not less than 10 s: a writer over a store looks only
that often if the log was cleaned."""

_PARTITION: Final = "consumer_group"
_FILE_SCHEMA: Final = pa.schema([f for f in LEASES_SCHEMA if f.name != _PARTITION])
_STRINGS: Final = [f.name for f in _FILE_SCHEMA if pa.types.is_string(f.type)]
_NUMBERS: Final = [
    f.name for f in _FILE_SCHEMA if pa.types.is_integer(f.type) or pa.types.is_timestamp(f.type)
]
REACHED: Final = "spark_mq.reached"
"""Tag of a group's file: the last sequence of ``messages/`` that its ledger has reached."""
_CACHED_LEDGERS: Final = 2_000
"""Ledgers that a handle keeps in memory, 25 KB each at least."""
_RECENT: Final = 100
"""Requests for way that are further back in the log have expired."""
_LARGE_ROWS: Final = 1_000
"""From this many rows on, the encoding of numbers is worth its set-up."""


class _Token(NamedTuple):
    """What a commit must know of the snapshot that it is based on."""

    version: int
    files: tuple[AddFile, ...]
    read_at: float


class LedgerTable:
    """The ledgers in a Delta table at ``path``. Thread-safe.

    Parameters
    ----------
    path
        The table's path.
    storage_options
        Options of the object store.
    durable
        Whether commits on a local disk are synced before they are reported.
    """

    def __init__(
        self, path: str, storage_options: Mapping[str, str] | None = None, *, durable: bool = True
    ) -> None:
        self.path = path
        self.storage_options = dict(storage_options or {})
        self.files = ObjectStore(path, self.storage_options, durable=durable)
        self.log = DeltaLog(self.files, on_checkpoint=checkpoint_soon)
        self.bell = notifier_for(path)
        self._cache: dict[str, tuple[tuple[str, ...], Ledger]] = RecentDict(_CACHED_LEDGERS)
        self._doors: dict[str, FairLock] = {}
        self._lock = threading.RLock()
        self._requests = WayRequests()
        self._seen = -1  # the version up to which requests were looked for

    def create(self, description: str) -> bool:
        """Create the table. Return False if somebody else has created it."""
        with wrap_store_errors(self.path, "creating"):
            return create_table(
                self.files,
                LEASES_SCHEMA,
                partition_by=[_PARTITION],
                description=description,
                configuration={
                    "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
                    # Nobody prunes a group's one file, so it needs no statistics.
                    "delta.dataSkippingNumIndexedCols": "0",
                    **KEPT_BY_THE_SWEEP,
                },
            )

    def open(self) -> TableState | None:
        """Return the table at its latest version, or None if there is none."""
        with wrap_store_errors(self.path, "opening"):
            return self.log.open()

    def door(self, group: str) -> FairLock:
        with self._lock:
            if group not in self._doors:
                self._doors[group] = fair_lock_for(self.path, group)
            return self._doors[group]

    # -- reading

    def read(self, group: str, *, blind: bool = False, look: bool = True) -> LedgerSnapshot:
        seen = -1
        while True:
            looked = look or seen >= 0
            version, files = self._partition(group, looked)
            token = _Token(version, files, time.monotonic())
            if blind:
                return LedgerSnapshot(group, None, token, looked)
            try:
                return LedgerSnapshot(group, self._ledger(group, files), token, looked)
            except FileNotFoundError as error:
                # A cleaner, or a VACUUM, deleted the file after another commit had replaced it.
                if seen == token.version:
                    raise self._unreadable(group, files, error) from error
                seen = token.version
            except (pa.ArrowException, NotAQueue) as error:
                raise self._unreadable(group, files, error) from error
            except OSError as error:
                # pyarrow's error for a broken file. The system's errors name a path, too.
                if error.errno is None and "parquet" in str(error).lower():
                    raise self._unreadable(group, files, error) from error
                raise to_storage_error(self.path, error, "reading") from error

    def _partition(self, group: str, look: bool) -> tuple[int, tuple[AddFile, ...]]:
        with wrap_store_errors(self.path, "reading"), self._lock:
            version, files = self.log.partition_at({_PARTITION: group}, look=look)
            if version != self._seen:
                self._see_requests(version)
            return version, files

    def _ledger(self, group: str, files: tuple[AddFile, ...]) -> Ledger | None:
        if not files:
            return None
        paths = tuple(file.path for file in files)
        cached = self._cache.get(group)
        if cached is None or cached[0] != paths:
            rows = pa.concat_tables(
                [self.files.read_parquet(path, LEASES_SCHEMA) for path in paths]
            )
            cached = self._cache[group] = (paths, from_rows(rows))
        return cached[1]

    def _unreadable(self, group: str, files: tuple[AddFile, ...], error: Exception) -> CorruptLog:
        named = ", ".join(file.path for file in files)
        return CorruptLog(
            f"the ledger of group {group!r} cannot be read: {named} of {self.path}: "
            f"{one_line(error)}. "
            f"Restore the file from a backup; or drop the group with "
            f"Queue.drop_group({group!r}): it then starts "
            "again, and gets all messages that are still there. Other groups go on",
            path=self.path,
            version=self.log.state.version,
        )

    # -- writing

    def write(
        self,
        stored: LedgerSnapshot,
        ledger: Ledger | None,
        *,
        operation_id: str,
        note: Mapping[str, Any],
        txns: Sequence[tuple[str, int]] = (),
        whole_table: bool = False,
    ) -> None:
        token: _Token = stored.token
        partition = {_PARTITION: stored.group}
        quiet = self._requests.quiet
        if not quiet:
            self._give_way(stored.group)
        added = None if ledger is None else self._write_file(stored.group, ledger)
        change = Change(
            operation_id,
            note if quiet else {**note, **self._requests.note(stored.group)},
            adds=() if added is None else (added,),
            removes=token.files,
            txns=tuple(txns),
            partition=partition,
            whole_table=whole_table,
        )
        try:
            self.log.commit(change, token.version)
        except (CommitConflict, StorageError) as error:
            if added is not None and (isinstance(error, CommitConflict) or self._is_final(error)):
                self._discard(added)
            if isinstance(error, CommitConflict):
                self._ask_for_way(stored.group, time.monotonic() - token.read_at, whole_table)
            raise
        if not quiet:
            self._requests.won(stored.group)
        if ledger is None or added is None:
            self._cache.pop(stored.group, None)
        else:
            self._cache[stored.group] = ((added.path,), Ledger(ledger.head, ledger.ranges))

    def _see_requests(self, version: int) -> None:
        commits = self.log.known_commits(max(self._seen + 1, version - _RECENT), version)
        for commit in commits:
            self._requests.see(commit, commits[-1].timestamp)
        self._seen = version

    def _give_way(self, group: str) -> None:
        with self._lock:
            seconds = self._requests.pause(group)
        if seconds:
            time.sleep(seconds)

    def _ask_for_way(self, group: str, seconds: float, whole_table: bool) -> None:
        with self._lock:
            change = self._requests.lost(group, seconds, whole_table)
        if change is not None:
            try:
                self.log.commit(change, self.log.refresh().version)
            except SparkMQError as error:
                _log.debug("a request for way in %s failed: %s", self.path, error)

    def _is_final(self, error: StorageError) -> bool:
        """Whether the commit certainly never lands: over a store, a failed put may land later."""
        return error.data["landed"] is False and self.files.is_local

    def _write_file(self, group: str, ledger: Ledger) -> AddFile:
        rows = to_rows(group, ledger)
        data = _encode(rows)
        path = f"{_PARTITION}={group}/part-{uuid.uuid4()}.parquet"
        with wrap_store_errors(self.path, f"changing group {group!r} in"):
            self.files.write(path, data)
        tags = {REACHED: str(ledger.tracked_up_to)}
        return AddFile(path, len(data), rows.num_rows, {_PARTITION: group}, tags=tags)

    def _discard(self, file: AddFile) -> None:
        """Delete a file that no commit names. If that fails, the sweep deletes it."""
        try:
            self.files.delete(file.path)
        except OSError as error:
            _log.debug("%s of %s was not deleted: %s", file.path, self.path, error)

    # -- keeping the table small

    def clean(self, keep_versions: int | None, keep_seconds: float | None, *, archived: int) -> int:
        """Delete old versions that are archived. None keeps the default. Return how many files
        went."""
        versions = KEEP_VERSIONS if keep_versions is None else keep_versions
        seconds = KEEP_SECONDS if keep_seconds is None else keep_seconds
        with wrap_store_errors(self.path, "cleaning"):
            write_checkpoint(self.files)
            return clean_table(self.log, Keep(versions, seconds, archived), data_files=True)

    # -- looking

    @property
    def table_id(self) -> str:
        """The id of the table: a table made again at the same path has another."""
        with wrap_store_errors(self.path, "reading"):
            return self.log.state.table_id

    def reached(self, *, look: bool = False) -> int:
        """Return the last sequence of ``messages/`` that any ledger has reached, or -1.

        ``look`` asks the table for newer commits. Otherwise it is as of the last look.
        """
        with wrap_store_errors(self.path, "reading"), self._lock:
            files = (self.log.refresh() if look else self.log.state).files()
        return max((_reached(file) for file in files), default=-1)

    def known_horizon(self) -> int:
        """Return the trim horizon as of the last look."""
        with self._lock:
            files = self.log.state.partition({_PARTITION: HORIZON}).values()
        return max((_reached(file) for file in files), default=-1)

    def may_skip_look(self) -> bool:
        """Whether a change may start from the last known state: over a store, a look costs a
        request."""
        return not self.files.is_local and self.log.alone

    def mark(self, stored: LedgerSnapshot, app: str) -> int | None:
        return stored.txns[app] if app in stored.txns else self.log.state.txns.get(app)

    def groups(self) -> list[str]:
        return sorted(self._group_files())

    def group_count(self) -> int:
        return len(self.log.state.partitions)

    def version(self) -> int:
        with wrap_store_errors(self.path, "reading"):
            return self.log.refresh().version

    def commit_time(self, version: int) -> int | None:
        with wrap_store_errors(self.path, "reading"):
            return self.log.commit_time(version)

    def tags(self) -> dict[str, Hashable]:
        return {name: tuple(files) for name, files in self._group_files().items()}

    def scan(
        self, groups: Iterable[str], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        files = self._group_files()
        wanted = {group: tuple(files[group]) for group in groups if group in files}
        return scan_ledgers(self.files, wanted, columns, lambda group: self.read(group).ledger)

    def _group_files(self) -> dict[str, Mapping[str, AddFile]]:
        """Return the data files of each group's ledger, by path."""
        with wrap_store_errors(self.path, "reading"), self._lock:
            found = dict(self.log.refresh().partitions)
        named = ((dict(key).get(_PARTITION), files) for key, files in found.items())
        return {
            name: files
            for name, files in named
            if name is not None and not name.startswith(RESERVED_PREFIX)
        }

    def operation_at(self, version: int) -> str | None:
        """Return the operation id of a commit. None if it is cleaned, or another engine's."""
        with wrap_store_errors(self.path, "reading"):
            try:
                return self.log.read_commit(version).operation_id if version >= 0 else None
            except FileNotFoundError:
                return None

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        with wrap_store_errors(self.path, "reading"):
            for commit in self.log.commits(first, last):
                yield self._commit_of(commit)

    def _commit_of(self, commit: Commit) -> LedgerCommit:
        note = commit.note
        # A RESTORE by another engine adds files again: their events are those of older commits.
        operation_id = commit.operation_id
        adds = [add for add in commit.adds if operation_id and add.get("dataChange", True)]
        rows = [self._rows(commit.version, add) for add in adds]
        return LedgerCommit(
            commit.version,
            commit.timestamp,
            note.get("group"),
            note.get("operation"),
            operation_id,
            pa.concat_tables([LEASES_SCHEMA.empty_table(), *rows]),
        )

    def _rows(self, version: int, add: Mapping[str, Any]) -> pa.Table:
        """Return a file with its partition's value, which Delta leaves out of it; empty if it is
        gone or broken."""
        try:
            rows = self.files.read_parquet(add["path"], LEASES_SCHEMA)
        except (FileNotFoundError, pa.ArrowException) as error:
            _log.error(
                "the history of commit %d of %s is lost: %s: %s",
                version,
                self.path,
                add["path"],
                one_line(error),
            )
            return LEASES_SCHEMA.empty_table()
        group = (add.get("partitionValues") or {}).get(_PARTITION)
        return rows.set_column(
            0, LEASES_SCHEMA.field(0), pa.repeat(pa.scalar(group, pa.string()), rows.num_rows)
        )


def _reached(file: AddFile) -> int:
    try:
        return int(file.tags.get(REACHED, -1))
    except ValueError:
        return -1


def _encode(rows: pa.Table) -> memoryview:
    """Return the rows of a ledger as a Parquet file."""
    sink = pa.BufferOutputStream()
    large = rows.num_rows >= _LARGE_ROWS
    pq.write_table(
        rows.select(_FILE_SCHEMA.names),
        sink,
        compression="snappy",
        use_dictionary=_STRINGS if large else False,
        # Numbers here ascend or repeat, so delta encoding makes large ledgers small.
        column_encoding=dict.fromkeys(_NUMBERS, "DELTA_BINARY_PACKED") if large else None,
        write_statistics=False,
        store_schema=False,
        row_group_size=1_000_000,
    )
    return memoryview(sink.getvalue())
