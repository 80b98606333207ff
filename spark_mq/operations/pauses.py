"""Pause between two tries to lease, until there is news of the group or of its messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Final, Protocol

from spark_mq.delta.actions import log_path
from spark_mq.delta.log import DeltaLog
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.operations.context import GroupLedger
from spark_mq.storage.shared_look import SharedLook
from spark_mq.util.notifier import Notifier

__all__ = ["LOCAL_POLL", "News", "Pauses", "default_poll", "pauses_between_tries"]

LOCAL_POLL: Final = 0.5  # seconds
STORE_POLL: Final = 2.0  # 60 requests a minute, because each look asks for two commits
FIRST_PAUSE: Final = 0.01  # seconds until the second try; later pauses grow by half
# On a disk, how many looks at messages/ there are to a try, which costs much more, and the seconds
# that are at least between them.
LOOKS_A_TRY: Final = 33
SHORTEST_LOOK: Final = 0.01
# Over a store, where each look costs two requests, the first pause is longer and doubles.
FIRST_STORE_PAUSE: Final = 0.25


def default_poll(ledger: GroupLedger) -> float:
    """Return the seconds between looks at what other processes did."""
    return LOCAL_POLL if ledger.messages.files.is_local else STORE_POLL


class _Table(Protocol):
    path: str
    log: DeltaLog
    notifier: Notifier
    shared_look: SharedLook


class News:
    """Whether a group's ledger or its messages changed since a look, asked by a shared look."""

    def __init__(self, ledger: GroupLedger) -> None:
        self._messages, self._ledgers = ledger.messages, ledger.ledgers
        self._tables: tuple[_Table, _Table] = ledger.messages, ledger.ledgers
        self._known: Sequence[int] = ()
        self._notified: Sequence[int] = ()

    def note(self) -> None:
        """Note what is known before a look, so that no change in between is missed."""
        self._known = self._messages.known().version, self._ledgers.known_version()
        self._notified = self._count()

    def came(self) -> bool:
        """Return whether this process has changed one of the tables, or heard of a change."""
        return self._notified != self._count()

    def due_in(self, every: float) -> float:
        """Return the seconds until a last look is `every` seconds old."""
        return min(table.shared_look.due_in(table.log, every) for table in self._tables)

    def has_news(self, every: float) -> bool:
        """Return whether there is news. Ask the store if a last look is `every` seconds old."""
        with wrap_store_errors(self._tables[0].path, "reading the log of"):
            known = zip(self._tables, self._known, strict=True)
            news = [
                table.shared_look.has_news(table.log, version, every) for table, version in known
            ]
        return any(news)

    def _count(self) -> Sequence[int]:
        return [table.notifier.count for table in self._tables]


class Pauses(Protocol):
    """The pauses of one wait."""

    def begin_try(self) -> None:
        """Note what is known before a try."""

    def wait(self, seconds: float) -> bool:
        """Wait some seconds at most. Return whether it is time for the next try."""


def pauses_between_tries(ledger: GroupLedger, poll: float, changed: threading.Event) -> Pauses:
    """Return the pauses of a wait with `poll` seconds between tries. Setting `changed` ends one."""
    is_local = ledger.messages.files.is_local
    return (_LocalPauses if is_local else _StorePauses)(ledger, poll, changed)


class _LocalPauses:
    """Tries at intervals, and as soon as another process has published messages.

    A try is a commit that finds nothing to do, which takes a turn in the line of the queue. So most
    looks are at messages/ only, where one costs a call of stat.
    """

    def __init__(self, ledger: GroupLedger, poll: float, changed: threading.Event) -> None:
        self._messages, self._poll, self._changed = ledger.messages, poll, changed
        self._pause = min(poll, FIRST_PAUSE)
        self._look = min(poll, max(SHORTEST_LOOK, poll / LOOKS_A_TRY))

    def begin_try(self) -> None:
        self._changed.clear()
        self._next = log_path(self._messages.known().version + 1)

    def wait(self, seconds: float) -> bool:
        until = time.monotonic() + min(seconds, self._pause)
        self._pause = min(self._poll, self._pause * 1.5)
        while (left := until - time.monotonic()) > 0:
            if self._changed.wait(min(left, self._look)) or self._has_new_messages():
                break
        return True

    def _has_new_messages(self) -> bool:
        try:
            return self._messages.files.exists(self._next)
        except OSError:  # the next try says what is wrong
            return True


class _StorePauses:
    """Tries when there is news. All waits of a process share their looks."""

    def __init__(self, ledger: GroupLedger, poll: float, changed: threading.Event) -> None:
        self._poll, self._changed = poll, changed
        self._pause = min(poll, FIRST_STORE_PAUSE)
        self._news, self._clock = News(ledger), ledger.ledgers.log.clock

    def begin_try(self) -> None:
        self._changed.clear()
        self._news.note()
        self._tried_at = self._clock.now()

    def wait(self, seconds: float) -> bool:
        pause = max(self._news.due_in(self._pause), self._pause - self._clock.since(self._tried_at))
        self._changed.wait(max(0.0, min(seconds, pause)))
        self._changed.clear()
        if self._news.came():
            return True
        if self._clock.since(self._tried_at) < self._pause:
            return False
        news = self._news.has_news(self._pause)
        self._pause = min(self._poll, self._pause * 2)
        return news
