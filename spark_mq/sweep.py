"""The sweep: chores that keep a queue small. None is needed for correct delivery; each is safe to kill, repeat, and run twice at once."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from deltalake import DeltaTable

from spark_mq import delta
from spark_mq.dead_letters import Copy, route
from spark_mq.index import CommitIndex
from spark_mq.leases import HORIZON, DeltaLeases, Stored, change
from spark_mq.log import DeltaLog
from spark_mq.queue import Queue
from spark_mq.ranges import Head, Ledger

__all__ = ["KEEP_SECONDS", "KEEP_VERSIONS", "SweepReport", "expire", "housekeep", "sweep", "trim"]


KEEP_VERSIONS = 2_000
KEEP_SECONDS = 600
"""How much of the ledger's history stays for time travel and DESCRIBE HISTORY: so many versions, and at least so long."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did: messages expired and routed, files trimmed from ``messages/``, log and data files cleaned from ``leases/``."""

    expired: int = 0
    routed: int = 0
    trimmed_files: int = 0
    cleaned_files: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in asdict(self).items())


def sweep(queue: Queue, copy: Copy | None = None) -> SweepReport:
    """All chores once: expire, route, trim, housekeeping. ``copy``: how dead letters are copied, see ``dead_letters.route``."""
    groups = [queue.group(name) for name in queue.groups()]
    return SweepReport(
        sum(group.expire() for group in groups),
        sum(route(group, copy) for group in groups),
        trim(queue),
        housekeep(queue),
    )


def expire(queue: Queue) -> int:
    """Folds the leases past their deadline in every group. Returns how many messages they held."""
    return sum(queue.group(name).expire() for name in queue.groups())


def trim(queue: Queue) -> int:
    """Drops files whose messages every group has settled and that are older than the retention. Returns how many files.

    The horizon is written first, by a compare-and-swap of the whole of ``leases/``; a queue without groups has settled nothing.
    """

    def step(stored: Stored) -> tuple[Ledger | None, int, Mapping[str, Any]]:
        index = queue.log.index()
        before = -1 if stored.ledger is None else stored.ledger.head.floor
        horizon = max(before, _settled_and_old(queue, index))
        note = {"operation": "trim", "ranges": f"-{horizon}"}
        return Ledger(Head(floor=horizon)) if horizon > before else None, horizon, note

    return queue.log.drop(change(queue.leases, HORIZON, step, whole_table=True))


def _settled_and_old(queue: Queue, index: CommitIndex) -> int:
    """The highest sequence below every group's floor and out of retention, or -1."""
    ledgers = [queue.leases.read(name).ledger for name in queue.groups()]
    floors = [ledger.head.floor for ledger in ledgers if ledger is not None]
    if not floors:
        return -1
    limit = queue.now() - queue.settings.retention
    old = -1
    for file in index.files:
        if file.committed_at > limit:
            break
        old = file.last
    return min(old, *floors)


def housekeep(queue: Queue, *, keep_versions: int = KEEP_VERSIONS, keep_seconds: float = KEEP_SECONDS) -> int:
    """Checkpoints both tables and drops old versions of the ledger with the files only they need. Returns how many files went."""
    if not isinstance(queue.leases, DeltaLeases) or not isinstance(queue.log, DeltaLog):
        return 0
    checkpoint(queue.log)
    return clean(queue.leases, keep_versions, keep_seconds)


def checkpoint(table: DeltaLog | DeltaLeases) -> int:
    """Writes a checkpoint of the latest version, unless it has one. Returns the version."""
    handle = DeltaTable(table.path, storage_options=table.storage_options)
    if handle.version() > last_checkpoint(table.files):
        handle.create_checkpoint()
    return handle.version()


def last_checkpoint(files: delta.Files) -> int:
    """The version of the last checkpoint, or -1."""
    try:
        return int(json.loads(files.read("_delta_log/_last_checkpoint"))["version"])
    except FileNotFoundError:
        return -1


def clean(leases: DeltaLeases, keep_versions: int, keep_seconds: float) -> int:
    """Deletes commits of the ledger older than both bounds, and the data files that those commits removed.

    A file that commit v removed is needed by versions below v only; when v's own entry goes, those are out of reach. Oldest
    first and the data before the entry: killed at any point, the next run goes on from there. Not delta-rs's own clean-up, for that keeps
    by time alone, and VACUUM knows nothing of versions.
    """
    latest = checkpoint(leases)
    horizon = latest - keep_versions
    logs = [path for path in leases.files.list("_delta_log") if path.endswith(".json") and path.rsplit("/", 1)[1][:20].isdigit()]
    cleaned = 0
    for path in logs:
        version = int(path.rsplit("/", 1)[1][:20])
        if version >= horizon:
            break
        actions = delta.read_commit(leases.files, version, leases.path)
        written = next((a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a), 0) / 1000
        if time.time() - written < keep_seconds:
            break
        for removed in [a["remove"]["path"] for a in actions if "remove" in a]:
            leases.files.delete(removed)
            cleaned += 1
        leases.files.delete(path)
        cleaned += 1
    return cleaned + _clean_checkpoints(leases, horizon)


def _clean_checkpoints(leases: DeltaLeases, horizon: int) -> int:
    """Deletes checkpoints that no version kept starts from: all but the last at or below the horizon, and those after it."""
    old = [
        (int(name[:20]), path)
        for path in leases.files.list("_delta_log")
        if (name := path.rsplit("/", 1)[1])[:20].isdigit() and ".checkpoint." in name and int(name[:20]) <= horizon
    ]
    newest = max((version for version, _ in old), default=-1)
    gone = [path for version, path in old if version < newest]
    for path in gone:
        leases.files.delete(path)
    return len(gone)
