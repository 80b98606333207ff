"""A queue: a directory of Delta tables. Making one, opening one, publishing into one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_mq.delta import legacy as delta
from spark_mq.errors import DuplicatePublish, InvalidOption, NotAQueue, QueueNotFound
from spark_mq.group import ConsumerGroup
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.ledger.settle import SettleCommand, SettleOutcome
from spark_mq.maintenance import redrive as redrive_of
from spark_mq.maintenance import retention as retention_of
from spark_mq.message import check_time, to_publish
from spark_mq.operations import administer
from spark_mq.operations.create import check_root, leases_description, make
from spark_mq.operations.settle import settle_together
from spark_mq.operations.trace import Trace
from spark_mq.operations.trace import finished as finished_of
from spark_mq.operations.trace import trace as trace_of
from spark_mq.parquet.reader import verify_slice
from spark_mq.publisher import BufferedPublisher
from spark_mq.storage.ledger_store import LedgerStore
from spark_mq.storage.ledger_table import HORIZON, LedgerTable
from spark_mq.storage.message_store import MessageStore, PublishReceipt
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.call_batcher import CallBatcher
from spark_mq.util.validation import check_choice, check_count, check_name, micros

if TYPE_CHECKING:
    from spark_mq.maintenance.dead_letters import Copy
    from spark_mq.maintenance.sweep import SweepReport

__all__ = ["Queue"]

_log = logging.getLogger(__name__)

Clock = Callable[[], datetime]


def system_clock() -> datetime:
    """The time of this machine. A module's function, so that a queue with it can be pickled."""
    return datetime.now(UTC)


