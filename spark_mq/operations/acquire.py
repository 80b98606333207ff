"""Acquire leases, and wait until there is something to lease."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_mq.errors import DataLossError
from spark_mq.ledger import acquire as acquiring
from spark_mq.ledger import admin
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Ledger, Range
from spark_mq.ledger.schedule import next_due_at
from spark_mq.ledger.settle import REJECT, SettleCommand
from spark_mq.ledger.transitions import expire_leases
from spark_mq.operations.group_ledger import GroupLedger, GroupView, read_horizon
from spark_mq.operations.shared_ledger import LedgerOperation
from spark_mq.parquet.reader import verify_slice
from spark_mq.storage.message_store import MessageStore
from spark_mq.storage.update import Priority, Update
from spark_mq.util.clock import SECOND
from spark_mq.util.notifier import Notifier, subscribed

__all__ = [
    "Acquired",
    "LeaseOptions",
    "acquire_lease",
    "lease_operation",
    "reject_unreadable",
    "settle_lost_messages",
    "wait_for_lease",
    "without_unreadable",
]

_log = logging.getLogger(__name__)

FIRST_PAUSE = 0.01
"""Seconds until the second look. Each further pause is half as long again."""


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """What a worker asks for. ``timeout`` is in microseconds, None for the group's."""

    worker_id: str
    max_messages: int
    timeout: int | None = None
    fail_on_data_loss: bool = True


@dataclass(frozen=True, slots=True)
class Acquired:
    """What a lease got. Without ranges there is no lease; a cap may be the reason."""

    lease_id: str
    expires_at: int
    ranges: tuple[Range, ...] = ()
    blocked_because: str = ""


def acquire_lease(ledger: GroupLedger, options: LeaseOptions) -> Acquired:
    """Commit a lease of what is due. Its messages were readable when it was committed."""
    while True:
        acquired = ledger.run(lease_operation(ledger, options))
        if not acquired.ranges:
            return acquired
        acquired = without_unreadable(ledger, acquired)
        if acquired.ranges:
            return acquired
        # All of it was unreadable and is dead now.


def without_unreadable(ledger: GroupLedger, acquired: Acquired) -> Acquired:
    """Return a lease without the messages that cannot be read. They are dead."""
    if not acquired.ranges:
        return acquired
    ranges = reject_unreadable(ledger, acquired.ranges, acquired.lease_id)
    return replace(acquired, ranges=ranges)


def lease_operation(ledger: GroupLedger, options: LeaseOptions) -> LedgerOperation[Acquired]:
    """Return the operation that leases what is due."""

    def compute(view: GroupView) -> Update[Acquired]:
        # A new id each time: an attempt that failed may have landed.
        lease_id = uuid.uuid4().hex
        expires_at = view.now + (options.timeout or view.settings.visibility_timeout)
        request = acquiring.AcquireRequest(
            lease_id, options.worker_id, options.max_messages, expires_at
        )
        folded = expire_leases(view.ledger, view.now, view.settings)
        kept = settle_lost_messages(ledger, folded, options.fail_on_data_loss)
        index, damage = ledger.index_or_damage(view.ledger)
        after, grant = acquiring.acquire(kept, index, view.now, view.settings, request)
        if damage is not None and not grant.ranges:
            raise damage
        info = grant.commit_info(request) if grant.ranges else {"operation": "cut"}
        changed = bool(grant.ranges) or kept is not folded
        acquired = Acquired(lease_id, expires_at, tuple(grant.ranges), grant.blocked_because)
        return after if changed else None, acquired, info

    return LedgerOperation(compute, priority=Priority.LEASE)


