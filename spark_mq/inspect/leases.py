"""List the leases, workers and errors of a group, and the states of one message."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Final

from spark_mq.inspect.peek import shown_range
from spark_mq.ledger.intervals import normalise
from spark_mq.ledger.message_index import MessageIndex
from spark_mq.ledger.ranges import LEASED, SETTLED, Range
from spark_mq.ledger.states import UNSETTLED
from spark_mq.ledger.walk import range_of, walk
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.operations.history import MessageOutcome, find_outcomes
from spark_mq.storage.heartbeat_files import Heartbeat, read_heartbeats
from spark_mq.util.clock import MICROSECOND, optional_datetime, to_datetime
from spark_mq.util.records import Record

MAX_POSITIONS: Final = 10  # intervals of a lease that are listed


@dataclass(frozen=True, slots=True)
class LeaseInfo(Record):
    """A lease, as the ledger has it. Times are aware, in UTC.

    Attributes
    ----------
    lease_id, worker_id
        The lease and its holder.
    since, until
        Its start and its deadline.
    expired
        Whether the deadline has passed. The next operation of the group gives the messages back.
    messages, size
        Messages that are still under it, and those that it began with.
    positions
        The first intervals of sequences that it holds, ten at most.
    delivery_count
        The highest delivery count of its messages.
    """

    lease_id: str
    worker_id: str
    since: datetime
    until: datetime
    expired: bool
    messages: int
    size: int
    positions: tuple[tuple[int, int], ...]
    delivery_count: int


@dataclass(frozen=True, slots=True)
class MessagePosition(Record):
    """The state of one message in one group.

    Attributes
    ----------
    sequence, group
        The message, and the name of the group.
    state
        "ready", "delayed", "leased", "dead", "blocked", "transferring" or "settled".
    lease_id, worker_id, leased_until
        Its lease, its worker and its deadline, if it is leased.
    available_at
        When it is due, if it is delayed.
    delivery_count, failure_count
        Its deliveries and failures.
    reason, error
        Why it is dead, blocked or dropped, and the text of its last failure.
    outcome
        How it ended: "acked", "dead_lettered", "dropped", "expired", "skipped", "lost" or
        "redriven". None if it is not settled, or if the history lacks its end.
    settled_at
        When it was settled. None without a known outcome, and before a commit settles a message
        that has expired.
    """

    sequence: int
    group: str
    state: str
    lease_id: str | None
    worker_id: str | None
    leased_until: datetime | None
    available_at: datetime | None
    delivery_count: int
    failure_count: int
    reason: str | None
    error: str | None
    outcome: str | None = None
    settled_at: datetime | None = None


def list_leases(group: GroupLedger) -> list[LeaseInfo]:
    snapshot, now = group.snapshot(), group.now()
    ledger, settings = group.ledger_in(snapshot), group.settings_in(snapshot)
    held = ledger.ranges_at(ledger.find((LEASED,)))
    by_lease = sorted(held, key=lambda r: (r.lease_id or "", r.first))
    leases = [
        _lease(list(ranges), now - settings.clock_skew // MICROSECOND)
        for _, ranges in groupby(by_lease, key=attrgetter("lease_id"))
    ]
    return sorted(leases, key=attrgetter("since", "lease_id"))


def _lease(ranges: list[Range], now: int) -> LeaseInfo:
    first = ranges[0]
    until = min(r.expires_at or 0 for r in ranges)
    messages = sum(r.message_count for r in ranges)
    return LeaseInfo(
        lease_id=first.lease_id or "",
        worker_id=first.worker or "",
        since=to_datetime(min(r.leased_at or 0 for r in ranges)),
        until=to_datetime(until),
        expired=until < now,
        messages=messages,
        size=first.lease_size or messages,
        positions=tuple(normalise((r.first, r.last) for r in ranges)[:MAX_POSITIONS]),
        delivery_count=max(r.delivery_count for r in ranges),
    )


def locate(
    context: QueueContext, sequence: int, known: Iterable[MessageOutcome] | None = None
) -> list[MessagePosition]:
    """Return a message's state in each group. `known` has outcomes that a trace has read."""
    index = context.messages.index(sequence)
    groups = context.groups()
    positions = [position for group in groups if (position := _position(group, index, sequence))]
    if known is None and any(_lacks_outcome(position) for position in positions):
        known = find_outcomes(context, sequence)
    ends = {end.group: end for end in known or ()}
    return [
        _with_outcome(position, ends[position.group])
        if _lacks_outcome(position) and position.group in ends
        else position
        for position in positions
    ]


def _lacks_outcome(position: MessagePosition) -> bool:
    return position.state == SETTLED and position.outcome is None


def _with_outcome(position: MessagePosition, end: MessageOutcome) -> MessagePosition:
    return replace(
        position,
        outcome=end.outcome,
        settled_at=end.settled_at,
        delivery_count=end.delivery_count,
        failure_count=end.failure_count,
        reason=end.reason,
        error=end.error if end.batch_size is None else end.batch_error,
    )