class Queue:
    """A queue on a file system or an object store. Make with :meth:`create`, get with :meth:`open`. Picklable, thread-safe.

    ``messages/`` (what was published), ``leases/`` (the groups' ledgers), ``commits/`` and ``history/`` (what the sweep writes down of
    both) and ``dead_letters/`` are Delta tables under ``path``.
    """

    def __init__(
        self,
        path: str,
        settings: QueueSettings,
        log: MessageStore,
        leases: LedgerStore,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        dead_letters: Queue | None = None,
    ) -> None:
        self.path = path
        self.settings = settings
        self.log = log
        self.leases = leases
        self.storage_options = dict(storage_options or {})
        self.clock = clock or system_clock
        self._readable: set[str] = set()
        self._lock = threading.Lock()
        self._combiners: dict[str, CallBatcher[Sequence[SettleCommand], list[SettleOutcome]]] = {}
        self._dead_letters = dead_letters

    def __repr__(self) -> str:
        return f"Queue({self.path!r})"

    def __reduce__(self) -> Any:
        if not isinstance(self.log, MessageTable):
            raise TypeError(f"{self!r} is kept in memory: it cannot be pickled, nor used by another process")
        return _reopen, (self.path, self.storage_options, None if self.clock is system_clock else self.clock)

    # -- making and opening

    @classmethod
    def create(
        cls,
        path: Any,
        *,
        visibility_timeout: Any = "60s",
        max_delivery_attempts: int | None = 5,
        retention: Any = "7d",
        hard_retention: Any = None,
        history_retention: Any = "30d",
        delivery_delay: Any = None,
        message_ttl: Any = None,
        dead_letter_path: Any = None,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        exist_ok: bool = False,
        **group_settings: Any,
    ) -> Queue:
        """Makes a queue, with its dead-letter queue; run again after a crash it finishes what it began.

        ``visibility_timeout`` of a lease; ``max_delivery_attempts``: deliveries of a message until it is dead (None: no
        limit); ``retention``: how long messages are kept once every group has settled them; ``hard_retention``: how long at
        most, settled or not: a group that loses messages so is told (DataLossError); ``delivery_delay``, ``message_ttl``: the deliver_at
        and
        expires_at, counted from the publish, of messages that spark_mq publishes without their own (other Delta writers set these columns
        themselves; dead letters and what is redriven get none). Further defaults for groups:
        retry policy, limits and caps, see :class:`~spark_mq.GroupSettings`.
        ``dead_letter_path``: a queue of your own for the dead letters; default ``dead_letters/`` inside. Raises QueueExists
        unless ``exist_ok``.
        """
        group = GroupSettings.checked(visibility_timeout=visibility_timeout, max_delivery_attempts=max_delivery_attempts, **group_settings)
        settings = QueueSettings.checked(
            group,
            retention=retention,
            hard_retention=hard_retention,
            history_retention=history_retention,
            delivery_delay=delivery_delay,
            message_ttl=message_ttl,
            dead_letter_path=None if dead_letter_path is None else delta.absolute(dead_letter_path, "dead_letter_path"),
        )
        root = delta.absolute(path)
        if settings.dead_letter_path == root:
            raise InvalidOption(
                f"dead_letter_path={root!r} is the queue itself: give another queue, or leave it out",
                option="dead_letter_path",
                value=root,
            )
        make(root, settings, dict(storage_options or {}), exist_ok=exist_ok)
        queue = cls.open(root, storage_options=storage_options, clock=clock)
        if queue.settings != settings:
            _log.warning("the queue at %s is there already, with settings of its own: these stay (a group's: group.configure)", root)
        if queue.settings.dead_letter_path is None:
            _ = queue.dead_letters
        return queue

    @classmethod
    def open(cls, path: Any, *, storage_options: Mapping[str, str] | None = None, clock: Clock | None = None) -> Queue:
        """Opens a queue. ``clock``: () -> aware datetime, for tests.

        Raises QueueNotFound, NotAQueue (another kind of table is there, or a queue not completed), UnsupportedTable.
        """
        root = delta.absolute(path)
        options = dict(storage_options or {})
        log, leases = (
            MessageTable(delta.child(root, "messages"), options),
            LedgerTable(delta.child(root, "leases"), options),
        )
        table = log.open()
        if table is None:
            check_root(root, options)
            raise QueueNotFound(f"there is no queue at {root}; make it with Queue.create", path=root)
        settings = QueueSettings.from_json(table.metadata().description)
        if settings is None:
            raise NotAQueue(f"{log.path} is a Delta table, but not one of a queue made by Queue.create", path=root)
        states = delta.open_table(leases.path, options)
        if states is None:
            raise NotAQueue(f"the queue at {root} was never completed: run Queue.create again with the same settings", path=root)
        if states.metadata().description != leases_description(table):
            raise NotAQueue(
                f"leases/ at {root} belongs to another messages/ table: one of them was made anew. "
                "Remove both and create the queue again, or restore the one that was replaced",
                path=root,
            )
        return cls(root, settings, log, leases, storage_options=options, clock=clock)

    # -- publishing

    def publish(
        self,
        messages: Any,
        *,
        producer_id: str | None = None,
        producer_sequence: int | None = None,
        on_duplicate: str = "raise",
        deliver_at: datetime | timedelta | None = None,
    ) -> PublishReceipt:
        """Publishes bytes, str, :class:`Message`, a list of these, or a ``pyarrow.Table``, as one commit: all or nothing.

        ``deliver_at``: for messages that have none of their own, instead of the queue's ``delivery_delay``; they are not leased before. An
        aware datetime, or a timedelta from now.
        ``producer_id`` with ``producer_sequence`` makes it idempotent, across restarts and under races: the numbers of a producer, one a
        call, must increase (gaps are fine). Where that number or a higher one has landed before, nothing is published, and
        DuplicatePublish tells of the first call; with ``on_duplicate="skip"`` a receipt with ``duplicate=True`` does, see
        :class:`PublishReceipt`. Raises InvalidSchema, InvalidOption.
        """
        if (producer_id is None) != (producer_sequence is None):
            raise InvalidOption("producer_id and producer_sequence go together", option="producer_sequence", value=producer_sequence)
        skip = check_choice("on_duplicate", on_duplicate, ("raise", "skip")) == "skip"
        if skip and producer_id is None:
            raise InvalidOption(
                "on_duplicate='skip' needs a producer_id and a producer_sequence: without these no call is known to repeat another",
                option="on_duplicate",
                value=on_duplicate,
            )
        mark = None
        if producer_id is not None:
            mark = (
                producer_mark(producer_id),
                check_count("producer_sequence", producer_sequence, least=0, most=2**63 - 1),
            )
        now = self.now()
        times = self.settings.times(now)
        table = to_publish(
            messages, now, times if deliver_at is None else {**times, "deliver_at": check_time("deliver_at", deliver_at, now)}
        )
        if table.num_rows == 0:
            raise InvalidOption("there is nothing to publish: the list or table is empty", option="messages", value=0)
        try:
            return self.log.publish(table, mark=mark)
        except DuplicatePublish as error:
            # Only the latest number has a receipt: older ones would cost a look at the whole log.
            first = self.log.receipt(*mark) if mark is not None and error.data["last_sequence"] == mark[1] else None
            if skip:
                return replace(first or PublishReceipt(None, range(0)), duplicate=True)
            raise DuplicatePublish(str(error), **{**error.data, "receipt": first}) from None

    def publisher(
        self, *, max_messages: int = 1000, max_bytes: Any = "4m", max_age: Any = "100ms", retry_timeout: Any = "30s"
    ) -> BufferedPublisher:
        """A publisher of single messages, many to a commit: see :class:`~spark_mq.publisher.BufferedPublisher`. Close it after use.

        It commits once ``max_messages`` or ``max_bytes`` are there, the first of them is ``max_age`` old, or a flush asks for it.
        ``retry_timeout``: how long a commit that fails is tried again. Raises InvalidOption.
        """
        return BufferedPublisher(self, max_messages=max_messages, max_bytes=max_bytes, max_age=max_age, retry_timeout=retry_timeout)

    def last_producer_sequence(self, producer_id: str) -> int | None:
        """The last number that a producer has published, or None: where it goes on after a restart."""
        return self.log.last_number(producer_mark(producer_id))

    # -- looking

    def now(self) -> int:
        """The clock's time in microseconds."""
        return micros(self.clock())

    def group(self, name: str = "default", *, start: str | int | datetime = "earliest") -> ConsumerGroup:
        """A consumer group. It comes to be at its first lease, at ``start``: "earliest", "latest", a sequence or an instant.

        An instant is an aware datetime, or text with a zone like "2026-01-31T12:00:00Z".
        """
        return ConsumerGroup(self, name, start)

    def combiner(self, group: ConsumerGroup) -> CallBatcher[Sequence[SettleCommand], list[SettleOutcome]]:
        """What makes one commit of the settles of several threads in a group, through whichever of its objects."""
        with self._lock:
            if group.name not in self._combiners:
                self._combiners[group.name] = CallBatcher(partial(settle_together, group))
            return self._combiners[group.name]

    def groups(self) -> list[str]:
        """The names of the groups there are."""
        return self.leases.groups()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    def drop_group(self, name: str) -> None:
        """Drops a group with its ledger: its leases are lost, and it no longer holds back trims. Raises GroupNotFound."""
        administer.drop(self.group(name))

    def purge(self, name: str) -> int:
        """Drops every message published up to now, for all groups (they count as skipped). Returns how many files went.

        ``name``: the queue's name, to confirm it. Live leases are fenced. Raises InvalidOption for any other name.
        """
        return retention_of.purge(self, name)

    def horizon(self) -> int:
        """The trim horizon: all up to this sequence may be gone. -1 before the first trim."""
        ledger = self.leases.read(HORIZON).ledger
        return -1 if ledger is None else ledger.head.floor

    @property
    def dead_letters(self) -> Queue:
        """The dead-letter queue, itself a queue; made if it is not there."""
        if self._dead_letters is None:
            path = self.settings.dead_letter_path or delta.child(self.path, "dead_letters")
            try:
                self._dead_letters = Queue.open(path, storage_options=self.storage_options, clock=self.clock)
            except (QueueNotFound, NotAQueue):
                make(path, QueueSettings.of_dead_letters(path), self.storage_options, exist_ok=True)
                self._dead_letters = Queue.open(path, storage_options=self.storage_options, clock=self.clock)
        return self._dead_letters

    def sweep(self, copy: Copy | None = None) -> SweepReport:
        """The chores that keep a queue small, once: returns what was done. Needs no Spark; nothing is delivered later or twice without it.

        Expires leases, sends dead messages to the dead-letter queue, trims what every group has settled and the retention no longer keeps,
        writes down commits and history, and cleans the tables' logs. Every few minutes is right (``jobs/sweep.py`` runs it as a job): a
        queue that nobody sweeps grows, and its dead messages stay where they are. Safe to kill, to repeat, and to run twice at once.
        ``copy``: how dead letters are copied, see :func:`spark_mq.maintenance.dead_letters.route`. What fails keeps nothing else from
        being done; the
        first error is raised at the end.
        """
        from spark_mq.maintenance.sweep import sweep  # it knows queues

        return sweep(self, copy)

    def redrive(
        self, *, where: str | None = None, limit: int | None = None, dry_run: bool = False, rate: float | None = None
    ) -> redrive_of.RedriveResult:
        """Publishes dead letters of this queue into it again, with their id, key, value and own headers; each once, whatever crashes.

        ``where``: SQL over the columns of ``redrive.COLUMNS``, say ``"reason = 'rejected' AND error LIKE '%timeout%'"``; ``limit``: the
        first so many; ``dry_run``: only tells which; ``rate``: messages a second, at most. All groups see them again, as new
        messages: the header ``spark_mq.group`` names the one that they had failed in. Raises InvalidOption.
        """
        return redrive_of.redrive(self, where, limit, dry_run, rate)

    def trace(self, sequence: int) -> Trace:
        """One message's whole life over all groups: published, leased, nacked, acked, dead-lettered, when and by whom. ``print`` it.

        As far back as ``history/`` goes (``history_retention``). Raises InvalidOption for a sequence that no message has.
        """
        return trace_of(self, sequence)

    def finished(
        self,
        group: str = "default",
        *,
        first: int | None = None,
        last: int | None = None,
        outcome: str | None = None,
        payload: bool = False,
    ) -> pa.Table:
        """The finished messages of a group, a row each (``trace.FINISHED_SCHEMA``), in the order of sequence, as far as ``history/`` goes.

        ``first``, ``last``: only sequences from and to. ``outcome``: acked, dead_lettered, dropped, expired, skipped or lost. (A dead
        letter that went back ends as redriven, in no group: the dead-letter queue's trace tells it, and in the queue the message is there
        again, under a new sequence.) ``payload``: with message_id, key, value and headers, null where they have been trimmed. One
        that a seek made unread again counts by its last end. Raises InvalidOption; GroupNotFound for a group that never was.
        """
        return finished_of(self, group, (first, last), outcome=outcome, payload=payload)

    def stats(self) -> dict[str, Any]:
        """``published``: messages in the log since it began; ``tail``: the last sequence; ``groups``: stats of each by name."""
        index = self.log.index()
        return {
            "published": index.total,
            "tail": index.tail,
            "version": index.version,
            "horizon": self.horizon(),
            "groups": {name: self.group(name).stats() for name in self.groups()},
        }

    def check_slice(self, piece: FileSlice, rows: int, whole: bool) -> Iterable[tuple[FileSlice, str | None]]:
        """A slice of ``messages/`` in pieces, and why each cannot be read, or None. ``rows``: how many its file should have.

        By the file's footer, and good news is remembered, for files do not change; with `whole`, by all of its bytes.
        """
        if whole:
            self._readable.discard(piece.path)
        elif piece.path in self._readable:
            return [(piece, None)]
        found = list(verify_slice(self.log.files, piece, rows, whole=whole))
        if not whole and found[0][1] is None:
            self._readable.add(piece.path)
        return found


def producer_mark(producer_id: str) -> str:
    """The app id under which a producer's numbers are kept in ``messages/``."""
    return "spark_mq.producer:" + check_name("producer_id", producer_id)


def _reopen(path: str, options: Mapping[str, str], clock: Clock | None) -> Queue:
    return Queue.open(path, storage_options=options, clock=clock)
