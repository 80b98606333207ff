"""The ledger of one consumer group: read it, change it, and administer the group."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from spark_mq.errors import CorruptLog, GroupNotFound
from spark_mq.ledger import acquire as acquiring
from spark_mq.ledger import admin
from spark_mq.ledger import settle as settling
from spark_mq.ledger.commit_info import settle_note
from spark_mq.ledger.intervals import from_sequences
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LEASED, Ledger, LedgerHeader
from spark_mq.ledger.settings import GroupSettings
from spark_mq.ledger.settle import SettleCommand, SettleOutcome
from spark_mq.ledger.stats import GroupStats, stats_of
from spark_mq.ledger.transitions import fold
from spark_mq.storage.ledger_store import LedgerSnapshot, LedgerStore
from spark_mq.storage.ledger_table import HORIZON
from spark_mq.storage.message_store import MessageStore
from spark_mq.storage.update import DROP_GROUP, Priority, Update, update_ledger
from spark_mq.util.call_batcher import CallBatcher
from spark_mq.util.clock import Clock
from spark_mq.util.validation import check_choice, micros, nearest

__all__ = ["GroupLedger", "GroupView", "SettleBatcher", "read_horizon"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
StartPosition = str | int | datetime
SettleBatcher = CallBatcher[Sequence[SettleCommand], list[SettleOutcome]]
"""Makes one commit of the settles of several threads."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as one update sees it: the snapshot, its ledger and settings, and the time."""

    snapshot: LedgerSnapshot
    ledger: Ledger
    settings: GroupSettings
    now: int