def _position(group: GroupLedger, index: MessageIndex, sequence: int) -> MessagePosition | None:
    ledger = group.current()
    for piece in walk(ledger, index, group.now(), sequence):
        if not piece.first <= sequence <= piece.last:
            return None
        shown = shown_range(piece.state, range_of(piece, ledger, index))
        outcome = "expired" if piece.expired and piece.state == SETTLED else None
        return MessagePosition(sequence, group.name, **shown, outcome=outcome)
    return None


@dataclass(frozen=True, slots=True)
class LastError(Record):
    """The text of a failure, and the unsettled messages that have it.

    Attributes
    ----------
    error
        The text.
    state, messages, first
        Their state in the ledger, their number, and the first of them.
    at
        When the last of them was leased for the last time (aware, UTC). None if that is not known,
        such as after a retry that has set the counts to zero.
    """

    error: str
    state: str
    messages: int
    first: int
    at: datetime | None


def last_errors(group: GroupLedger, n: int) -> list[LastError]:
    ledger = group.current()
    kind = attrgetter("error", "state")
    failed = ledger.ranges_at(ledger.find(UNSETTLED, ("error", "is set", None)))
    alike = (list(ranges) for _, ranges in groupby(sorted(failed, key=kind), key=kind))
    errors = [(_last_leased(ranges), ranges) for ranges in alike]
    errors.sort(key=lambda pair: (-(pair[0] or 0), pair[1][0].first))
    return [
        LastError(
            ranges[0].error or "",
            str(ranges[0].state),
            sum(r.message_count for r in ranges),
            ranges[0].first,
            optional_datetime(at),
        )
        for at, ranges in errors[:n]
    ]


def _last_leased(ranges: list[Range]) -> int | None:
    return max((r.leased_at for r in ranges if r.leased_at is not None), default=None)


@dataclass(frozen=True, slots=True)
class WorkerInfo(Record):
    """A worker of a group, with what it holds, and when it was last seen.

    A worker without a heartbeat, such as a stream, is listed while it holds a lease. Attributes
    from ``seen_at`` on are those of the heartbeat that was written last, or None without one. Times
    are aware, in UTC.

    Attributes
    ----------
    worker_id
        The worker's name. Several processes may use the same one.
    state
        "busy" with a live lease, or if a handler ran when it was last seen. "idle" if it was seen
        within two intervals of its heartbeat. "gone" otherwise.
    leases, messages
        Its leases that have not expired, and the messages under them.
    since, until
        The start of its oldest lease, and its next deadline, or None without a lease.
    processes
        How many have this name and were seen lately.
    seen_at, started_at
        When the worker wrote its heartbeat, and when it started.
    host, process_id, version
        Its host, its process there, and its version of spark_mq.
    settled
        Messages that it has acked or rejected since it started, in all of its groups.
    """

    worker_id: str
    state: str
    leases: int
    messages: int
    since: datetime | None
    until: datetime | None
    processes: int = 0
    seen_at: datetime | None = None
    started_at: datetime | None = None
    host: str | None = None
    process_id: int | None = None
    version: str | None = None
    settled: int | None = None


def list_workers(group: GroupLedger) -> list[WorkerInfo]:
    """Return the workers of a group, the busiest first and those that are gone last."""
    leases = defaultdict[str, list[LeaseInfo]](list)
    heartbeats = defaultdict[str, list[Heartbeat]](list)
    for lease in list_leases(group):
        leases[lease.worker_id].append(lease)
    for heartbeat in read_heartbeats(group.ledgers.files, group.name):
        heartbeats[heartbeat.worker_id].append(heartbeat)
    now = group.now()
    workers = [
        _worker(name, leases[name], heartbeats[name], now) for name in {*leases, *heartbeats}
    ]
    return sorted(
        workers, key=lambda worker: (-worker.messages, worker.state == "gone", worker.worker_id)
    )


def _worker(
    name: str, leases: Sequence[LeaseInfo], heartbeats: Sequence[Heartbeat], now: int
) -> WorkerInfo:
    alive = [heartbeat for heartbeat in heartbeats if not heartbeat.is_gone(now)]
    leases = [lease for lease in leases if not lease.expired]
    is_busy = bool(leases) or any(heartbeat.state == "busy" for heartbeat in alive)
    idle = "idle" if alive else "gone"
    held = WorkerInfo(
        name,
        "busy" if is_busy else idle,
        len(leases),
        sum(lease.messages for lease in leases),
        min((lease.since for lease in leases), default=None),
        min((lease.until for lease in leases), default=None),
        len(alive),
    )
    if not heartbeats:
        return held
    last = max(heartbeats, key=attrgetter("seen_at"))
    return replace(
        held,
        seen_at=to_datetime(last.seen_at),
        started_at=to_datetime(last.started_at),
        host=last.host,
        process_id=last.process_id,
        version=last.version,
        settled=last.settled,
    )
