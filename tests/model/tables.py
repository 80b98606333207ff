"""The tables of a queue as plain objects, with the rules of those on Delta.

The model puts their content in place before each step, so they parse and write no log. They have
what the worlds ask for and no more, with the parameters of the real tables.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from support.handles import memory_store
from support.tables import context_of, ledgers_of, messages_of

from spark_mq import PublishReceipt
from spark_mq.errors import CommitConflict
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import Ledger
from spark_mq.parquet.lease_columns import read_delivery_times
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import HORIZON, LedgerTable
from spark_mq.storage.message_table import MessageTable
from spark_mq.storage.publishes import NOTHING_MET, PendingPublish, check_txn
from spark_mq.testing import ManualClock, memory_queue
from spark_mq.util.clock import Clock, to_micros
from spark_mq.util.validation import RESERVED_PREFIX

__all__ = ["DOUBLES", "MemoryLedgers", "MemoryMessages", "NoHistory"]


AGREED = messages_of(memory_queue()).plan_recovery()
"""The plan of a log without ``commits/``."""


class MemoryMessages(MessageTable):
    """Messages in memory. Sequences, numbers and files are as in Delta."""

    description = None
    trimmed = -1
    fence = 0  # no sweep of the twin deletes files

    def __init__(self, clock: Clock, lanes: int = 0) -> None:
        self.path = "memory/messages"
        self.lanes = lanes
        self.files = memory_store()
        self.notifier = ManualClock().notifier
        self._clock = clock
        self._lock = threading.Lock()
        self.held_index = MessageIndex(version=0, lanes=lanes)  # as if version 0 had made the table
        self.active: set[str] = set()
        self.numbers: dict[str, int] = {}  # app -> its latest number

    def index_to_lease(self, after: int, wanted: int) -> MessageIndex:
        return self.index()

    def commit(
        self,
        pending: PendingPublish,
        *,
        txn: tuple[str, int] | None = None,
        after: int | None = None,
        note: Mapping[str, Any] | None = None,
        check: Any = None,
    ) -> PublishReceipt:
        assert check is None, "the twin has no schedules"
        with self._lock:
            if txn is not None:
                check_txn(self.last_number(txn[0]), txn, after)
            written = pending.files()
            receipt = self._publish(written)
            pending.landed = written
            if txn is not None:
                self.numbers[txn[0]] = txn[1]
        self.notifier.notify()
        return receipt

    def _publish(self, written: Sequence[WrittenFile]) -> PublishReceipt:
        version, at = self.held_index.version + 1, to_micros(self._clock())
        files, ordinal = [], 0
        for file in written:
            times = read_delivery_times(self.files, file.path) if file.timed else None
            first = sequence(version, ordinal)
            files.append(DataFile(first, file.rows, file.path, file.size, at, times, file.slots))
            ordinal += file.rows
        self.held_index = self.held_index.extended(files, version)
        self.active.update(file.path for file in files)
        return PublishReceipt.of_files(version, written, NOTHING_MET)

    def last_number(self, app: str) -> int | None:
        return self.numbers.get(app)

    def index(self, reach: int | None = None) -> MessageIndex:
        return self.held_index

    def known(self) -> MessageIndex:
        return self.held_index

    def plan_recovery(self) -> Any:
        return replace(AGREED, index=self.held_index)

    def rewrite_commits(self, plan: Any) -> None:
        pass  # there is no ``commits/``

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

    delegates = False

    def __init__(self) -> None:
        real = ledgers_of(memory_queue())  # of which it has what does not touch the log
        self.backoff, self.peers, self.notifier = real.backoff, real.peers, real.notifier
        self.log, self._commit_lock = SimpleNamespace(clock=real.log.clock), real.commit_lock()
        self._lock = threading.Lock()
        self.latest = 0
        """The number of commits."""
        self.ledgers: dict[str, Ledger] = {}
        self.changed: dict[str, int] = {}  # the version that changed a group last
        self.txns: dict[str, tuple[int, int]] = {}  # app -> its number, the version that set it

    def commit_lock(self) -> Any:
        return self._commit_lock

    def may_skip_look(self) -> bool:
        return False

    def read(
        self, group: str, *, without_ledger: bool = False, refresh: bool | None = True
    ) -> LedgerSnapshot:
        with self._lock:
            ledger = None if without_ledger else self.ledgers.get(group)
            return LedgerSnapshot(group, ledger, self.latest)

    def write(
        self,
        *changes: tuple[LedgerSnapshot, Ledger | None],
        operation_id: str,
        note: Mapping[str, Any],
        txns: Sequence[tuple[str, int]] = (),
        whole_table: bool = False,
    ) -> int:
        with self._lock:
            groups = [stored.group for stored, _ in changes]
            token = min(stored.token for stored, _ in changes)
            changed = max(self.changed.get(name, 0) for name in (*groups, HORIZON))
            if (self.latest if whole_table else changed) > token:
                raise CommitConflict(f"groups {groups} have changed since they were read")
            for app, _ in txns:
                if self.txns.get(app, (0, 0))[1] > token:
                    raise CommitConflict(f"{app} was committed since")
            self.latest += 1
            for stored, ledger in changes:
                if ledger is None:
                    del self.ledgers[stored.group]
                else:
                    self.ledgers[stored.group] = ledger.replaced(ledger.head, ())
                self.changed[stored.group] = self.latest
            self.txns.update((app, (number, self.latest)) for app, number in txns)
            return 0

    def turn(self, delegable: Any, is_idle: Any, *, lost: bool) -> None:
        pass  # threads of one process share their commits already

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
        return self.latest

    known_version = version


class NoHistory:
    """An archive without a commit: the model asks for no past."""

    def agreed_up_to(self) -> int | None:
        return None


DOUBLES: dict[type, type] = {
    MemoryMessages: MessageTable, MemoryLedgers: LedgerTable,
    NoHistory: type(context_of(memory_queue()).history),
}  # fmt: skip
"""The real class of each double."""
