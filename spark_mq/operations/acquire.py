"""Acquire leases, and wait until there is something to lease."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from spark_mq.delta.actions import log_path
from spark_mq.delta.store_errors import wrap_store_errors
from spark_mq.errors import GroupBlocked, InvalidOption
from spark_mq.ledger.acquire import UNREADABLE, Acquire, Grant
from spark_mq.ledger.intervals import Interval, from_sequences, subtract
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.schedule import next_due_at
from spark_mq.ledger.selection import MAX_PIECES
from spark_mq.ledger.settle import REJECT, RELEASE, SettlePart
from spark_mq.message import MessageSelector
from spark_mq.operations.context import GroupLedger
from spark_mq.operations.outages import OUTAGES, outage_pause
from spark_mq.operations.payloads import FileChecks, read_whole
from spark_mq.storage.ledger_table import LedgerTable
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import SECOND
from spark_mq.util.notifier import subscribed
from spark_mq.util.show import shell_command

_log = logging.getLogger(__name__)

MAX_MESSAGES: Final = 2**31 - 1  # that an option of a lease may give
RATE_PAUSE: Final = 5.0
"""Seconds until a wait for a rate limit looks if the limit has changed."""
LOCAL_POLL: Final = 0.5  # seconds
STORE_POLL: Final = 2.0  # 60 requests a minute, because each look asks for two commits
FIRST_PAUSE: Final = 0.01  # seconds until the first look for news; later pauses double
FIRST_STORE_PAUSE: Final = 0.25  # where each look costs two requests
# On a disk, how often a wait looks for new messages between two looks for news, and the seconds
# that are at least between them.
LOOKS_A_PAUSE: Final = 31
SHORTEST_LOOK: Final = 0.01


def default_poll(ledger: GroupLedger) -> float:
    """Return the seconds between looks at what other processes did."""
    return LOCAL_POLL if ledger.messages.files.is_local else STORE_POLL


def named_messages(sequences: MessageSelector) -> tuple[list[Interval], int]:
    """Return the intervals of the messages that a lease names, and their most messages."""
    intervals = from_sequences(sequences)
    if len(intervals) > MAX_PIECES:
        raise InvalidOption(
            f"sequences names {len(intervals):,} separate runs of messages, and one lease may name "
            f"{MAX_PIECES:,}. Name them in several leases, or give a range",
            option="sequences",
            value=len(intervals),
        )
    return intervals, min(MAX_MESSAGES, sum(last - first + 1 for first, last in intervals))


def wait_for_lease(
    ledger: GroupLedger,
    command: Acquire,
    time_left: Callable[[], float],
    poll: float,
    wake: threading.Event | None = None,
    *,
    on_try: Callable[[], None] = lambda: None,
    give_up: Callable[[Exception], bool] = lambda _: False,
) -> Grant:
    """Acquire a lease as soon as messages are due. It has no ranges if the time is up.

    `poll` is seconds between looks at other processes' commits. Setting `wake` causes a look, which
    clears it. `on_try` is called before each look. Raise StorageError or ContentionTimeout if the
    last try in time failed with it, or if `give_up` says that no wait helps.
    """
    failures, known = 0, ""
    checks = FileChecks(ledger.payloads)
    clock = getattr(ledger.queue.clock, "notifier", None)  # of a clock that a test moves
    notifiers = (ledger.messages.notifier, ledger.ledgers.notifier, clock)
    with subscribed(*filter(None, notifiers), event=wake) as changed:
        pauses = _Pauses(ledger, poll, changed)
        while True:
            try:
                pauses.begin_try()
                on_try()
                ledger.create_if_missing()
                (grant,) = ledger.committer.run([command], checks)
                if isinstance(grant, Exception):
                    raise grant
                if grant.unfinished and time_left() >= 0:
                    checks.finish()
                    continue
                checks = FileChecks(ledger.payloads)  # a file may be in reach the next time
                if grant.error is not None:
                    raise grant.error
                if grant.ranges or (left := time_left()) <= 0:
                    return grant
                if grant.breaker_stops and grant.blocked_because != known:
                    known = grant.blocked_because
                    _log.warning("group %s leases nothing for now: %s", ledger.name, known)
                failures = 0
                if grant.wait_until is not None:  # no news makes it due earlier
                    wait = (grant.wait_until - ledger.now()) / SECOND
                    changed.wait(max(0.0, min(left, wait, RATE_PAUSE)))
                elif not _pause(ledger, grant, pauses, time_left, left=left, poll=poll):
                    return grant
            except OUTAGES as error:
                if (left := time_left()) <= 0 or give_up(error):
                    raise
                wait, failures = outage_pause(failures), failures + 1
                checks = FileChecks(ledger.payloads)
                _log.warning("could not lease, trying again in %.1f s: %s", wait, error)
                changed.wait(min(left, wait))


def raise_if_blocked(group: str, grant: Grant) -> None:
    """Raise GroupBlocked if only the owner can make the group lease messages again."""
    if grant.blocked_because and not grant.blocked_for_now:
        raising = shell_command("group", "configure", group, "-q", "PATH")
        unblocking = shell_command(
            "group", "resolve", group, "-q", "PATH", "--blocked", "--to", "retry"
        )
        raise GroupBlocked(
            f"group {group!r} may lease nothing: {grant.blocked_because}. Settle leased messages, "
            f"or raise the cap by group.configure or {raising}. For blocked messages, use "
            f"group.unblock or {unblocking}",
            group=group,
            blocked_because=grant.blocked_because,
        )


def _pause(
    ledger: GroupLedger,
    grant: Grant,
    pauses: _Pauses,
    time_left: Callable[[], float],
    *,
    left: float,
    poll: float,
) -> bool:
    """Wait until it is time for the next try. Return False if the time for tries is up first."""
    due = _seconds_until_due(ledger, pauses.began)
    due_at = ledger.now() + due * SECOND
    is_blocked = bool(grant.blocked_because) and due <= 0  # it is due, and the group grants nothing
    due = poll if is_blocked else due
    while not pauses.wait(min(left, due)):
        left = time_left()
        due = poll - pauses.since_try() if is_blocked else (due_at - ledger.now()) / SECOND
        if left <= 0:
            return False
        if due <= 0:
            break
    return True


def _seconds_until_due(ledger: GroupLedger, tried_at: int) -> float:
    """Return the seconds until time alone makes due what was not due at a try, or inf."""
    # The try has just looked.
    snapshot, now = ledger.ledgers.read(ledger.name, refresh=False), ledger.now()
    known = ledger.ledger_in(snapshot)
    index = ledger.index_for(known, known.end_sequence)
    at = next_due_at(known, index, ledger.settings_in(snapshot), tried_at)
    return float("inf") if at is None else (at - now) / SECOND


class News:
    """Whether a group's ledger or its messages changed since a look, asked by a shared look."""

    def __init__(self, ledger: GroupLedger) -> None:
        self._messages, self._ledgers = ledger.messages, ledger.ledgers
        self._tables: tuple[MessageTable | LedgerTable, ...] = (ledger.messages, ledger.ledgers)
        self._known: Sequence[int] = ()
        self._notified: Sequence[int] = ()

    def note(self) -> None:
        """Note what is known before a look, so that no change in between is missed."""
        self._known = self._messages.known().version, self._ledgers.known_version()
        self._notified = self._count()

    def has_new_messages(self) -> bool:
        """Return whether another process has published since, by one look at messages/."""
        return self._messages.files.exists(log_path(self._known[0] + 1))

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


