"""Hold a queue's stores, settings, clock and dead letters."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from spark_mq.delta.memory_files import is_in_memory
from spark_mq.delta.store_errors import STORE_ERRORS
from spark_mq.errors import SparkMQError, TablesDisagree
from spark_mq.ledger.settings import QueueSettings
from spark_mq.operations.committer import GroupCommitter
from spark_mq.operations.group_ledger import GroupLedger, StartPosition, read_horizon
from spark_mq.operations.payloads import PayloadFiles
from spark_mq.storage.history_table import HistoryTable
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import Clock, system_clock, to_micros
from spark_mq.util.process import ForkGuard
from spark_mq.util.recent import RecentDict

__all__ = ["QueueContext"]

_log = logging.getLogger(__name__)


_MARKS: Final = 100_000  # most groups that a trace remembers


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
        storage_options: Mapping[str, str] | None = None,
        open_dead_letters: Callable[[QueueContext], QueueContext],
        find_dead_letters: Callable[[QueueContext], QueueContext | None] | None = None,
        reopen: Callable[..., QueueContext] | None = None,
    ) -> None:
        self.path = path
        self._settings = settings
        self._described: str | None = None
        self._process = ForkGuard(f"queue {path}")
        self._messages = messages
        self._ledgers = ledgers
        self.history = history
        self.clock = clock or system_clock
        self.storage_options = dict(storage_options or {})
        self.payloads = PayloadFiles(messages)
        # The ledger's tag, and whether the group's header has a pause or failures.
        self.marked_groups: RecentDict[str, tuple[Hashable, bool]] = RecentDict(_MARKS)
        self._open_dead_letters = open_dead_letters
        self._find_dead_letters = find_dead_letters or open_dead_letters
        self._reopen = reopen
        self._dead_letters: QueueContext | None = None
        self._committers: dict[str, GroupCommitter] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        if self._reopen is None or is_in_memory(self.path):
            raise TypeError(
                f"Queue({self.path!r}) is kept in memory: it cannot be pickled, nor used by "
                f"another process"
            )
        clock = None if self.clock is system_clock else self.clock
        return self._reopen, (self.path, self.storage_options, clock)

    def reopened(self) -> QueueContext:
        """Return the queue opened once more."""
        if self._reopen is None:
            return self
        return self._reopen(self.path, self.storage_options, self.clock)

    @property
    def settings(self) -> QueueSettings:
        """Return the settings as of the last look at ``messages/``."""
        text = self._messages.description
        if text is not None and text != self._described:
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
        """Return the clock's time in microseconds."""
        return to_micros(self.clock())

    def horizon(self) -> int:
        """Return the trim horizon: messages up to it may be gone. -1 before the first trim."""
        return max(read_horizon(self.ledgers), self.messages.trimmed)

    def group(
        self, name: str, start: StartPosition = "earliest", *, create: bool = True
    ) -> GroupLedger:
        """Return the ledger of a group. All objects of one group share commits."""
        self._process.check()  # before the lock, which another thread of the parent may hold
        settings = self.settings
        with self._lock:
            return GroupLedger(
                name,
                self._ledgers,
                self._messages,
                self.clock,
                settings.group,
                queue_path=self.path,
                queue_id=settings.queue_id,
                payloads=self.payloads,
                history=self.history,
                start=start,
                create=create,
                may_lose=self._may_lose,
                committers=self._committers,
            )

    def _may_lose(self) -> bool:
        """Return whether a trim may drop a group's unsettled messages."""
        settings = self.settings
        return settings.hard_retention is not None or settings.group_expiry is not None

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
            self._dead_letters = self._open_dead_letters(self)
        return self._dead_letters

    def existing_dead_letters(self) -> QueueContext | None:
        """Return the dead-letter queue, or None if it is missing."""
        if self._dead_letters is None:
            self._dead_letters = self._find_dead_letters(self)
        return self._dead_letters
