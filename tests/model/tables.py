"""The tables of a queue as plain objects, with the rules of those on Delta.

The model puts their content in place before each step, so they parse and write no log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from support.handles import memory_store

from spark_mq import PublishReceipt
from spark_mq.errors import CommitConflict
from spark_mq.ledger.message_index import ORDINAL_BITS, DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import Event, Ledger, LedgerHeader
from spark_mq.parquet.lease_columns import read_delivery_times
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.delegated_commands import Peers
from spark_mq.storage.history_table import HISTORY_SCHEMA, Archived
from spark_mq.storage.id_files import NO_IDS, new_name
from spark_mq.storage.ledger_files import (
    GroupChange,
    LedgerCommit,
    LedgerSnapshot,
    notes_by_group,
    to_rows,
)
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.storage.message_log import LogPlan
from spark_mq.storage.message_table import MessageTable
from spark_mq.storage.publishes import Met, PendingPublish, check_txn
from spark_mq.util.backoff import Backoff
from spark_mq.util.clock import Clock, system_clock, to_micros
from spark_mq.util.fair_lock import FairLock
from spark_mq.util.notifier import Notifier
from spark_mq.util.validation import RESERVED_PREFIX

__all__ = ["MemoryLedgers", "MemoryMessages", "NoHistory"]


class MemoryMessages(MessageTable):
    """Messages in memory. Sequences, numbers and files are as in Delta."""

    def __init__(self, clock: Clock, lanes: int = 0) -> None:
        self.path = "memory/messages"
        self.lanes = lanes
        self.files = memory_store()
        self.notifier = Notifier()
        self._clock = clock
        self._lock = threading.Lock()
        self.held_index = MessageIndex(version=0, lanes=lanes)  # as if version 0 had made the table
        self.active: set[str] = set()
        self._ids = NO_IDS
        self.numbers: dict[str, tuple[int, PublishReceipt]] = {}  # app -> its latest number
        self._description: str | None = None

    @property
    def description(self) -> str | None:
        return self._description

    @property
    def trimmed(self) -> int:
        return -1

    @property
    def fence(self) -> int:
        return 0  # no sweep of the twin deletes files

    def index_to_lease(self, after: int, wanted: int) -> MessageIndex:
        return self.index()

    def full_index(self, first: int) -> MessageIndex:
        return self.index()

    def note(self, version: int) -> dict[str, Any]:
        return {}

    def describe(self, text: Callable[[str | None], str], operation: str = "describe") -> None:
        with self._lock:
            self._description = text(self._description)

    def commit(
        self,
        pending: PendingPublish,
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
        check: None = None,
    ) -> PublishReceipt:
        assert check is None, "the twin has no schedules"
        with self._lock:
            for files, met in pending.tried:  # an interrupted call may have published
                place = self.held_index.files.find(files[0].path)
                if place is not None:
                    pending.landed = files
                    version = self.held_index.files.first_at(place) >> ORDINAL_BITS
                    return PublishReceipt.of_files(version, files, met)
            if txn is not None:
                check_txn(self.last_number(txn[0]), txn, after)
            met = pending.meet(self._ids)
            written = pending.files(met.duplicates)
            if not written:
                receipt = PublishReceipt.of_duplicates(met.duplicates)
            else:
                pending.tried.append((written, met))
                receipt = self._publish(written, met)
                fresh = pending.fresh(met.duplicates)
                if fresh:
                    window = self._ids.with_ids(
                        new_name(), fresh, pending.now, pending.since, pending.ask
                    )
                    self._ids = window.landed(self.held_index.version)
                pending.landed = written
            if txn is not None:
                self.numbers[txn[0]] = (txn[1], receipt)
        self.notifier.notify()
        return receipt

    def _publish(self, written: Sequence[WrittenFile], met: Met) -> PublishReceipt:
        # An interrupted publish may have added a file and not the version.
        last = max(self.held_index.version, self.held_index.last_sequence >> ORDINAL_BITS)
        version, at = last + 1, to_micros(self._clock())
        files, ordinal = [], 0
        for file in written:
            times = read_delivery_times(self.files, file.path) if file.timed else None
            first = sequence(version, ordinal)
            files.append(DataFile(first, file.rows, file.path, file.size, at, times, file.slots))
            ordinal += file.rows
        self.held_index = self.held_index.extended(files, version)
        self.active.update(file.path for file in files)
        return PublishReceipt.of_files(version, written, met)

    def known_ids(self, ids: Sequence[bytes | None]) -> dict[int, int]:
        return self._ids.latest(ids)

    def clean_ids(self) -> int:
        return 0

    def last_number(self, app: str) -> int | None:
        return self.numbers[app][0] if app in self.numbers else None

    def receipt(self, app: str, number: int) -> PublishReceipt | None:
        last, receipt = self.numbers.get(app, (None, None))
        return receipt if last == number else None

    def index(self, reach: int | None = None) -> MessageIndex:
        return self.held_index

    def known(self) -> MessageIndex:
        return self.held_index

    def expect(self, reached: Callable[[bool], int]) -> None:
        pass  # both stores live and end with the process

    def plan_recovery(self) -> LogPlan:
        return LogPlan(self.held_index)

    def publish_again(self, plan: LogPlan) -> None:
        pass  # no file is unknown

    def rewrite_commits(self, plan: LogPlan) -> None:
        pass  # there is no ``commits/``

    def index_commits(self) -> int:
        return 0

    def index_progress(self) -> tuple[int, int | None]:
        return self.held_index.version, None

    def clean(self, keep_versions: int | None, keep_seconds: float | None) -> int:
        return 0

    def forget(self, up_to: int, keep_since: int) -> None:
        pass  # the messages themselves are in memory

    def drop(self, horizon: int) -> int:
        with self._lock:
            gone = {
                file.path for file in self.held_index.files if file.last <= horizon
            } & self.active
            if gone:
                self.active -= gone
                self.held_index = self.held_index.extended((), self.held_index.version + 1)
            for path in gone:
                self.files.delete(path)
            return len(gone)


class MemoryLedgers:
    """Ledgers in memory, with optimistic commits on a dict."""

    def __init__(self, clock: Clock = system_clock) -> None:
        self.backoff, self.peers = Backoff(), Peers()
        self.notifier = Notifier()
        self._clock = clock
        # Each commit's account of itself, as DESCRIBE HISTORY shows it for a Delta table.
        self.notes: list[dict[str, Any]] = []
        self.events: list[dict[str, Sequence[Event]]] = []  # of each commit, by group
        self._commit_lock = FairLock()
        self._lock = threading.Lock()
        self.ledgers: dict[str, Ledger] = {}
        self.changed: dict[str, int] = {}  # the version that changed a group last
        self.txns: dict[str, tuple[int, int]] = {}  # app -> its number, the version that set it

    def commit_lock(self) -> FairLock:
        return self._commit_lock

    delegates = False

    def may_skip_look(self) -> bool:
        return False

    def read(
        self, group: str, *, without_ledger: bool = False, refresh: bool | None = True
    ) -> LedgerSnapshot:
        with self._lock:
            return LedgerSnapshot(
                group, None if without_ledger else self.ledgers.get(group), len(self.notes)
            )

    def write(
        self,
        *changes: tuple[LedgerSnapshot, Ledger | None],
        operation_id: str,
        note: Mapping[str, Any],
        txns: Sequence[tuple[str, int]] = (),
        whole_table: bool = False,
    ) -> int:
        with self._lock:
            latest = len(self.notes)
            groups = [stored.group for stored, _ in changes]
            token = min(stored.token for stored, _ in changes)
            changed = max(self.changed.get(name, 0) for name in (*groups, HORIZON))
            if (latest if whole_table else changed) > token:
                raise CommitConflict(f"groups {groups} have changed since they were read")
            for app, _ in txns:
                if self.txns.get(app, (0, 0))[1] > token:
                    raise CommitConflict(f"{app} was committed since")
            self.notes.append(
                {"operation_id": operation_id, "committed_at": to_micros(self._clock()), **note}
            )
            for stored, ledger in changes:
                if ledger is None:
                    del self.ledgers[stored.group]
                else:
                    self.ledgers[stored.group] = ledger.replaced(ledger.head, ())
                self.changed[stored.group] = latest + 1
            self.events.append(
                {
                    stored.group: () if ledger is None else ledger.events
                    for stored, ledger in changes
                }
            )
            self.txns.update((app, (number, latest + 1)) for app, number in txns)
            return 0

    def turn(self, delegable: Any, is_idle: Any, *, lost: bool) -> None:
        pass  # threads of one process share their commits already

    def ask_others(self, pause: float, attempt: float) -> Sequence[str]:
        return ()  # the threads of a process get their turn at a lock

    def txn_number(self, stored: LedgerSnapshot, app: str) -> int | None:
        if app in stored.txns:
            return stored.txns[app]
        with self._lock:
            number, version = self.txns.get(app, (None, 0))
            if version > stored.token:
                raise CommitConflict(f"{app} was committed since")
            return number

    def known_horizon(self) -> int:
        with self._lock:
            ledger = self.ledgers.get(HORIZON)
        return -1 if ledger is None else ledger.head.start_sequence

    def groups(self) -> list[str]:
        with self._lock:
            return sorted(name for name in self.ledgers if not name.startswith(RESERVED_PREFIX))

    def group_count(self) -> int:
        return len(self.ledgers)

    def version(self) -> int:
        return len(self.notes)

    known_version = version

    def commit_time(self, version: int) -> int | None:
        return self.notes[version - 1]["committed_at"] if version > 0 else None

    def last_change(self, group: str) -> int | None:
        with self._lock:
            version = self.changed.get(group)
            return None if version is None else int(self.notes[version - 1]["committed_at"])

    def tags(self) -> dict[str, Hashable]:
        return {name: self.changed[name] for name in self.groups()}

    def scan(
        self, groups: Iterable[str], columns: Sequence[str] | None = None
    ) -> Iterator[tuple[str, pa.Table]]:
        for group in groups:
            ledger = self.read(group).ledger
            if ledger is not None:
                rows = to_rows(group, ledger)
                yield group, rows if columns is None else rows.select(list(columns))

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        for version in range(max(1, first), min(last, len(self.notes)) + 1):
            note, events = self.notes[version - 1], self.events[version - 1]
            changes = [
                GroupChange(
                    each["group"],
                    each.get("operation"),
                    rows_of_events(each["group"], events[each["group"]]),
                    each.get("user"),
                    each.get("detail"),
                )
                for each in notes_by_group(note)
            ]
            yield LedgerCommit(version, note["committed_at"], note["operation_id"], changes)

    def clean(self, keep_versions: int | None, keep_seconds: float | None, *, archived: int) -> int:
        return 0


def rows_of_events(group: str, events: Sequence[Event]) -> pa.Table:
    return to_rows(group, Ledger(LedgerHeader(), None, events)).slice(1)  # no header


class NoHistory:
    """An archive without a commit: the model asks for no past."""

    def progress(self) -> tuple[int, int | None]:
        return -1, None

    def read(self, filters: object, columns: Sequence[str] | None = None) -> tuple[pa.Table, int]:
        return HISTORY_SCHEMA.empty_table().select(columns or HISTORY_SCHEMA.names), -1

    def agreed_up_to(self) -> int | None:
        return None

    def truncate(self, up_to: int) -> None:
        pass

    def archive(self, retention: int) -> Archived:
        return Archived(0, -1)
