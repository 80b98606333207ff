"""Hold a queue's stores, settings and clock, and the ledgers of its groups."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from spark_mq.delta.memory_files import is_in_memory
from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import CorruptLog, GroupNotFound, SparkMQError, TablesDisagree
from spark_mq.ledger.commands import KNOWN, Command, Needs, View
from spark_mq.ledger.log_fingerprints import agreed_up_to
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.owner_commands import Create, StartPosition
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.ledger.settings import GroupSettings, QueueSettings
from spark_mq.ledger.settle import Settle, SettleOutcome, SettlePart
from spark_mq.ledger.stats import GroupStats, compute_stats
from spark_mq.ledger.transitions import expire_leases
from spark_mq.ledger.walk import Held, held_ids
from spark_mq.operations.committer import GroupCommitter, QueueCommitter
from spark_mq.operations.payloads import FileChecks, PayloadFiles
from spark_mq.storage.archive_table import tables_disagree
from spark_mq.storage.history_table import HistoryTable
from spark_mq.storage.ledger_files import LedgerSnapshot
from spark_mq.storage.ledger_table import HORIZON, LedgerTable
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import Clock, system_clock, to_micros
from spark_mq.util.process import ForkGuard
from spark_mq.util.show import shell_command, show_some
from spark_mq.util.user import identify_worker
from spark_mq.util.validation import suggest

_log = logging.getLogger(__name__)

R = TypeVar("R")

MAX_COMPARED_GROUPS: Final = 100  # with more groups, no name is compared with theirs
_MAX_NAMED: Final = 10
_ALIKE: Final = 0.8  # how alike a misspelt name of a group is to the right one


class QueueContext:
    """The stores, settings and clock of one queue. Thread-safe."""

    def __init__(
        self,
        path: str,
        settings: QueueSettings,
        messages: MessageTable,
        ledgers: LedgerTable,
        *,
        history: HistoryTable,
        clock: Clock | None = None,
        storage_options: Mapping[str, str],
        open_dead_letters: Callable[..., Any],  # with `create`, or it may return None
        reopen: Callable[..., QueueContext],
    ) -> None:
        self.path = path
        self._settings = settings
        self._described: str | None = None
        self._process = ForkGuard(f"queue {path}")
        self._messages, self._ledgers, self.history = messages, ledgers, history
        self.clock = clock or system_clock
        self.storage_options = dict(storage_options)
        self.payloads = PayloadFiles(messages)
        self._open_dead_letters = open_dead_letters
        self._reopen = reopen
        self._dead_letters: QueueContext | None = None
        self.sinks: dict[str, QueueContext] = {}  # of groups, by the id of their messages
        self.committer = QueueCommitter(path, ledgers, self.group)
        self._committers: dict[str, GroupCommitter] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        if is_in_memory(self.path):
            raise TypeError(
                f"Queue({self.path!r}) is kept in memory: it cannot be pickled, nor used by "
                f"another process"
            )
        clock = None if self.clock is system_clock else self.clock
        return self._reopen, (self.path, self.storage_options, clock)

    def reopened(self) -> QueueContext:
        return self._reopen(self.path, self.storage_options, self.clock)

    @property
    def settings(self) -> QueueSettings:
        """Return the settings as of the last look at ``messages/``."""
        text = self._messages.description
        if text != self._described:
            self._settings = QueueSettings.from_json(text, self.path) or self._settings
            self._described = text
        return self._settings

    @property
    def messages(self) -> MessageTable:
        self._process.check()
        return self._messages

    @property
    def ledgers(self) -> LedgerTable:
        self._process.check()
        return self._ledgers

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    def now(self) -> int:
        return to_micros(self.clock())

    def horizon(self, *, refresh: bool = True) -> int:
        """Return the trim horizon. An older ``leases/`` may not know it, but ``messages/`` does."""
        return max(_read_horizon(self.ledgers, refresh=refresh), self.messages.trimmed)

    def held_ids(self, sequences: Collection[int]) -> Held:
        """Return which messages hold their dedup id. Looks once at ``leases/``."""
        groups, until = self.groups(), self.settings.dedup_until
        horizon, reach = self.horizon(refresh=False), max(sequences)
        read = [(group, self.ledgers.read(group.name, refresh=False).ledger) for group in groups]
        indexes = [(own, group.index_for(own, reach)) for group, own in read if own is not None]
        return held_ids(indexes, sequences, horizon=horizon, now=self.now(), until=until)

    def group(
        self, name: str, start: StartPosition = "earliest", *, create: bool = True
    ) -> GroupLedger:
        """Return the ledger of a group. All objects of one group share commits."""
        self._process.check()  # before the lock, which another thread of the parent may hold
        with self._lock:
            return GroupLedger(self, name, start, create=create, committers=self._committers)

    def groups(self) -> list[GroupLedger]:
        return [self.group(name) for name in self.ledgers.groups()]

    def check_tables(self) -> None:
        """Raise TablesDisagree if a table was restored alone. Other damage is not looked for."""
        try:
            index = self.messages.index()
            groups = self.groups()
        except TablesDisagree:
            raise
        except (SparkMQError, *STORE_ERRORS) as error:
            _log.debug("the tables of %s were not compared: %s", self.path, error)
            return
        for group in groups:
            try:
                ledger = group.ledger_in(group.snapshot())
            except (SparkMQError, *STORE_ERRORS):
                continue  # a damaged ledger does not stop the sweep of the others
            try:
                group.check_same_log(ledger, index)
            except TablesDisagree:  # or the index is older than its last lease
                index = self.messages.index()
                group.check_same_log(ledger, index)

    def dead_letters(self) -> QueueContext:
        """Return the dead-letter queue, which is created if it is missing."""
        if self._dead_letters is None:
            self._dead_letters = self._open_dead_letters(self, create=True)
        return self._dead_letters

    def existing_dead_letters(self) -> QueueContext | None:
        if self._dead_letters is None:
            self._dead_letters = self._open_dead_letters(self, create=False)
        return self._dead_letters


class GroupLedger:
    """The ledger of one group, as stored or as of now. Thread-safe."""

    def __init__(
        self,
        queue: QueueContext,
        name: str,
        start: StartPosition,
        *,
        create: bool,
        committers: dict[str, GroupCommitter],
    ) -> None:
        self.queue, self.name, self.start = queue, name, start
        self.create = create  # otherwise operations raise GroupNotFound
        self.queue_path, self.payloads = queue.path, queue.payloads
        self._ledgers, self._messages = queue._ledgers, queue._messages
        self.defaults = queue.settings.group
        self._created = False
        if name not in committers:  # all handles of the group share it
            committers[name] = GroupCommitter(self, queue.committer, self.defaults)
        self.committer = committers[name]

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.queue_path!r}, {self.name!r})"

    @property
    def ledgers(self) -> LedgerTable:
        return self.queue.ledgers

    @property
    def messages(self) -> MessageTable:
        return self.queue.messages

    def now(self) -> int:
        return self.queue.now()

    # -- changes

    def run(self, command: Command[R], checks: FileChecks | None = None) -> R:
        """Run a command in a commit that others may share. Return its result."""
        (result,) = self.committer.run([command], checks)
        if isinstance(result, Exception):
            raise result
        value: R = result
        return value

    def settle(self, parts: Sequence[SettlePart]) -> list[SettleOutcome]:
        """Settle in one commit, in order. Messages that are not held are in the outcomes."""
        return self.run(Settle(tuple(parts)))

    def create_if_missing(self) -> None:
        """Create the group, or raise GroupNotFound if this handle must not create it."""
        if not self.create:
            self.require_group()
            return
        # Over a store a look costs a request. If this is out of date, the next change looks.
        known = self._created or self.ledgers.read(self.name, refresh=None).ledger is not None
        if not known and self.run(Create(self.start, self.defaults)):
            self._warn_similar_name()
        self._created = True

    def _warn_similar_name(self) -> None:
        """Log the new group. Warn if its name looks misspelt."""
        if alike := _misspelt(self.name, _compared_groups(self.ledgers)):
            _log.warning(
                "group %r is created in %s, at %s. Its name is like that of group %r. If it is "
                "misspelt, remove it by queue.drop_group(%r) or %s",
                self.name, self.queue_path, self.start, alike, self.name,
                shell_command("group", "drop", self.name, "-q", self.queue_path),
            )  # fmt: skip
        else:
            _log.info("group %r is created in %s, at %s", self.name, self.queue_path, self.start)

    # -- what a command may know

    def view(
        self,
        command: Command[Any],
        snapshot: LedgerSnapshot,
        held: frozenset[str] = frozenset(),
        checks: FileChecks | None = None,
    ) -> View:
        """Return what a command may know of a snapshot. Raise GroupNotFound."""
        exists = snapshot.ledger is not None
        if command.without_ledger:
            exists = self.name in self._ledgers.groups()
        if not (exists or command.creates):
            raise group_not_found(self.queue, self.name)
        needs, ledger = command.needs, snapshot.ledger
        horizon = self._horizon_for(needs, ledger)
        if ledger is None:
            ledger = Ledger(LedgerHeader(start_sequence=horizon, group=self.name))
        index, damage = self._index_for(needs, ledger, horizon)
        settings = self.settings_in(snapshot)
        files = (checks or self.payloads).problems(settings.filter)
        return View(
            ledger,
            settings,
            self.now(),
            index,
            self.name,
            damage,
            horizon,
            {app: self._ledgers.txn_number(snapshot, app) for app in needs.apps},
            held,
            exists,
            snapshot.looked,
            uuid.uuid4().hex if needs.new_id else "",
            files,
        )

    def _horizon_for(self, needs: Needs, ledger: Ledger | None) -> int:
        if needs.horizon == "always":
            return self.queue.horizon()
        if not needs.horizon or ledger is None:
            return -1
        # This process may have missed a change of the settings, but its commits conflict with the
        # horizon, so that is known.
        settings = self.queue.settings
        may_lose = settings.hard_retention is not None or settings.group_expiry is not None
        if not may_lose and self._ledgers.known_horizon() <= ledger.head.start_sequence:
            return -1
        return _read_horizon(self._ledgers)

    def _index_for(
        self, needs: Needs, ledger: Ledger, horizon: int
    ) -> tuple[MessageIndex, CorruptLog | None]:
        """Return the index that a command needs, and the damage after its end or None."""
        known = self._messages.known
        if needs.reach == KNOWN and horizon <= ledger.head.start_sequence:
            return known(), None
        # The newest publish may replace a message, so each lease looks at it.
        newest = needs.damaged and self.queue._settings.dedup_replaces
        try:
            if needs.unread is not None and not newest and horizon <= ledger.head.start_sequence:
                index = self._messages.index_to_lease(ledger.end_sequence, needs.unread)
                self.check_same_log(ledger, index)
                return index, None
            reach = None if newest or horizon > ledger.head.start_sequence else needs.reach
            return self.index_for(ledger, reach), None
        except CorruptLog as error:
            if not needs.damaged:
                raise
            if error.data["version"] is None or error.data["version"] <= known().version:
                raise
            return known(), error

    # -- reading

    def snapshot(self) -> LedgerSnapshot:
        return self.ledgers.read(self.name)

    def look_at_both(self) -> LedgerSnapshot:
        """Return the ledger. Over a store, look at the messages meanwhile."""
        files = self.messages.files
        if files.is_local:
            return self.snapshot()
        looks: Sequence[Callable[[], Any]] = (self.snapshot, self._look_at_messages)
        snapshot: LedgerSnapshot = files.for_each(looks, lambda look: look())[0]
        return snapshot

    def _look_at_messages(self) -> None:
        with contextlib.suppress(CorruptLog):  # what needs the messages meets it again
            self.messages.index()

    def require(self, snapshot: LedgerSnapshot) -> Ledger:
        if snapshot.ledger is None:
            raise group_not_found(self.queue, self.name)
        return snapshot.ledger

    def require_group(self) -> None:
        # What this process knows costs nothing, and a group is rarely dropped.
        if self.ledgers.read(self.name, refresh=None).ledger is None:
            self.require(self.snapshot())

    def settings_in(self, snapshot: LedgerSnapshot) -> GroupSettings:
        """Return the settings in a snapshot, or the defaults without a group."""
        if snapshot.ledger is None:
            return self.defaults
        stored = snapshot.ledger.head.settings
        read = self.committer.read_settings
        if read[0] is not stored:
            read = self.committer.read_settings = stored, GroupSettings.decoded(stored)
        return read[1]

    @property
    def last_settings(self) -> GroupSettings:
        return self.committer.read_settings[1]

    def exists(self) -> bool:
        return self.snapshot().ledger is not None

    def settings(self) -> GroupSettings:
        return self.settings_in(self.snapshot())

    def ledger_in(self, snapshot: LedgerSnapshot) -> Ledger:
        """Return the ledger of a snapshot, or an empty one."""
        if snapshot.ledger is not None:
            return snapshot.ledger
        return Ledger(LedgerHeader(start_sequence=self.queue.horizon(), group=self.name))

    def current(self) -> Ledger:
        """Return the ledger with late leases expired, or an empty one."""
        snapshot = self.snapshot()
        return expire_leases(self.ledger_in(snapshot), self.now(), self.settings_in(snapshot))

    def stats(self, *, required: bool = False) -> GroupStats:
        """Count the messages by state. If `required`, raise GroupNotFound for a missing group."""
        snapshot, now = self.snapshot(), self.now()
        if required:
            self.require(snapshot)
        settings = self.settings_in(snapshot)
        ledger = expire_leases(self.ledger_in(snapshot), now, settings)
        return compute_stats(ledger, self.index_for(ledger), settings, now, identify_worker(""))

    def index_for(self, ledger: Ledger, reach: int | None = None) -> MessageIndex:
        """Return the index, or an older one that contains `reach`. Raise TablesDisagree."""
        index = self._messages.index(None if reach is None else max(reach, ledger.end_sequence))
        self.check_same_log(ledger, index)
        return index

    def check_same_log(self, ledger: Ledger, index: MessageIndex) -> None:
        """Raise TablesDisagree if a ledger is of another log than an index."""
        agreed, messages = agreed_up_to(ledger, index), self._messages
        if agreed is not None:
            reason = f"the ledger of group {self.name!r} has messages after {agreed} that "
            raise tables_disagree(messages.path, reason + "messages/ lacks, or that differ there")
        trimmed = messages.trimmed
        if ledger.head.start_sequence >= trimmed or self._ledgers.known_horizon() >= trimmed:
            return
        if _read_horizon(self._ledgers) < trimmed:
            reason = f"messages/ was trimmed up to {trimmed}, and leases/ does not know it"
            raise tables_disagree(messages.path, reason)


def _read_horizon(ledgers: LedgerTable, *, refresh: bool = True) -> int:
    """Return the trim horizon: messages up to it may be gone. -1 before the first trim."""
    ledger = ledgers.read(HORIZON, refresh=refresh).ledger
    return -1 if ledger is None else ledger.head.start_sequence


def _compared_groups(ledgers: LedgerTable) -> Sequence[str]:
    """Return all groups, or none of very many, whose names nobody types."""
    return ledgers.groups() if ledgers.group_count() <= MAX_COMPARED_GROUPS else []


def _misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was perhaps meant. Numbered names are alike on purpose."""
    stem = _without_digits(name)
    return suggest(name, (other for other in known if _without_digits(other) != stem), _ALIKE)


def _without_digits(name: str) -> str:
    return re.sub(r"[-_.]?\d+", "", name)


def group_not_found(queue: QueueContext, name: str) -> GroupNotFound:
    known = _compared_groups(queue.ledgers)
    nearest = _misspelt(name, known)
    command = shell_command("group", "configure", name, "-q", queue.path, "--create")
    return GroupNotFound(
        f"there is no consumer group {name!r} in {queue.path}. "
        + (f"Did you mean {nearest!r}? " if nearest else "")
        + (f"The queue has {show_some(known, _MAX_NAMED)}. " if known else "")
        + f"The first lease, group.ensure() or {command} creates a group",
        group=name,
    )