def wait_for_lease(
    ledger: GroupLedger,
    options: LeaseOptions,
    time_left: Callable[[], float],
    poll: float,
    wake_on: Notifier | None = None,
) -> Acquired:
    """Acquire a lease as soon as there is something to lease.

    Parameters
    ----------
    ledger
        The group.
    options
        What the worker asks for.
    time_left
        Returns the seconds left to wait.
    poll
        Seconds between looks at what other processes did.
    wake_on
        One more notifier that ends a pause.

    Returns
    -------
    Acquired
        Without ranges if the time is up.
    """
    ledger.create_if_missing()
    pause = FIRST_PAUSE
    clock = getattr(ledger.clock, "bell", None)  # of a clock that a test moves
    notifiers = (ledger.messages.bell, ledger.ledgers.bell, clock, wake_on)
    with subscribed(*filter(None, notifiers)) as changed:
        while True:
            changed.clear()  # before the look, so that no change in between is missed
            acquired = acquire_lease(ledger, options)
            if acquired.ranges or (left := time_left()) <= 0:
                return acquired
            changed.wait(max(0.0, min(left, pause, poll, _seconds_until_due(ledger))))
            pause *= 1.5


def _seconds_until_due(ledger: GroupLedger) -> float:
    """Return the seconds until time alone may make something due."""
    snapshot, now = ledger.snapshot(), ledger.now()
    if snapshot.ledger is None:
        return float("inf")
    index = ledger.index_for(snapshot.ledger, snapshot.ledger.tracked_up_to)
    at = next_due_at(snapshot.ledger, index, ledger.settings_in(snapshot), now)
    return float("inf") if at is None else (at - now) / SECOND


def reject_unreadable(
    ledger: GroupLedger, ranges: Sequence[Range], lease_id: str, *, whole: bool = False
) -> tuple[Range, ...]:
    """Reject the messages of a lease whose file is missing or corrupt. Returns the others.

    ``whole`` reads all bytes, not only the footers.
    """
    index = ledger.messages.index(ranges[-1].last)
    pieces = [(r, piece) for r in ranges for piece in index.slices(r.first, r.last)]
    known = ledger.readable_files
    if not whole and all(piece.path in known for _, piece in pieces):
        return tuple(ranges)
    found: list[tuple[Range, FileSlice, str | None]] = []
    for r, piece in pieces:
        rows = index.file_at(piece.first).rows
        parts = _verify(ledger.messages, known, piece, rows, whole)
        found += [(r, part, why) for part, why in parts]
    if all(why is None for _, _, why in found):
        return tuple(ranges)
    cut = [(r.slice(s.first, s.first + s.rows - 1, index), why) for r, s, why in found]
    for r, why in cut:
        if why is None:
            continue
        _log.error(
            "group %s: messages %d..%d cannot be read and are dead: %s",
            ledger.name, r.first, r.last, why,
        )  # fmt: skip
        unreadable = [(r.first, r.last)]
        reason = "payload unreadable"
        ledger.settle([SettleCommand(REJECT, lease_id, unreadable, error=why, reason=reason)])
    return tuple(r for r, why in cut if why is None)


def _verify(
    messages: MessageStore, known: set[str], piece: FileSlice, rows: int, whole: bool
) -> list[tuple[FileSlice, str | None]]:
    """Return the parts of a slice, each with the reason why it is unreadable, or None."""
    if whole:
        known.discard(piece.path)
    elif piece.path in known:
        return [(piece, None)]
    found = list(verify_slice(messages.files, piece, rows, whole=whole))
    if not whole and found[0][1] is None:
        known.add(piece.path)
    return found


def settle_lost_messages(group: GroupLedger, ledger: Ledger, fail: bool) -> Ledger:
    """Settle messages that the queue's hard limit dropped unread as lost.

    Raises DataLossError instead if `fail` is set, at each call until the owner of the group seeks
    or accepts the loss.
    """
    if not group.hard_limit:
        return ledger
    horizon = read_horizon(group.ledgers)
    after, lost = admin.settle_lost(ledger, group.messages.index(), horizon)
    if lost and fail:
        raise DataLossError(
            f"group {group.name!r}: {lost} messages up to {horizon} were dropped by the queue's "
            "hard limit before it had settled them. Accept the loss with fail_on_data_loss=False "
            "(failOnDataLoss in a stream), or seek('earliest')",
            group=group.name, lost=lost, horizon=horizon,
        )  # fmt: skip
    if lost:
        _log.error(
            "group %s: %d messages up to %d are lost, dropped by the queue's hard limit",
            group.name, lost, horizon,
        )  # fmt: skip
    return after
