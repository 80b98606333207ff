"""The in-memory twin as data: its content is taken out after each step, and put back before the
next.

Ledgers are kept once each (:class:`Book`), so that states are small, and equal ones are equal by
identity. All that product code asks of the twin goes over the tape of the operation that runs.
"""

from __future__ import annotations

import contextlib
import logging
import random
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow.parquet as pq

import spark_mq.maintenance.dead_letters
import spark_mq.operations.context
import spark_mq.parquet.writer
import spark_mq.storage.optimistic_commit
import spark_mq.streaming.source
from spark_mq import GroupSettings, Queue, QueueSettings
from spark_mq.ledger.breaker import Breaker
from spark_mq.ledger.message_index import DataFile, MessageIndex
from spark_mq.ledger.ranges import SETTLED, UNREAD, Ledger, Range
from spark_mq.operations.context import QueueContext
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.testing import ManualClock

from .explorer import EFFECT, FREE, READ, Tape
from .tables import MemoryLedgers, MemoryMessages, NoHistory

SECOND = 1_000_000
BEGIN = 1_000_000 * SECOND
MARGIN = 5 * SECOND
"""More than any clock_skew: a deadline that is past by less is not over yet."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_INSTANTS = ("expires_at", "available_at", "leased_at", "first_leased_at", "first_failed_at")


class Book:
    """A ledger, kept once: two with the same content are the same object.

    What it holds is read here by the world's own code.
    """

    def __init__(self, ledger: Ledger, rows: tuple[Range, ...]) -> None:
        self.ledger, self.rows, self.head = ledger, rows, ledger.head
        self._keys: dict[int, Hashable] = {}
        self._views: dict[tuple[int, ...], tuple[Range | None, ...]] = {}

    def view(self, messages: tuple[int, ...]) -> tuple[Range, ...]:
        """The row that each message lies in, or one of its own if it is unread or below the
        floor.
        """
        if messages not in self._views:
            self._views[messages] = tuple(self._row(m) for m in messages)
        return self._views[messages]

    def _row(self, m: int) -> Range:
        rows = [r for r in self.rows if r.first <= m <= r.last]
        below = m <= self.head.start_sequence
        assert len(rows) + below <= 1, (
            f"message {m:x} lies in {len(rows)} ranges, and {'below' if below else 'above'} the "
            "floor"
        )
        if below:
            return Range(m, m, SETTLED, 1)
        reach = self.rows[-1].last if self.rows else self.head.start_sequence
        assert rows or m > reach, f"message {m:x} is in no range, and not past the last one"
        return rows[0] if rows else unread(m)

    def key(self, now: int) -> Hashable:
        """What it holds, with instants counted from `now`.

        What is past counts only as alike or not.
        """
        if now not in self._keys:
            past: dict[int, int] = {}
            texts: dict[str, int] = {}

            def instant(at: int | None, margin: int) -> Hashable:
                return (
                    at
                    if at is None
                    else at - now
                    if at > now - margin
                    else (past.setdefault(at, len(past)),)
                )

            rows = tuple(
                (
                    r.first, r.last, r.state, r.lease_id, r.worker_id, r.lease_size,
                    r.delivery_count, r.failure_count, r.suspect, r.reason,
                    None if r.error is None else texts.setdefault(r.error, len(texts)),
                    *(instant(getattr(r, name), MARGIN if name == "expires_at" else 0)
                      for name in _INSTANTS),
                )
                for r in self.rows
            )  # fmt: skip
            head = self.head
            settings = tuple(sorted(head.settings.items(), key=lambda item: item[0]))
            self._keys[now] = (
                head.start_sequence,
                head.leases_without_fresh,
                breaker_key(head.breaker, now),
                tuple(sorted(head.counters.items())),
                head.skipped_intervals,
                settings,
                rows,
            )
        return self._keys[now]


def unread(m: int) -> Range:
    return Range(m, m, UNREAD, 1)


def breaker_key(breaker: Breaker, now: int) -> Hashable:
    """The breaker, with instants as seen from `now`; what is past is all alike."""
    return (
        breaker.failed,
        breaker.opened_at is not None,
        None if breaker.next_trial_at is None else max(0, breaker.next_trial_at - now),
        breaker.trial,
        breaker.failed_trials,
        breaker.paused_at is not None,
    )


class Log(NamedTuple):
    """What a message log holds."""

    files: tuple[DataFile, ...] = ()
    version: int = 0
    numbers: tuple[tuple[str, int], ...] = ()
    active: frozenset[str] = frozenset()
    letters: tuple[tuple[int, ...], ...] = ()
    """Of a dead-letter queue, by file: the messages whose letters it holds."""

    @property
    def messages(self) -> tuple[int, ...]:
        return tuple(f.first + n for f in self.files for n in range(f.rows))


class Store(NamedTuple):
    """All that is durable."""

    now: int
    books: tuple[tuple[str, Book], ...] = ()
    marks: tuple[tuple[str, tuple[int, int]], ...] = ()
    log: Log = Log()
    dead: Log = Log()
    checkpoints: tuple[Any, ...] = ()
    version: int = 0
    changed: tuple[tuple[str, int], ...] = ()
    dead_books: tuple[tuple[str, Book], ...] = ()
    dead_version: int = 0
    dead_changed: tuple[tuple[str, int], ...] = ()

    def book(self, group: str) -> Book | None:
        return dict(self.books).get(group)

    def view(self, group: str, messages: tuple[int, ...]) -> tuple[Range, ...]:
        book = self.book(group)
        return book.view(messages) if book else tuple(map(unread, messages))

    def dead_sequences(self) -> tuple[int, ...]:
        """The messages that the dead-letter queue holds, as often as it does."""
        return tuple(m for file in self.dead.letters for m in file)


class Clock:
    """The time of the state; an operation that is run again gets the same answers."""

    def __init__(self) -> None:
        self.now, self.tape = BEGIN, Tape((), False, ())

    def __call__(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.tape.call(FREE, lambda: self.now))


class _Taped:
    """A part of the storage seam, each call of which goes over the tape."""

    def __init__(self, rig: Rig, real: Any, reads: Iterable[str], effects: Iterable[str]) -> None:
        self._rig, self._real = rig, real
        self._kinds = dict.fromkeys(reads, READ) | dict.fromkeys(effects, EFFECT)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        kind = self._kinds.get(name)
        if kind is None:
            return value
        return lambda *args, **given: self._rig.tape.call(
            kind, lambda: _hashable(value(*args, **given))
        )


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Rig:
    """One queue over the twin, used for each step of each state.

    ``fine``: what is read may be out of date when it is written.
    """

    def __init__(
        self, settings: Mapping[str, Any], *, fine: bool = False, lanes: int = 0, **of_queue: Any
    ) -> None:
        self.fine = fine
        self.clock = Clock()
        stopped = ManualClock(EPOCH)
        self.log, self.dead_log = MemoryMessages(stopped, lanes), MemoryMessages(stopped)
        self.leases, self.dead_leases = MemoryLedgers(), MemoryLedgers()
        group = GroupSettings().changed(**{"retry_jitter": 0, **settings})
        self.settings = QueueSettings(group).changed(lanes=lanes, **of_queue)
        self._books: dict[Hashable, Book] = {}
        self._indexes: dict[Log, MessageIndex] = {}

    @property
    def tape(self) -> Tape:
        return self.clock.tape

    def queue(self) -> Queue:
        """A handle as a process has one: new for each run of an operation."""
        reads = ("index", "last_number") if self.fine else ("last_number",)

        def taped(log: MemoryMessages, leases: MemoryLedgers) -> tuple[_Taped, _Taped]:
            return (
                _Taped(self, log, reads, ("commit", "drop")),
                _Taped(self, leases, ("read", "txn_number", "groups"), ("write",)),
            )

        own = QueueSettings.for_dead_letters()
        dead = self._context("memory/dead_letters", own, *taped(self.dead_log, self.dead_leases))
        context = self._context("memory", self.settings, *taped(self.log, self.leases), dead)
        context.payloads.readable = _ALL
        return Queue(context)

    def _context(
        self, path: str, settings: QueueSettings, log: Any, leases: Any,
        dead: QueueContext | None = None,
    ) -> QueueContext:  # fmt: skip
        history: Any = NoHistory()
        return QueueContext(
            path, settings, log, leases, history=history, clock=self.clock, reopen=self._context,
            storage_options={}, open_dead_letters=lambda itself, **_: dead or itself,
        )  # fmt: skip

    def publish(self, *commits: Any) -> Log:
        """What the log holds once these have been published, one commit each."""
        self.clock.tape = Tape((), False, ())
        for messages in commits:
            Queue(self._context("memory", self.settings, self.log, self.leases)).publish(messages)
        return self._taken(self.log, Log())

    def load(self, store: Store, tape: Tape) -> None:
        self.clock.now, self.clock.tape = store.now, tape
        self._load(self.leases, store.books, store.version, store.changed)
        self._load(self.dead_leases, store.dead_books, store.dead_version, store.dead_changed)
        self.leases.txns = dict(store.marks)
        for log, held in ((self.log, store.log), (self.dead_log, store.dead)):
            if held not in self._indexes:
                self._indexes[held] = MessageIndex(held.files, held.version, lanes=log.lanes)
            log.held_index, log.active = self._indexes[held], set(held.active)
            log.numbers = dict(held.numbers)

    @staticmethod
    def _load(leases: MemoryLedgers, books: Any, version: int, changed: Any) -> None:
        leases.ledgers = {group: book.ledger for group, book in books}
        leases.changed, leases.latest = dict(changed), version

    def save(self, store: Store) -> Store:
        """What is durable now; ``checkpoints`` as they were."""
        marks = self.leases.txns
        if not self.fine:  # nobody holds anything that may be out of date
            marks = {app: (number, 0) for app, (number, _) in marks.items()}
        store = store._replace(
            books=self._saved(self.leases, store.books), log=self._taken(self.log, store.log),
            dead_books=self._saved(self.dead_leases, store.dead_books),
            dead=self._taken(self.dead_log, store.dead), marks=tuple(sorted(marks.items())),
        )  # fmt: skip
        if not self.fine:
            return store
        return store._replace(
            version=self.leases.latest, changed=tuple(sorted(self.leases.changed.items())),
            dead_version=self.dead_leases.latest,
            dead_changed=tuple(sorted(self.dead_leases.changed.items())),
        )  # fmt: skip

    def _saved(
        self, leases: MemoryLedgers, before: tuple[tuple[str, Book], ...]
    ) -> tuple[tuple[str, Book], ...]:
        known = dict(before)
        books = []
        for group, ledger in sorted(leases.ledgers.items()):
            book = known.get(group)
            books.append(
                (group, book if book is not None and book.ledger is ledger else self.book(ledger))
            )
        return tuple(books)

    def book(self, ledger: Ledger) -> Book:
        rows, head = tuple(ledger), ledger.head
        key = (
            head.start_sequence, head.settled_count, head.leases_without_fresh, head.breaker,
            tuple(sorted(head.counters.items())),
            tuple(sorted(head.settings.items(), key=lambda item: item[0])), head.skipped_intervals,
            head.log_fingerprints, rows,
        )  # fmt: skip
        if key not in self._books:
            self._books[key] = Book(ledger, rows)
        return self._books[key]

    def _taken(self, log: MemoryMessages, before: Log) -> Log:
        files = tuple(log.held_index.files)
        letters = before.letters
        if log is self.dead_log:
            letters += tuple(self._letters(file.path) for file in files[len(letters) :])
        numbers = tuple(sorted(log.numbers.items()))
        held = Log(files, log.held_index.version, numbers, frozenset(log.active), letters)
        if held == before:
            return before
        self._indexes.pop(before, None)  # it has grown
        return held

    def _letters(self, path: str) -> tuple[int, ...]:
        headers = pq.read_table(self.dead_log.files.open(path), columns=["headers"])[
            "headers"
        ].to_pylist()
        return tuple(int(dict(one)["spark_mq.sequence"]) for one in headers)


class _All(set):  # type: ignore[type-arg]
    """All files are readable here: that they are is looked at elsewhere, and costs a Parquet footer
    a step.
    """

    def __contains__(self, path: object) -> bool:
        return True


_ALL = _All()


# -- what would differ from run to run


class Ids:
    """Ids that name who drew them, the same in each run of an operation."""

    def __init__(self) -> None:
        self.start(0, 0)

    def start(self, who: int, drawn: int) -> None:
        self.who, self.drawn = who, drawn

    def uuid4(self) -> uuid.UUID:
        self.drawn += 1
        return uuid.UUID(int=(self.who << 64) + self.drawn)


IDS = Ids()


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """While the block runs, ids are those of :data:`IDS`, nobody waits after a lost race, and
    nothing is logged.
    """
    made = SimpleNamespace(uuid4=IDS.uuid4, UUID=uuid.UUID, uuid5=uuid.uuid5)
    some = SimpleNamespace(uuid4=lambda: uuid.UUID(int=0))
    still = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None)
    patches: list[tuple[Any, str, Any]] = [
        *((module, "uuid", made) for module in (spark_mq.streaming.source,
                                                spark_mq.operations.context,
                                                spark_mq.maintenance.dead_letters,
                                                spark_mq.parquet.writer)),
        (spark_mq.storage.optimistic_commit, "uuid", some),
        (spark_mq.storage.optimistic_commit, "time", still),
    ]  # fmt: skip
    logger = logging.getLogger("spark_mq")
    with contextlib.ExitStack() as stack:
        for module, name, value in patches:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        level, state = logger.level, random.getstate()
        stack.callback(logger.setLevel, level)
        stack.callback(random.setstate, state)
        logger.setLevel(logging.CRITICAL + 1)
        random.seed(0)
        yield


def stored_key(value: Any, store: Store) -> Hashable:
    """An answer on a tape as part of a state's key."""
    if isinstance(value, LedgerSnapshot):
        marked = tuple(app for app, (_, version) in store.marks if version > value.token)
        known = value.ledger is not None and ledger_key(value.ledger, store.now)
        stale = [
            (dict(changed).get(value.group, 0) > value.token, version > value.token)
            for changed, version in (
                (store.changed, store.version),
                (store.dead_changed, store.dead_version),
            )
        ]
        return value.group, known, tuple(stale), marked
    if isinstance(value, int) and not isinstance(value, bool) and abs(value - BEGIN) < BEGIN // 2:
        return ("at", value - store.now)
    if isinstance(value, MessageIndex):
        return len(value.files)
    return value if isinstance(value, Hashable) else repr(value)


def ledger_key(ledger: Ledger, now: int) -> Hashable:
    book = getattr(ledger, "_book", None)
    if book is None:
        book = ledger._book = Book(ledger, tuple(ledger))  # type: ignore[attr-defined]
    return book.key(now)


def log_key(log: Log) -> Hashable:
    return (
        tuple((f.first, f.rows) for f in log.files),
        tuple(app for app, _ in log.numbers),
        len(log.active),
    )
