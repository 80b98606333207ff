"""Acquire leases, and wait until there is something to lease."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from spark_mq.errors import DataLossError, SparkMQError
from spark_mq.ledger import acquire as acquiring
from spark_mq.ledger import admin
from spark_mq.ledger.commit_info import join_commit_info
from spark_mq.ledger.intervals import subtract
from spark_mq.ledger.ranges import Ledger, Range
from spark_mq.ledger.schedule import next_due_at
from spark_mq.ledger.settle import REJECT, RELEASE, SettleCommand
from spark_mq.ledger.transitions import expire_leases
from spark_mq.ledger.unreadable import UNREADABLE
from spark_mq.operations.group_ledger import GroupLedger, GroupView, read_horizon
from spark_mq.operations.outages import OUTAGES, outage_pause
from spark_mq.operations.payloads import FileCheck, acquire_readable, read_whole
from spark_mq.operations.posted_work import Posted
from spark_mq.operations.shared_ledger import LedgerOperation
from spark_mq.operations.signals import lease_signals
from spark_mq.storage.update import Priority, Update
from spark_mq.util.clock import SECOND
from spark_mq.util.notifier import Notifier, subscribed

__all__ = [
    "Acquired",
    "Damage",
    "LeaseOptions",
    "acquire_lease",
    "find_damage",
    "lease_operation",
    "reject_damaged",
    "settle_lost_messages",
    "settle_lost_now",
    "wait_for_lease",
]

_log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.01  # seconds until the second look; later pauses grow by half


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """A worker's request for a lease."""

    worker_id: str
    max_messages: int
    timeout: int | None = None  # microseconds; None for the group's
    fail_on_data_loss: bool = True
    max_bytes: int | None = None
    max_timeout: int | None = None  # bounds either timeout


@dataclass(frozen=True, slots=True)
class Acquired:
    """The result of an acquisition. Without ranges there is no lease."""

    lease_id: str
    expires_at: int
    ranges: tuple[Range, ...] = ()
    blocked_because: str = ""
    error: SparkMQError | None = None  # set if payload files are out of reach
    unfinished: tuple[FileCheck, ...] = ()  # to finish before the next attempt
    blocked_for_now: bool = False  # the reason passes by itself, or is the owner's pause

    @property
    def breaker_stops(self) -> bool:
        """Return whether a pause or the breaker is the reason."""
        return self.blocked_for_now and self.blocked_because != acquiring.MAX_IN_FLIGHT


def acquire_lease(
    ledger: GroupLedger, options: LeaseOptions, time_left: Callable[[], float] = lambda: 0.0
) -> Acquired:
    """Commit a lease of due, readable messages. A negative `time_left` ends the search for them.

    Raise StorageError if nothing can be delivered because payload files are out of reach.
    """
    seen: dict[str, FileCheck] = {}
    while True:
        acquired = ledger.run(lease_operation(ledger, options, seen))
        if not acquired.unfinished or time_left() < 0:
            if acquired.error is not None:
                raise acquired.error
            return acquired
        for check in acquired.unfinished:
            check.finish()


def lease_operation(
    ledger: GroupLedger, options: LeaseOptions, seen: dict[str, FileCheck] | None = None
) -> LedgerOperation[Acquired]:
    """Return the operation that leases due messages. `seen` collects the checks of files."""
    checks = {} if seen is None else seen

    def compute(view: GroupView) -> Update[Acquired]:
        # A new id each time, because a failed attempt may have landed.
        lease_id = uuid.uuid4().hex
        timeout = options.timeout or view.settings.visibility_timeout
        expires_at = view.now + min(timeout, options.max_timeout or timeout)
        request = acquiring.AcquireRequest(
            lease_id, options.worker_id, options.max_messages, expires_at, options.max_bytes
        )
        expired = expire_leases(view.ledger, view.now, view.settings)
        kept = settle_lost_messages(ledger, expired, options.fail_on_data_loss)
        index, damage = ledger.index_or_damage(view.ledger, options.max_messages)
        found = acquire_readable(
            ledger.payloads, kept, index,
            now=view.now, rules=view.settings, request=request, seen=checks,
        )  # fmt: skip
        grant = found.grant
        if found.dead and not view.snapshot.looked:
            return None, Acquired(lease_id, expires_at), {}  # a trim may have dropped them: look
        if damage is not None and not grant.ranges:
            raise damage
        infos: list[Mapping[str, Any]] = [] if kept is expired else [{"operation": "data_loss"}]
        infos += [found.commit_info()] if found.dead else []
        infos += [grant.commit_info(request)] if grant.ranges else []
        acquired = Acquired(
            lease_id, expires_at, tuple(grant.ranges), grant.blocked_because,
            found.error, found.unfinished, grant.blocked_for_now,
        )  # fmt: skip
        return found.ledger if infos else None, acquired, join_commit_info(infos)

    watch = partial(lease_signals, options.worker_id)
    post = partial(_post_lease, options)
    return LedgerOperation(compute, priority=Priority.LEASE, watch=watch, post=post)


def _post_lease(options: LeaseOptions) -> Posted[Acquired]:
    return Posted({"lease": asdict(options)}, _encode_acquired, _decode_acquired)


