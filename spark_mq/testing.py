"""For tests of code that uses a queue: a queue in memory, and a clock that is moved by hand.

    >>> from spark_mq.testing import ManualClock, memory_queue
    >>> clock = ManualClock()
    >>> queue = memory_queue(clock, visibility_timeout="30s")
    >>> receipt = queue.publish(["a", "b"])
    >>> lease = queue.group().lease("worker-1", max_messages=10)
    >>> [message.value for message in lease.messages]
    [b'a', b'b']
    >>> clock.advance("32s")  # the worker hangs
    >>> queue.group().stats().ready
    2

The queue in memory follows the same rules as one on Delta tables, for all but the two storage classes is the same code, and both pass
the same tests. It lives in one process: it cannot be pickled, and a Spark stream cannot read it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from spark_mq.delta import legacy as delta
from spark_mq.errors import CommitConflict
from spark_mq.ledger.message_index import DataFile, MessageIndex, sequence
from spark_mq.ledger.ranges import Event, Ledger, LedgerHeader
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.parquet.delivery_times import read_delivery_times
from spark_mq.parquet.writer import WrittenFile
from spark_mq.queue import Clock, Queue, system_clock
from spark_mq.storage.ledger_rows import to_rows
from spark_mq.storage.ledger_store import LedgerCommit, LedgerSnapshot
from spark_mq.storage.message_store import MessageStore, PublishReceipt, check_mark
from spark_mq.util.fair_lock import FairLock
from spark_mq.util.notifier import Notifier
from spark_mq.util.validation import RESERVED_PREFIX, check_duration, micros

__all__ = ["ManualClock", "MemoryFiles", "MemoryLeases", "MemoryLog", "memory_queue"]


class ManualClock:
    """A clock that stands still until it is moved. Pass it as ``clock`` to a queue. Picklable; a copy goes its own way.

        >>> clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
        >>> clock.advance("1h")
        >>> clock()
        datetime.datetime(2026, 1, 1, 1, 0, tzinfo=datetime.timezone.utc)

    Without ``start`` it starts at the present. (Delta commits carry the time of the machine, whatever a queue's clock says.)
    """

    def __init__(self, start: datetime | None = None) -> None:
        self.bell = Notifier()
        """Rung when it is moved: whoever waits for messages looks at the time again."""
        self._now = datetime.now(UTC)
        if start is not None:
            self.set(start)

    def __call__(self) -> datetime:
        return self._now

    def __repr__(self) -> str:
        return f"ManualClock({self._now.isoformat()})"

    def advance(self, duration: Any) -> None:
        """Moves on by seconds, a timedelta, or text like "30s"."""
        self._now += timedelta(microseconds=check_duration("duration", duration, zero=True))
        self.bell.ring()

    def set(self, to: datetime) -> None:
        """Moves to an aware datetime, also back."""
        micros(to)  # refuses a naive one
        self._now = to.astimezone(UTC)
        self.bell.ring()

    def __reduce__(self) -> Any:
        return ManualClock, (self._now,)


def memory_queue(
    clock: Clock | None = None,
    *,
    retention: Any = "7d",
    hard_retention: Any = None,
    delivery_delay: Any = None,
    message_ttl: Any = None,
    **group_settings: Any,
) -> Queue:
    """A queue in memory, with a dead-letter queue in memory. Settings as for :meth:`spark_mq.Queue.create`.

        >>> queue = memory_queue(ManualClock(), max_delivery_attempts=1)
        >>> _ = queue.publish("poison")
        >>> _ = queue.group().lease("worker-1").nack()
        >>> queue.sweep().routed
        1
        >>> queue.dead_letters.group().lease("worker-1").messages[0].value
        b'poison'

    ``clock`` gives the time of commits too, so that retention follows it.
    """
    settings = QueueSettings.checked(
        GroupSettings.checked(**group_settings),
        retention=retention,
        hard_retention=hard_retention,
        delivery_delay=delivery_delay,
        message_ttl=message_ttl,
    )
    ticking = clock or system_clock
    dead_letters = Queue(
        "memory/dead_letters",
        QueueSettings.of_dead_letters("memory/dead_letters"),
        MemoryLog(ticking),
        MemoryLeases(ticking),
        clock=ticking,
    )
    return Queue("memory", settings, MemoryLog(ticking), MemoryLeases(ticking), clock=ticking, dead_letters=dead_letters)


class MemoryFiles(delta.Files):
    """The files under a root that exists in memory only. They are Parquet there too: reading takes the same way as from disk."""

    def __init__(self) -> None:
        super().__init__("memory")
        self._held: dict[str, bytes] = {}

    def open(self, path: str) -> Any:
        return pa.BufferReader(self.read(path))

    def read(self, path: str) -> bytes:
        try:
            return self._held[path]
        except KeyError:
            raise FileNotFoundError(path) from None

    def write(self, path: str, data: bytes) -> None:
        self._held[path] = data

    def delete(self, path: str) -> None:
        self._held.pop(path, None)

    def exists(self, path: str) -> bool:
        return path in self._held

    def ages(self, folder: str) -> dict[str, float]:
        return {path: 0.0 for path in self._held if path.rpartition("/")[0] == folder}


class MemoryLog(MessageStore):
    """The twin of :class:`~spark_mq.storage.message_table.MessageTable`: the same sequences, marks and files, no Delta table."""

    def __init__(self, clock: Clock) -> None:
        self.path = "memory/messages"
        self.files = MemoryFiles()
        self.bell = Notifier()
        self._clock = clock
        self._lock = threading.Lock()
        self._index = MessageIndex(version=0)  # as if version 0 had made the table
        self._active: set[str] = set()
        self._numbers: dict[str, tuple[int, PublishReceipt]] = {}  # app -> its latest mark

    def commit(
        self,
        written: Iterable[WrittenFile],
        *,
        mark: tuple[str, int] | None = None,
        note: Mapping[str, Any] | None = None,
    ) -> PublishReceipt:
        with self._lock:
            if mark is not None:
                check_mark(self.last_number(mark[0]), mark)
            version, at = self._index.version + 1, micros(self._clock())
            files, ordinal = [], 0
            for file in written:
                times = read_delivery_times(self.files, file.path) if file.timed else None
                files.append(DataFile(sequence(version, ordinal), file.rows, file.path, file.size, at, times))
                ordinal += file.rows
            self._index.extend(files, version)
            self._active.update(file.path for file in files)
            receipt = PublishReceipt(version, range(sequence(version, 0), sequence(version, ordinal)))
            if mark is not None:
                self._numbers[mark[0]] = (mark[1], receipt)
        self.bell.ring()
        return receipt

    def last_number(self, app: str) -> int | None:
        return self._numbers[app][0] if app in self._numbers else None

    def receipt(self, app: str, number: int) -> PublishReceipt | None:
        last, receipt = self._numbers.get(app, (None, None))
        return receipt if last == number else None

    def index(self, reach: int | None = None) -> MessageIndex:
        return self._index

    def known(self) -> MessageIndex:
        return self._index

    def drop(self, horizon: int) -> int:
        with self._lock:
            gone = {file.path for file in self._index.files if file.last <= horizon} & self._active
            if gone:
                self._active -= gone
                self._index.extend((), self._index.version + 1)
            for path in gone:
                self.files.delete(path)
            return len(gone)


class MemoryLeases:
    """The twin of :class:`~spark_mq.storage.ledger_table.LedgerTable`: optimistic commits on ledgers in a dict.

    ``notes``: what each commit said it did, oldest first; the audit trail that DESCRIBE HISTORY shows of a Delta table. ``events``: what
    happened in each, by group.
    """

    def __init__(self, clock: Clock = system_clock) -> None:
        self.bell = Notifier()
        self._clock = clock
        self.notes: list[dict[str, Any]] = []
        self.events: list[tuple[str, Sequence[Event]]] = []
        self._doors: dict[str, FairLock] = {}
        self.pace, self.given_up = 0.0, dict[str, int]()
        self._lock = threading.Lock()
        self._ledgers: dict[str, Ledger] = {}
        self._changed: dict[str, int] = {}  # the version that changed a group last
        self._marks: dict[str, tuple[int, int]] = {}  # app -> its number, the version that set it

    def door(self, group: str) -> FairLock:
        return self._doors.setdefault(group, FairLock())

    def read(self, group: str, *, blind: bool = False) -> LedgerSnapshot:
        with self._lock:
            return LedgerSnapshot(group, None if blind else self._ledgers.get(group), len(self.notes))

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
        with self._lock:
            latest = len(self.notes)
            if (latest if whole_table else self._changed.get(stored.group, 0)) > stored.token:
                raise CommitConflict(f"group {stored.group} has changed since it was read")
            if mark is not None and self._marks.get(mark[0], (0, 0))[1] > stored.token:
                raise CommitConflict(f"{mark[0]} has been marked since")
            self.notes.append({"operation_id": operation_id, "committed_at": micros(self._clock()), **note})
            if ledger is None:
                del self._ledgers[stored.group]
            else:
                self._ledgers[stored.group] = Ledger(ledger.head, ledger.ranges)
            self.events.append((stored.group, () if ledger is None else ledger.events))
            self._changed[stored.group] = latest + 1
            if mark is not None:
                self._marks[mark[0]] = (mark[1], latest + 1)

    def mark(self, stored: LedgerSnapshot, app: str) -> int | None:
        with self._lock:
            number, version = self._marks.get(app, (None, 0))
            if version > stored.token:
                raise CommitConflict(f"{app} has been marked since")
            return number

    # No lines: there is one process, and its threads stand in line at the door.

    def line(self, name: str) -> tuple[int, int]:
        return 0, 0

    def look(self) -> bool:
        return True

    def take_ticket(self, name: str) -> int | None:
        return None

    def leave_line(self, name: str, ticket: int) -> None: ...

    def groups(self) -> list[str]:
        with self._lock:
            return sorted(name for name in self._ledgers if not name.startswith(RESERVED_PREFIX))

    def version(self) -> int:
        return len(self.notes)

    def commits(self, first: int, last: int) -> Iterator[LedgerCommit]:
        for version in range(max(1, first), min(last, len(self.notes)) + 1):
            note, (group, events) = self.notes[version - 1], self.events[version - 1]
            rows = to_rows(group, Ledger(LedgerHeader(), None, events))
            yield LedgerCommit(version, note["committed_at"], group, note.get("operation"), note["operation_id"], rows)
