"""Build a queue of many messages, groups and ledger ranges, for measurements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from spark_mq import GroupSettings, Queue
from spark_mq.ledger.ranges import AVAILABLE, DEAD, LEASED, SETTLED, Ledger, LedgerHeader, Range
from spark_mq.util.clock import SECOND
from support.tables import context_of, ledgers_of, messages_of

__all__ = ["build_large_queue"]

STATES = (LEASED, SETTLED, AVAILABLE, SETTLED, DEAD, SETTLED)


def build_large_queue(path: Path, *, messages: int, files: int, groups: int, ranges: int) -> Queue:
    """Create a queue with `ranges` ledger ranges over all groups. Half are in one group."""
    queue = Queue.create(path, durable=False)
    per_file = messages // files
    for number in range(files):
        keys = pa.array(f"key-{number}-{row % 1000}" for row in range(per_file))
        values = pa.repeat(pa.scalar(b"{}"), per_file)
        queue.publish(pa.table({"value": values, "key": keys}))
    share = max(1, (ranges - ranges // 2) // max(1, groups - 1))
    for number in range(groups):
        count = ranges - share * (groups - 1) if number == 0 else share
        _write_group(queue, f"group-{number:04}", count)
    return queue


def _write_group(queue: Queue, name: str, count: int) -> None:
    ledgers, index, now = ledgers_of(queue), messages_of(queue).index(), 0
    now = context_of(queue).now()
    length = max(1, index.total // (2 * count))
    rows, at = [], 0
    for row in range(count):
        first = index.nth_from(0, at + 1)
        last = index.nth_from(0, at + length)
        rows.append(_range((first, last), STATES[row % len(STATES)], length, row, now))
        at += length
    head = LedgerHeader(settings=GroupSettings().encoded(), counters={"acked": at // 2})
    snapshot = ledgers.read(name)
    ledgers.write(
        snapshot,
        Ledger.from_ranges(replace(head, revision=1), rows),
        operation_id=f"build-{name}",
        note={"operation": "build", "group": name},
    )


def _range(at: tuple[int, int], state: str, count: int, row: int, now: int) -> Range:
    r = Range(*at, state, count)
    if state == LEASED:
        return r._replace(
            lease_id=f"lease-{row}",
            worker_id=f"worker-{row % 7}",
            leased_at=now,
            expires_at=now + 3600 * SECOND,
            lease_size=count,
            first_leased_at=now,
            delivery_count=1,
        )
    if state == AVAILABLE:
        return r._replace(
            available_at=now + row * SECOND, delivery_count=2, failure_count=1, error="timeout"
        )
    if state == DEAD:
        return r._replace(reason="rejected", delivery_count=1, failure_count=1, error="bad")
    return r
