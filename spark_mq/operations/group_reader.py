"""Read the ledger of one group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from spark_mq.errors import CorruptLog
from spark_mq.ledger.log_marks import agreed_up_to
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import Ledger, LedgerHeader
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.stats import GroupStats, compute_stats
from spark_mq.ledger.transitions import expire_leases
from spark_mq.operations.group_names import group_not_found
from spark_mq.storage.ledger_store import LedgerSnapshot
from spark_mq.storage.ledger_table import HORIZON, LedgerTable
from spark_mq.storage.log_recovery import tables_disagree
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import Clock, to_micros
from spark_mq.util.process import ForkGuard

__all__ = ["GroupReader", "GroupView", "StartPosition", "read_horizon"]

StartPosition = str | int | datetime


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as one operation sees it, and the time."""

    snapshot: LedgerSnapshot
    ledger: Ledger
    settings: GroupSettings
    now: int
    # Leases that operations of this commit settle or extend. No settle expires them.
    held: frozenset[str] = frozenset()


class GroupReader:
    """Reads the ledger of one group, as stored or as of now. Thread-safe."""

    def __init__(
        self,
        name: str,
        ledgers: LedgerTable,
        messages: MessageTable,
        clock: Clock,
        defaults: GroupSettings,
        *,
        queue_path: str,
        queue_id: str = "",
        start: StartPosition = "earliest",
        create: bool = True,
        may_lose: Callable[[], bool] | None = None,
    ) -> None:
        self.name = name
        self._process = ForkGuard(f"group {name!r} of {queue_path}")
        self._ledgers = ledgers
        self._messages = messages
        self.clock = clock
        self.defaults = defaults
        self.queue_path = queue_path
        self.queue_id = queue_id
        self.start = start
        self.create = create  # otherwise operations raise GroupNotFound
        self._may_lose = may_lose
        self.last_settings = defaults  # as last read, for logs

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.queue_path!r}, {self.name!r})"

    @property
    def ledgers(self) -> LedgerTable:
        self._process.check()
        return self._ledgers

    @property
    def messages(self) -> MessageTable:
        self._process.check()
        return self._messages

    def now(self) -> int:
        """Return the clock's time in microseconds."""
        return to_micros(self.clock())

    def snapshot(self) -> LedgerSnapshot:
        return self.ledgers.read(self.name)

    def require(self, snapshot: LedgerSnapshot) -> Ledger:
        """Return the ledger of a snapshot. Raise GroupNotFound."""
        if snapshot.ledger is None:
            raise group_not_found(self.name, self.ledgers, self.queue_path)
        return snapshot.ledger

    def require_group(self) -> None:
        """Raise GroupNotFound if the group does not exist."""
        # What this process knows costs nothing, and a group is rarely dropped.
        if self.ledgers.read(self.name, look=None).ledger is None:
            self.require(self.snapshot())

    def settings_in(self, snapshot: LedgerSnapshot) -> GroupSettings:
        """Return the settings in a snapshot, or the defaults without a group."""
        if snapshot.ledger is None:
            return self.defaults
        self.last_settings = GroupSettings.from_stored(snapshot.ledger.head.settings)
        return self.last_settings

    def view(self, snapshot: LedgerSnapshot, held: frozenset[str] = frozenset()) -> GroupView:
        """Return a snapshot with its settings and the time. Raise GroupNotFound."""
        ledger, settings = self.require(snapshot), self.settings_in(snapshot)
        return GroupView(snapshot, ledger, settings, to_micros(self.clock()), held)

    def exists(self) -> bool:
        return self.snapshot().ledger is not None

    def settings(self) -> GroupSettings:
        return self.settings_in(self.snapshot())

    def ledger_in(self, snapshot: LedgerSnapshot) -> Ledger:
        """Return the ledger of a snapshot, or an empty one."""
        if snapshot.ledger is not None:
            return snapshot.ledger
        return Ledger(LedgerHeader(start_sequence=self.horizon()))

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
        return compute_stats(ledger, self.index_for(ledger), settings, now)

    def may_have_lost(self, ledger: Ledger) -> bool:
        """Return whether a trim may have dropped unsettled messages."""
        # This process may have missed a change of the settings, but its commits conflict with the
        # horizon, so that is known.
        set_to = self._may_lose is not None and self._may_lose()
        return set_to or self._ledgers.known_horizon() > ledger.head.start_sequence

    def horizon(self) -> int:
        """Return the trim horizon. An older ``leases/`` may not know it, but ``messages/`` does."""
        return max(read_horizon(self.ledgers), self.messages.trimmed)

    def index_for(self, ledger: Ledger, reach: int | None = None) -> MessageIndex:
        """Return the message index. Raise TablesDisagree if the ledger is of another log.

        With `reach`, the last sequence that the caller needs, an older known index may do.
        """
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
        if read_horizon(self._ledgers) < trimmed:
            reason = f"messages/ was trimmed up to {trimmed}, and leases/ does not know it"
            raise tables_disagree(messages.path, reason)

    def index_or_damage(
        self, ledger: Ledger, wanted: int | None = None
    ) -> tuple[MessageIndex, CorruptLog | None]:
        """Return the message index, and the damage after its end or None.

        With `wanted`, the number of messages of a lease, an older known index may do.
        """
        try:
            if wanted is None:
                return self.index_for(ledger), None
            index = self._messages.index_to_lease(ledger.end_sequence, wanted)
            self.check_same_log(ledger, index)
            return index, None
        except CorruptLog as error:
            known = self._messages.known()
            if error.data["version"] is None or error.data["version"] <= known.version:
                raise
            return known, error


def read_horizon(ledgers: LedgerTable) -> int:
    """Return the trim horizon: messages up to it may be gone. -1 before the first trim."""
    ledger = ledgers.read(HORIZON).ledger
    return -1 if ledger is None else ledger.head.start_sequence