class _Pauses:
    """Tries when there is news, for which all waits of a process look together."""

    # A try is a commit that finds nothing to do, and takes a turn in the line of the queue. Between
    # the looks for news, a wait on a disk looks for new messages alone, which is one call of stat.

    def __init__(self, ledger: GroupLedger, poll: float, changed: threading.Event) -> None:
        self._poll, self._changed = poll, changed
        self._news, self._ledger = News(ledger), ledger
        is_local = ledger.messages.files.is_local
        self._pause = min(poll, FIRST_PAUSE if is_local else FIRST_STORE_PAUSE)
        self._glance = max(SHORTEST_LOOK, poll / LOOKS_A_PAUSE) if is_local else float("inf")

    def begin_try(self) -> None:
        self._changed.clear()
        self._news.note()
        self._tried_at = self._ledger.ledgers.log.clock.now()
        self.began = self._ledger.now()  # by the queue's clock

    def since_try(self) -> float:
        """Return the seconds since the last try, whatever the queue's own clock says."""
        return self._ledger.ledgers.log.clock.since(self._tried_at)

    def wait(self, seconds: float) -> bool:
        """Return whether there is news. Setting `changed` ends the wait."""
        pause = max(self._news.due_in(self._pause), self._pause - self.since_try())
        if self._new_messages_within(max(0.0, min(seconds, pause))):
            return True
        self._changed.clear()
        if self._news.came():
            return True
        if self.since_try() < self._pause:
            return False
        news = self._news.has_news(self._pause)
        self._pause = min(self._poll, self._pause * 2)
        return news

    def _new_messages_within(self, seconds: float) -> bool:
        while seconds > self._glance:
            began = time.monotonic()
            if self._changed.wait(self._glance):
                return False
            try:
                if self._news.has_new_messages():
                    return True
            except OSError:  # the next try says what is wrong
                return True
            seconds -= time.monotonic() - began
        self._changed.wait(seconds)
        return False


Damage = tuple[int, int, str]  # first and last sequence of messages that cannot be read, and why


def find_damage(ledger: GroupLedger, ranges: Sequence[Range]) -> list[Damage]:
    """Return the damaged messages of ranges. Raise StorageError if a file is out of reach."""
    if not ranges:
        return []
    index = ledger.messages.index(max(r.last for r in ranges))
    ledger.payloads.forget(index, ranges)
    return [
        (part.first, part.last, why)
        for r in ranges
        for piece in index.slices(r.first, r.last)
        for part, why in read_whole(ledger.messages, piece, index.file_at(piece.first).rows)
        if why is not None
    ]


def reject_damaged(
    ledger: GroupLedger, ranges: Sequence[Range], lease_id: str, damage: Sequence[Damage]
) -> tuple[Range, ...]:
    """Reject the damaged messages of a lease in one commit. Return the others."""
    parts, good = list[SettlePart](), list[Range]()
    horizon = ledger.queue.horizon() if damage else -1
    for r in ranges:
        index = ledger.messages.index(r.last)
        bad = [(max(d[0], r.first), min(d[1], r.last), d[2]) for d in damage]
        bad = [(first, last, why) for first, last, why in bad if first <= last]
        for first, last, why in bad:
            place, trimmed = [(first, last)], last <= horizon
            _log.error(
                "group %s: messages %d..%d %s: %s", ledger.name, first, last,
                "were trimmed under their lease" if trimmed else "cannot be read and are dead", why,
            )  # fmt: skip
            # The next lease counts trimmed messages as lost.
            parts.append(
                SettlePart(RELEASE, lease_id, place)
                if trimmed
                else SettlePart(REJECT, lease_id, place, error=why, reason=UNREADABLE)
            )
        rest = subtract([(r.first, r.last)], [(first, last) for first, last, _ in bad])
        good += [r.slice(first, last, index) for first, last in rest]
    if parts:
        ledger.settle(parts)
    return tuple(r for r in good if r.message_count)
