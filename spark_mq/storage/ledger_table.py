"""Keep the ledgers of all groups in one Delta table, ``leases/``.

A commit replaces the data file of each group that it changes. It is refused if one of these groups
changed since it was read. Commits of other groups pass.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_mq.delta.actions import AddFile, Change
from spark_mq.delta.log import CHECKPOINT_INTERVAL, DeltaLog
from spark_mq.delta.memory_files import is_in_memory
from spark_mq.delta.object_store import ObjectStore
from spark_mq.delta.state import TableState, last_checkpoint
from spark_mq.delta.store_errors import STORE_ERRORS, one_line, to_storage_error, wrap_store_errors
from spark_mq.delta.tables import KEPT_BY_THE_SWEEP, checkpoint_soon, create_table
from spark_mq.errors import CommitConflict, CorruptLog, NotAQueue, SparkMQError, StorageError
from spark_mq.ledger.ranges import Ledger
from spark_mq.storage.commit_turn import PAUSE, SERVED, CommitTurn
from spark_mq.storage.delegated_commands import DelegationTurn, Peers, delete_old_requests, plead
from spark_mq.storage.heartbeat_files import delete_heartbeats, delete_old_heartbeats
from spark_mq.storage.ledger_files import (
    LEASES_SCHEMA,
    LEDGER_TAG,
    LedgerCommit,
    LedgerSnapshot,
    encode_ledger,
    event_cache,
    ledger_cache,
    read_ledger,
    scan_ledgers,
    secure_files,
    to_ledger_commit,
)
from spark_mq.storage.local_turn import LocalTurn, has_lines
from spark_mq.storage.shared_look import shared_look_for
from spark_mq.storage.table_cleanup import clean_ledger_table
from spark_mq.util.backoff import Backoff
from spark_mq.util.fair_lock import FairLock, fair_lock_for
from spark_mq.util.notifier import notifier_for
from spark_mq.util.show import shell_command, show_name
from spark_mq.util.validation import RESERVED_PREFIX

# The reserved group whose start sequence is the trim horizon: ``messages/`` may lack all below it.
HORIZON: Final = f"{RESERVED_PREFIX}horizon"

_log = logging.getLogger(__name__)

_PARTITION: Final = "consumer_group"
# Tag of a group's file: the last sequence of ``messages/`` that its ledger has reached.
REACHED: Final = "spark_mq.reached"
_RECENT: Final = 100  # commits further back in the log do not show who competes now


class _Token(NamedTuple):
    """What a commit must know of its snapshot."""

    version: int
    files: tuple[AddFile, ...]


EncodedFile = tuple[AddFile, bytes | memoryview]  # a ledger's file, and its content


class LedgerTable:
    """Keep the ledgers in a Delta table. Thread-safe."""

    def __init__(
        self, path: str, storage_options: Mapping[str, str] | None = None, *, durable: bool = True
    ) -> None:
        self.path = path
        self.files = ObjectStore(path, storage_options, durable=durable)
        self._secure = partial(secure_files, self.files, sync=self.files.is_local)
        write_soon = partial(checkpoint_soon, secure=self._secure)
        self.log = DeltaLog(self.files, on_checkpoint=write_soon)
        self.notifier = notifier_for(self.files.key)
        self.shared_look = shared_look_for(self.files.key)
        self._cache = ledger_cache()
        self._events = event_cache()
        self._commit_lock = fair_lock_for(self.files.key)
        self.backoff = Backoff()  # of this process's commits
        self.peers = Peers()
        self._notes_read_up_to = -1  # the version up to which notes of others were read
        self._last_operation = ""  # the id of the last commit of this handle
        self.was_changed = False  # by this handle, or for it
        self._files_checked = False
        self._lock = threading.RLock()

    def create(self, description: str, operation_id: str | None = None) -> bool:
        """Create the table. Return False if another operation has created it."""
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
                operation_id=operation_id,
            )

    def open(self) -> TableState | None:
        """Return the table at its latest version, or None without one."""
        with wrap_store_errors(self.path, "opening"):
            return self.log.open()

    def commit_lock(self) -> FairLock:
        """Return the lock on the table for the threads of this process."""
        return self._commit_lock

    def read(
        self, group: str, *, without_ledger: bool = False, refresh: bool | None = True
    ) -> LedgerSnapshot:
        """Return the ledger. Raise CorruptLog if it is damaged.

        `without_ledger` leaves the ledger out, so that a change can replace a broken one. `refresh`
        asks the store for newer commits. With None, the store skips that if it costs a request.
        """
        seen: int | None = None
        looked = self.files.is_local if refresh is None else refresh
        while True:
            version, files = self._partition(group, looked)
            token = _Token(version, files)
            if without_ledger:
                return LedgerSnapshot(group, None, token, looked)
            try:
                return LedgerSnapshot(group, self._ledger(group, files), token, looked)
            except FileNotFoundError as error:
                # A cleaner, or a VACUUM, deleted the file after another commit had replaced it.
                if seen == version:
                    raise self._unreadable(group, files, error) from error
                seen, looked = version, True
            except (pa.ArrowInvalid, NotAQueue) as error:
                raise self._unreadable(group, files, error) from error
            except OSError as error:
                raise to_storage_error(self.path, error, "reading") from error

    def may_skip_look(self) -> bool:
        """Return whether a look would probably find nothing, and costs a request."""
        return self.log.may_skip_look and not self.peers.delegate

    def _partition(self, group: str, refresh: bool) -> tuple[int, tuple[AddFile, ...]]:
        with wrap_store_errors(self.path, "reading"), self._lock:
            version, files = self.log.partition_at({_PARTITION: group}, refresh=refresh)
            if version != self._notes_read_up_to:
                self._read_notes(version)
            return version, files

    def _read_notes(self, version: int) -> None:
        """Note what commits of other writers say of themselves."""
        first = max(self._notes_read_up_to + 1, version - _RECENT)
        for commit in self.log.known_commits(first, version):
            if commit.operation_id != self._last_operation:
                note, pause = commit.note, commit.note.get(PAUSE)
                self.peers.read_note(note)
                # Who shares commits need not pause, and older versions name a pause all the same.
                if isinstance(pause, int | float) and SERVED not in note:
                    self.backoff.take_over(pause)
        self._notes_read_up_to = version

    def _ledger(self, group: str, files: tuple[AddFile, ...]) -> Ledger | None:
        if not files:
            return None
        paths = tuple(file.path for file in files)
        cached = self._cache.get(group)
        if cached is None or cached[0] != paths:
            cached = self._cache[group] = (paths, read_ledger(self.files, group, files))
        return cached[1]

    def _unreadable(self, group: str, files: tuple[AddFile, ...], error: Exception) -> CorruptLog:
        names = ", ".join(show_name(file.path) for file in files)
        command = shell_command("group", "drop", group, "-q", "PATH")
        return CorruptLog(
            f"the ledger of group {group!r} cannot be read: {names} of {self.path}: "
            f"{one_line(error)}. Restore the file from a backup. Or drop the group with "
            f"queue.drop_group({group!r}) or {command}: then it starts again, and gets all "
            "messages that the queue still has. Other groups continue",
            path=self.path,
            version=self.log.state.version,
        )

    def write(
        self,
        *changes: tuple[LedgerSnapshot, Ledger | None],
        operation_id: str,
        note: Mapping[str, Any],
        txns: Sequence[tuple[str, int]] = (),
        whole_table: bool = False,
    ) -> int:
        """Commit ledgers whose groups have not changed since they were read. None drops a group.

        Return how many commits of others came in between.

        Raise CommitConflict if a group, the trim horizon or an app of `txns` has changed since.
        With `whole_table`, a change of any group counts. After a failure, `operation_id` shows
        whether the commit landed. `note` is the commit's account of itself.
        """
        stored = [snapshot for snapshot, _ in changes]
        ledgers = {each.group: ledger for each, ledger in changes if ledger is not None}
        files = [self._encoded(group, ledger) for group, ledger in ledgers.items()]
        added = {group: file for group, (file, _) in zip(ledgers, files, strict=True)}
        change = Change(
            operation_id,
            note,
            adds=tuple(added.values()),
            removes=[file for snapshot in stored for file in snapshot.token.files],
            txns=tuple(txns),
            # Without the horizon, a lease could take what a trim has dropped.
            partitions=[{_PARTITION: group} for group in (*(s.group for s in stored), HORIZON)],
            whole_table=whole_table,
            # With its rows in the log, a file that a power cut takes can be written again.
            unsynced=any(LEDGER_TAG not in file.tags for file in added.values()),
        )
        try:
            base = min(each.token.version for each in stored)
            with self._written(files):
                version = self.log.commit(change, base)
        except (CommitConflict, StorageError) as error:
            # In an object store a failed commit may land later.
            lost = isinstance(error, CommitConflict) or (
                error.data["landed"] is False and self.files.is_local
            )
            if lost:
                for file in added.values():
                    self._discard(file)
            raise
        self._last_operation, self.was_changed = operation_id, True
        if not self._files_checked:
            self._files_checked = True
            if self.files.is_local:  # over a store the sweep does it, because that costs requests
                self.repair_files()
        for snapshot, ledger in changes:
            group = snapshot.group
            if ledger is None:
                with contextlib.suppress(*STORE_ERRORS):  # or the sweep deletes them
                    delete_heartbeats(self.files, group)
            else:
                self._cache[group] = ((added[group].path,), ledger.replaced(ledger.head, ()))
        return version - base - 1

    @property
    def delegates(self) -> bool:
        """Return whether writers delegate commands over a store, instead of standing in line."""
        return not self.files.is_local

    def turn(
        self,
        delegable: Callable[[], Sequence[Any] | None],
        is_idle: Callable[[], bool],
        *,
        lost: bool,
    ) -> CommitTurn | None:
        """Return the turn in which others may run the JSON commands, or None to only pause.

        `is_idle` says whether the commands change nothing as of the last look, and need no turn.
        """
        if not self.delegates:
            if is_in_memory(self.path) or not has_lines():
                return None
            line = os.path.join(os.path.dirname(self.files.key), "_locks", "leases")
            return LocalTurn(line, self.log, delegable)
        # It costs requests, so a writer that meets nobody has none.
        commands = delegable() if lost or self.peers.delegate else None
        if commands is None:
            return None
        if lost:
            self.peers.met()
        return DelegationTurn(self.files, self.log, commands, self.peers, is_idle)

    def ask_others(self, pause: float, attempt: float) -> Sequence[str]:
        """Ask the other writers to make room for one that loses each race.

        It pauses for a mean time before each attempt, which takes some time as well. On a disk this
        is a commit that changes nothing, and names the pause. Over a store a writer that needs one
        request for a commit would win that race, too, so it is a file. Return its path.
        """
        try:
            if self.delegates:
                return [plead(self.files, 2 * (pause + attempt))]
            note = {"operation": "ask others to wait", PAUSE: round(pause, 3)}
            self._last_operation = uuid.uuid4().hex
            self.log.commit(Change(self._last_operation, note), self.log.refresh().version)
        except SparkMQError as error:
            _log.debug("asking other writers of %s failed: %s", self.path, error)
        return []

    def _encoded(self, group: str, ledger: Ledger) -> EncodedFile:
        """Return the file of a ledger, and its content."""
        encoded = encode_ledger(ledger)
        path = f"{_PARTITION}={group}/part-{uuid.uuid4()}.parquet"
        tags = {REACHED: str(ledger.end_sequence)}
        if encoded.tag is not None:
            tags[LEDGER_TAG] = encoded.tag
        size = len(encoded.data)
        return AddFile(path, size, encoded.rows, {_PARTITION: group}, tags=tags), encoded.data

    @contextlib.contextmanager
    def _written(self, files: Sequence[EncodedFile]) -> Iterator[None]:
        """Write the files of a commit, and run the block that commits them.

        Over a store both happen at the same time if the log has all rows, too. The first commit of
        a process waits, so that it fails if the process may not write files.
        """
        in_log = all(LEDGER_TAG in file.tags for file, _ in files)
        if self.files.is_local or not in_log or not files or not self._files_checked:
            with wrap_store_errors(self.path, "changing groups in"):
                self.files.for_each(files, self._put)
            yield
            return
        with ThreadPoolExecutor(len(files)) as pool:
            puts = [pool.submit(self._put, file) for file in files]
            yield
        for error in filter(None, (put.exception() for put in puts)):
            _log.warning("a file of %s is left to the next sweep: %s", self.path, error)

    def _put(self, file: EncodedFile) -> None:
        self.files.write(file[0].path, file[1], sync=False)

    def repair_files(self) -> None:
        """Write small files again that are missing, unless a checkpoint has secured them."""
        try:
            first, state = last_checkpoint(self.files) + 1, self.log.state
            live = {file.path for file in state.files()}
            commits = self.log.known_commits(first, state.version)
            newest = [file for commit in commits for file in commit.adds if file.path in live]
            secure_files(self.files, newest, sync=False)
        except Exception as error:  # the ledgers are in the log all the same
            _log.warning("the files of %s were not checked: %s", self.path, error)

    def _discard(self, file: AddFile) -> None:
        """Delete a file that no commit names. If that fails, the sweep deletes it."""
        try:
            self.files.delete(file.path)
        except OSError as error:
            _log.debug("%s of %s was not deleted: %s", file.path, self.path, error)

    def clean(self, archived: int) -> int:
        """Delete old versions up to `archived`. Return how many files."""
        with wrap_store_errors(self.path, "cleaning"):
            self.repair_files()
            deleted = clean_ledger_table(self.log, archived, self._secure)
            # Over a store each listing costs, and there the workers delete old heartbeats.
            beside = delete_old_heartbeats if self.files.is_local else delete_old_requests
            return deleted + beside(self.files)

    @property
    def table_id(self) -> str:
        """Return the table's id. A table made again has another one."""
        with wrap_store_errors(self.path, "reading"):
            return self.log.state.table_id

    def reached(self, *, refresh: bool = False) -> int:
        """Return the last sequence that any ledger has reached, or -1. `refresh` asks the store."""
        with wrap_store_errors(self.path, "reading"), self._lock:
            files = (self.log.refresh() if refresh else self.log.state).files()
        return max((_reached(file) for file in files), default=-1)

    def known_horizon(self) -> int:
        """Return the trim horizon as of the last look, or -1."""
        with self._lock:
            files = self.log.state.partition({_PARTITION: HORIZON}).values()
            return max(map(_reached, files), default=-1)

    def txn_number(self, stored: LedgerSnapshot, app: str) -> int | None:
        """Return the number last committed for an app, or None."""
        return stored.txns[app] if app in stored.txns else self.log.state.txns.get(app)

    def groups(self) -> list[str]:
        """Return the names of all groups but the reserved ones."""
        return sorted(self._group_files())

    def group_count(self) -> int:
        """Return the number of groups as of the last look, with the reserved ones."""
        return len(self.log.state.partitions)

    def version(self) -> int:
        with wrap_store_errors(self.path, "reading"):
            return self.log.refresh().version

    def known_version(self) -> int:
        """Return the table's version as of the last look, or -1 if there was none."""
        return self.log.known_version

    def commit_time(self, version: int) -> int | None:
        with wrap_store_errors(self.path, "reading"):
            return self.log.commit_time(version)

    def last_change(self, group: str) -> int | None:
        """Return a group's last commit time in microseconds, as of the last look, or None."""
        with self._lock:
            files = self.log.state.partition({_PARTITION: group}).values()
            return max((file.modified * 1_000 for file in files), default=None)

    def tags(self) -> dict[str, Hashable]:
        """Return a tag of each group's ledger. Every change of a ledger changes its tag."""
        return {name: tuple(files) for name, files in self._group_files().items()}

    def scan(
        self, groups: Iterable[str], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        """Yield the stored rows of some groups that still exist, and cache nothing."""
        files = self._group_files()
        wanted = {group: tuple(files[group].values()) for group in groups if group in files}
        return scan_ledgers(self.files, wanted, columns, lambda group: self.read(group).ledger)

    def _group_files(self) -> dict[str, Mapping[str, AddFile]]:
        """Return the data files of each group's ledger by path, without reserved groups."""
        with wrap_store_errors(self.path, "reading"), self._lock:
            partitions = dict(self.log.refresh().partitions)
        named = ((dict(key).get(_PARTITION), files) for key, files in partitions.items())
        return {
            name: files
            for name, files in named
            if name is not None and not name.startswith(RESERVED_PREFIX)
        }

    def operation_at(self, version: int) -> str | None:
        """Return the operation id of a commit, or None if it is cleaned or another engine's."""
        with wrap_store_errors(self.path, "reading"):
            try:
                return self.log.read_commit(version).operation_id
            except FileNotFoundError:
                return None

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        """Yield the commits from one version to another, in order. Cleaned ones are left out."""
        with wrap_store_errors(self.path, "reading"):
            for commit in self.log.commits(first, last):
                yield to_ledger_commit(self.files, commit, self._events)


def _reached(file: AddFile) -> int:
    try:
        return int(file.tags.get(REACHED, -1))
    except ValueError:
        return -1