class GroupLedger:
    """The ledger of one group, with what its changes need. Thread-safe.

    Parameters
    ----------
    name
        The name of the group.
    ledgers, messages
        The stores of the queue.
    clock
        The clock of the queue.
    defaults
        The settings of a group that does not exist yet.
    queue_path
        The path of the queue, for messages to people.
    start
        Where the group starts if it does not exist yet.
    hard_limit
        Whether the queue may drop unsettled messages.
    """

    def __init__(
        self,
        name: str,
        ledgers: LedgerStore,
        messages: MessageStore,
        clock: Clock,
        defaults: GroupSettings,
        *,
        queue_path: str,
        start: StartPosition = "earliest",
        hard_limit: bool = False,
    ) -> None:
        self.name = name
        self.ledgers = ledgers
        self.messages = messages
        self.clock = clock
        self.defaults = defaults
        self.queue_path = queue_path
        self.start = start
        self.hard_limit = hard_limit
        self.batcher: SettleBatcher = CallBatcher(self.settle_batch)
        """The context shares it between the objects of one group."""
        self.readable_files: set[str] = set()
        """Data files whose footer was read without an error. The context shares it."""
        self.last_settings = defaults
        """The settings as last read, for logs."""
        self._created = False

    def __repr__(self) -> str:
        return f"ConsumerGroup({self.queue_path!r}, {self.name!r})"

    # -- read

    def now(self) -> int:
        """Return the clock's time in microseconds."""
        return micros(self.clock())

    def snapshot(self) -> LedgerSnapshot:
        """Read the ledger as it is stored."""
        return self.ledgers.read(self.name)

    def require(self, snapshot: LedgerSnapshot) -> Ledger:
        """Return the ledger of a snapshot. Raises GroupNotFound."""
        if snapshot.ledger is None:
            raise GroupNotFound(
                f"there is no consumer group {self.name!r}; it is made by its first lease",
                group=self.name,
            )
        return snapshot.ledger

    def settings_in(self, snapshot: LedgerSnapshot) -> GroupSettings:
        """Return the settings in a snapshot, or the defaults if there is no group."""
        if snapshot.ledger is None:
            return self.defaults
        self.last_settings = GroupSettings.stored(snapshot.ledger.head.settings)
        return self.last_settings

    def view(self, snapshot: LedgerSnapshot) -> GroupView:
        """Return a snapshot with its settings and the time. Raises GroupNotFound."""
        return GroupView(snapshot, self.require(snapshot), self.settings_in(snapshot), micros(self.clock()))

    def exists(self) -> bool:
        """Return whether the group has been created."""
        return self.snapshot().ledger is not None

    def settings(self) -> GroupSettings:
        """Return the settings as they are now."""
        return self.settings_in(self.snapshot())

    def ledger_in(self, snapshot: LedgerSnapshot) -> Ledger:
        """Return the ledger of a snapshot, or an empty one if there is no group."""
        if snapshot.ledger is not None:
            return snapshot.ledger
        return Ledger(LedgerHeader(floor=read_horizon(self.ledgers)))

    def current(self) -> Ledger:
        """Return the ledger with expired leases folded, or that of a new group."""
        snapshot = self.snapshot()
        return fold(self.ledger_in(snapshot), self.now(), self.settings_in(snapshot))

    def stats(self) -> GroupStats:
        """Count the messages of the group by state, without a commit."""
        snapshot, now = self.snapshot(), self.now()
        settings = self.settings_in(snapshot)
        ledger = fold(self.ledger_in(snapshot), now, settings)
        return stats_of(ledger, self.messages.index(), settings, now)

    def index_or_damage(self) -> tuple[MessageIndex, CorruptLog | None]:
        """Return the message index and the damage behind it, if there is any."""
        try:
            return self.messages.index(), None
        except CorruptLog as error:
            known = self.messages.known()
            if error.data["version"] is None or error.data["version"] <= known.version:
                raise
            return known, error

    # -- change

    def update(
        self,
        compute: Callable[[GroupView], Update[T]],
        *,
        txn: Callable[[T], tuple[str, int] | None] | None = None,
        priority: Priority = Priority.SETTLE,
        whole_table: bool = False,
    ) -> T:
        """Commit what `compute` makes of the group. See :func:`update_ledger`."""
        return update_ledger(
            self.ledgers,
            self.name,
            lambda snapshot: compute(self.view(snapshot)),
            txn=txn,
            priority=priority,
            whole_table=whole_table,
        )

    def settle(self, commands: Sequence[SettleCommand]) -> list[SettleOutcome]:
        """Run several settles in one commit, in order. Messages not held are in the outcomes."""
        return self.batcher.do(commands)

    def settle_batch(self, calls: Sequence[Sequence[SettleCommand]]) -> list[list[SettleOutcome] | Exception]:
        """Run the settles of several callers in one commit. Each caller gets its own error."""

        def compute(view: GroupView) -> Update[list[list[SettleOutcome] | Exception]]:
            keep = {command.lease_id for commands in calls for command in commands}
            ledger = fold(view.ledger, view.now, view.settings, keep)
            results: list[list[SettleOutcome] | Exception] = []
            done: list[tuple[SettleCommand, SettleOutcome]] = []
            for commands in calls:
                try:
                    ledger, outcomes = self._settle_all(ledger, view, commands)
                    results.append(outcomes)
                    done += zip(commands, outcomes, strict=True)
                except Exception as error:
                    if len(calls) == 1:
                        raise
                    results.append(error)
            changed = any(outcome.settled for _, outcome in done)
            info = settle_note([one for one, _ in done], [outcome for _, outcome in done])
            return ledger if changed else None, results, info

        return self.update(compute)

    def _settle_all(self, ledger: Ledger, view: GroupView, commands: Sequence[SettleCommand]) -> tuple[Ledger, list[SettleOutcome]]:
        # A caller that names later messages than this process knows may know more.
        named = (last for command in commands for _, last in command.intervals or ())
        index = self.messages.index(max([ledger.frontier, *named]))
        outcomes = []
        for command in commands:
            ledger, outcome = settling.settle(ledger, index, view.now, view.settings, command)
            outcomes.append(outcome)
        return ledger, outcomes

    def expire(self) -> int:
        """Fold expired leases now. Returns the number of messages that they held."""

        def compute(view: GroupView) -> Update[int]:
            after = fold(view.ledger, view.now, view.settings)
            after = acquiring.tidy(after, self.messages.index(), view.now)
            before, left = (one.count(one.is_state(LEASED)) for one in (view.ledger, after))
            return after, before - left, {"operation": "expire", "messages": before - left}

        return self.update(compute, priority=Priority.LEASE) if self.exists() else 0

    # -- the group itself

    def create_if_missing(self) -> None:
        """Create the group at its start position if it does not exist.

        The commit conflicts with every other commit, so no trim can interleave.
        """
        if not self._created and not self.exists():

            def compute(snapshot: LedgerSnapshot) -> Update[bool]:
                if snapshot.ledger is not None:
                    return None, False, {}
                index, damage = self.index_or_damage()
                if damage is not None and self.start != "earliest":
                    raise damage  # only the whole log can tell where that is
                floor = max(_position(index, self.start) - 1, read_horizon(self.ledgers))
                settled = index.count(0, floor)
                head = LedgerHeader(floor=floor, forgotten=settled, settings=asdict(self.defaults))
                return Ledger(head), True, {"operation": "create group"}

            if update_ledger(self.ledgers, self.name, compute, whole_table=True):
                self._warn_similar_name()
        self._created = True

    def _warn_similar_name(self) -> None:
        """Log the new group. Warn if its name looks misspelt. Numbered names are alike on purpose."""
        stem = _without_digits(self.name)
        others = (name for name in self.ledgers.groups() if _without_digits(name) != stem)
        if alike := nearest(self.name, others):
            _log.warning(
                "group %r is made in %s, at %s: is %r meant, which is there? If so, drop_group(%r)",
                self.name, self.queue_path, self.start, alike, self.name,
            )  # fmt: skip
        else:
            _log.info("group %r is made in %s, at %s", self.name, self.queue_path, self.start)

    def seek(self, target: StartPosition) -> None:
        """Move the group: all before `target` is skipped, all from there on is unread."""
        self.create_if_missing()

        def compute(view: GroupView) -> Update[None]:
            index = self.messages.index()
            lowest = read_horizon(self.ledgers) + 1
            # Not past the tail: that would skip messages that are not published yet.
            position = min(max(_position(index, target), lowest), index.tail + 1)
            after = admin.seek(view.ledger, index, position)
            return after, None, {"operation": "seek", "ranges": f"{position}-"}

        self.update(compute, whole_table=True)

    def configure(self, changes: Mapping[str, Any]) -> GroupSettings:
        """Change settings of the group and return all of them. Raises InvalidOption."""
        GroupSettings.checked(**changes)  # before the group is created
        self.create_if_missing()

        def compute(view: GroupView) -> Update[GroupSettings]:
            after = GroupSettings.checked(view.settings, **changes)
            info = {
                "operation": "configure",
                "settings": {name: getattr(after, name) for name in changes},
            }
            head = replace(view.ledger.head, settings=asdict(after))
            ledger = Ledger(head, view.ledger.ranges)
            return ledger if after != view.settings else None, after, info

        return self.update(compute)

    def unblock(self, to: str, sequences: Iterable[int] | None) -> int:
        """Decide about messages that block the group. Returns their number."""
        how = check_choice("to", to, (admin.RETRY, admin.ROUTE, admin.DROP))
        intervals = None if sequences is None else from_sequences(sequences)

        def compute(view: GroupView) -> Update[int]:
            ledger = fold(view.ledger, view.now, view.settings)
            index = self.messages.index(ledger.frontier)
            after, messages = admin.unblock(ledger, index, view.now, how, intervals)
            info = {"operation": f"unblock: {how}", "messages": messages}
            return after if messages else None, messages, info

        return self.update(compute)

    def drop(self) -> None:
        """Drop the group, also if its ledger is unreadable. Raises GroupNotFound."""

        def compute(_: LedgerSnapshot) -> Update[None]:
            if self.name not in self.ledgers.groups():
                raise GroupNotFound(f"there is no consumer group {self.name!r} to drop", group=self.name)
            return DROP_GROUP, None, {"operation": "drop group"}

        update_ledger(self.ledgers, self.name, compute, whole_table=True, replace=True)


def read_horizon(ledgers: LedgerStore) -> int:
    """Return the trim horizon: messages up to it may be gone. -1 before the first trim."""
    ledger = ledgers.read(HORIZON).ledger
    return -1 if ledger is None else ledger.head.floor


def _position(index: MessageIndex, start: StartPosition) -> int:
    if isinstance(start, datetime):
        return index.first_published_since(micros(start))
    if isinstance(start, str):
        return {"earliest": 0, "latest": index.tail + 1}[start]
    return start


def _without_digits(name: str) -> str:
    return re.sub(r"\d+", "0", name)