def _encode_acquired(acquired: Acquired) -> dict[str, Any] | None:
    """Return a lease as JSON, or None without one, so that its worker looks for the reason."""
    if not acquired.ranges or acquired.error is not None or acquired.unfinished:
        return None
    ranges = [list(r) for r in acquired.ranges]
    return {"lease_id": acquired.lease_id, "expires_at": acquired.expires_at, "ranges": ranges}


def _decode_acquired(data: Mapping[str, Any]) -> Acquired:
    ranges = tuple(Range(*values) for values in data["ranges"])
    return Acquired(data["lease_id"], data["expires_at"], ranges)


def wait_for_lease(
    ledger: GroupLedger,
    options: LeaseOptions,
    time_left: Callable[[], float],
    poll: float,
    wake_on: Notifier | None = None,
) -> Acquired:
    """Acquire a lease as soon as messages are due. It has no ranges if the time is up.

    `poll` is seconds between looks at other processes' commits. Raise StorageError or
    ContentionTimeout if the last try before that failed with it.
    """
    pause, failures, known = FIRST_PAUSE, 0, ""
    clock = getattr(ledger.clock, "notifier", None)  # of a clock that a test moves
    notifiers = (ledger.messages.notifier, ledger.ledgers.notifier, clock, wake_on)
    with subscribed(*filter(None, notifiers)) as changed:
        while True:
            changed.clear()  # before the look, so that no change in between is missed
            try:
                ledger.create_if_missing()
                acquired = acquire_lease(ledger, options, time_left)
                if acquired.ranges or (left := time_left()) <= 0:
                    return acquired
                if acquired.breaker_stops and acquired.blocked_because != known:
                    known = acquired.blocked_because
                    _log.warning("group %s leases nothing for now: %s", ledger.name, known)
                due = _seconds_until_due(ledger)
                if acquired.blocked_because and due <= 0:
                    due = poll  # it is due already, and the group grants nothing
                changed.wait(max(0.0, min(left, pause, poll, due)))
                pause, failures = pause * 1.5, 0
            except OUTAGES as error:
                if (left := time_left()) <= 0:
                    raise
                wait, failures = outage_pause(failures), failures + 1
                _log.warning("could not lease, trying again in %.1f s: %s", wait, error)
                changed.wait(min(left, wait))


def _seconds_until_due(ledger: GroupLedger) -> float:
    """Return the seconds until time alone may make something due."""
    snapshot, now = ledger.snapshot(), ledger.now()
    if snapshot.ledger is None:
        return float("inf")
    index = ledger.index_for(snapshot.ledger, snapshot.ledger.end_sequence)
    at = next_due_at(snapshot.ledger, index, ledger.settings_in(snapshot), now)
    return float("inf") if at is None else (at - now) / SECOND


Damage = tuple[int, int, str]  # first and last sequence of messages that cannot be read, and why


def find_damage(ledger: GroupLedger, ranges: Sequence[Range]) -> list[Damage]:
    """Return the damaged messages of ranges. Raise StorageError if a file is out of reach."""
    if not ranges:
        return []
    index = ledger.messages.index(max(r.last for r in ranges))
    ledger.payloads.forget(index, ranges)
    return [
        (part.first, part.first + part.rows - 1, why)
        for r in ranges
        for piece in index.slices(r.first, r.last)
        for part, why in read_whole(ledger.messages, piece, index.file_at(piece.first).rows)
        if why is not None
    ]


def reject_damaged(
    ledger: GroupLedger, ranges: Sequence[Range], lease_id: str, damage: Sequence[Damage]
) -> tuple[Range, ...]:
    """Reject the damaged messages of a lease in one commit. Return the others."""
    commands, good = list[SettleCommand](), list[Range]()
    horizon = ledger.horizon() if damage else -1
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
            commands.append(
                SettleCommand(RELEASE, lease_id, place)
                if trimmed
                else SettleCommand(REJECT, lease_id, place, error=why, reason=UNREADABLE)
            )
        rest = subtract([(r.first, r.last)], [(first, last) for first, last, _ in bad])
        good += [r.slice(first, last, index) for first, last in rest]
    if commands:
        ledger.settle(commands)
    return tuple(r for r in good if r.message_count)


def settle_lost_messages(group: GroupLedger, ledger: Ledger, fail: bool) -> Ledger:
    """Settle messages that the hard limit or group_expiry dropped unread as lost.

    With `fail`, raise DataLossError instead, until the owner seeks or accepts the loss.
    """
    if not group.may_have_lost(ledger):
        return ledger
    horizon = read_horizon(group.ledgers)
    after, lost = admin.settle_lost(ledger, group.messages.index(), horizon)
    if lost and fail:
        raise DataLossError(
            f"group {group.name!r}: {lost} messages up to {horizon} were dropped by the queue's "
            "hard limit, or its group_expiry, before it had settled them. Accept the loss with "
            "fail_on_data_loss=False (failOnDataLoss in a stream), or seek('earliest')",
            group=group.name, lost=lost, horizon=horizon,
        )  # fmt: skip
    if lost:
        _log.error(
            "group %s: %d messages up to %d are lost, dropped by the queue's hard limit, or its "
            "group_expiry",
            group.name, lost, horizon,
        )  # fmt: skip
    return after


def settle_lost_now(group: GroupLedger, fail: bool) -> None:
    """Settle lost messages in a commit. Raise DataLossError instead with `fail`."""

    def compute(view: GroupView) -> Update[None]:
        return settle_lost_messages(group, view.ledger, fail), None, {"operation": "data_loss"}

    group.update(compute)
