"""List the workers of a group: those that hold leases, and those that have written a heartbeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from spark_mq.inspect.leases import LeaseInfo, list_leases
from spark_mq.operations.context import GroupLedger
from spark_mq.storage.heartbeat_files import Heartbeat, read_heartbeats
from spark_mq.util.clock import to_datetime
from spark_mq.util.records import Record

__all__ = ["WorkerInfo", "list_workers"]


@dataclass(frozen=True, slots=True)
class WorkerInfo(Record):
    """A worker of a group, with what it holds, and when it was last seen.

    A worker without a heartbeat, such as a stream, is listed while it holds a lease. Attributes
    from ``seen_at`` on are those of the heartbeat that was written last, or None without one.

    Attributes
    ----------
    worker_id
        The worker's name. Several processes may use the same one.
    state
        "busy" with a live lease, or if a handler ran when it was last seen. "idle" if it was seen
        lately, within two intervals of its heartbeat. "gone" otherwise.
    leases, messages
        Its leases that have not expired, and the messages under them.
    since, until
        The start of its oldest lease, and its next deadline (aware, UTC), or None without a lease.
    processes
        How many have this name and were seen lately.
    seen_at, started_at
        When the worker wrote its heartbeat, and when it started (aware, UTC).
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
    found = [_worker(name, leases[name], heartbeats[name], now) for name in {*leases, *heartbeats}]
    return sorted(found, key=lambda one: (-one.messages, one.state == "gone", one.worker_id))


def _worker(
    name: str, leases: Sequence[LeaseInfo], heartbeats: Sequence[Heartbeat], now: int
) -> WorkerInfo:
    alive = [one for one in heartbeats if not one.is_gone(now)]
    leases = [one for one in leases if not one.expired]
    is_busy = bool(leases) or any(one.state == "busy" for one in alive)
    idle = "idle" if alive else "gone"
    held = WorkerInfo(
        name,
        "busy" if is_busy else idle,
        len(leases),
        sum(one.messages for one in leases),
        min((one.since for one in leases), default=None),
        min((one.until for one in leases), default=None),
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
