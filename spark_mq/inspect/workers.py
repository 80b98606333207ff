"""Sum up the workers and the last errors of a group."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.ledger.ranges import LEASED, Ledger
from spark_mq.ledger.states import UNSETTLED
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.util.clock import to_datetime
from spark_mq.util.records import Record

__all__ = ["LastError", "WorkerInfo", "last_errors", "list_workers"]


@dataclass(frozen=True, slots=True)
class WorkerInfo(Record):
    """The messages and leases of one worker in a group.

    Attributes
    ----------
    worker_id
        The worker's name. Several processes may use the same one.
    leases, messages
        Its leases, and the messages under them.
    since, until
        The start of its oldest lease, and its next deadline (aware, UTC).
    """

    worker_id: str
    leases: int
    messages: int
    since: datetime
    until: datetime


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
        The latest known time of a delivery or a first failure of them (aware, UTC), or None.
    """

    error: str
    state: str
    messages: int
    first: int
    at: datetime | None


def list_workers(group: GroupLedger) -> list[WorkerInfo]:
    ledger = group.ledger_in(group.snapshot())
    held = _table(ledger, ledger.find((LEASED,)))
    table = _with_instants(held, ["worker_id", "lease_id", "message_count"])
    sums = table.group_by("worker_id", use_threads=False).aggregate(
        [
            ("lease_id", "count_distinct"),
            ("message_count", "sum"),
            ("leased_at", "min"),
            ("expires_at", "min"),
        ]
    )
    found = [
        WorkerInfo(
            row["worker_id"] or "",
            row["lease_id_count_distinct"],
            row["message_count_sum"],
            to_datetime(row["leased_at_min"] or 0),
            to_datetime(row["expires_at_min"] or 0),
        )
        for row in sums.to_pylist()
    ]
    return sorted(found, key=lambda one: (-one.messages, one.worker_id))


def last_errors(group: GroupLedger, n: int) -> list[LastError]:
    ledger = group.current()
    failed = ledger.find(UNSETTLED, ("error", "is set", None))
    names = ["error", "state", "message_count", "first"]
    table = _with_instants(_table(ledger, failed), names)
    at = pc.max_element_wise(table["leased_at"], table["first_failed_at"])
    sums = (
        table.append_column("at", at)
        .group_by(["error", "state"], use_threads=False)
        .aggregate([("message_count", "sum"), ("first", "min"), ("at", "max")])
    )
    rows = sorted(sums.to_pylist(), key=lambda row: (-(row["at_max"] or 0), row["first_min"]))
    return [
        LastError(
            row["error"],
            row["state"],
            row["message_count_sum"],
            row["first_min"],
            None if row["at_max"] is None else to_datetime(row["at_max"]),
        )
        for row in rows[:n]
    ]


def _table(ledger: Ledger, rows: list[int]) -> pa.Table:
    return ledger.ranges.take(pa.array(rows, pa.int64()))


def _with_instants(ranges: pa.Table, names: list[str]) -> pa.Table:
    """Return some columns of ranges, with the instants as microseconds."""
    table = ranges.select(names)
    for name in ("leased_at", "expires_at", "first_failed_at"):
        table = table.append_column(name, ranges[name].cast(pa.int64()))
    return table
