"""Routing: dead messages are copied to the dead-letter queue by three commits, each safe to repeat.

Freeze dead ranges as ``routing`` under a new id; publish their messages to the DLQ under ``Transaction(routing id)``; settle that id. A
sweeper first finishes the routing ids that it finds. It looks at the DLQ's mark before it publishes *and* lets a race be
refused: each alone duplicates.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_mq.errors import DuplicatePublish
from spark_mq.group import LEASE_PAUSE, ConsumerGroup
from spark_mq.ledger import transitions as rules_of
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import ROUTING, Ledger, Range
from spark_mq.parquet.read_errors import unreadable_reason
from spark_mq.parquet.reader import MessageReader
from spark_mq.parquet.schema import FILE_SCHEMA, TIME_COLUMNS
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.ledger_store import LedgerSnapshot, change
from spark_mq.storage.message_store import MessageStore
from spark_mq.util.validation import to_datetime

__all__ = ["HEADER_PREFIX", "DeadSlice", "copy_dead", "dead_table", "route"]

_log = logging.getLogger(__name__)

HEADER_PREFIX = "spark_mq."
ROUTE_RANGES = 5_000
"""Dead ranges routed by one round of commits."""

DeadSlice = tuple[FileSlice, dict[str, str]]
"""A slice of messages that died alike, with what becomes headers of the dead letters."""

Copy = Callable[[MessageStore, MessageStore, Sequence[DeadSlice]], list[WrittenFile]]


def route(group: ConsumerGroup, copy: Copy | None = None) -> int:
    """Sends all dead messages of a group to the DLQ. Returns how many. Safe to kill, to repeat, and to run twice at once.

    ``copy(log, dead_log, slices)`` writes the files of the DLQ; the default does it here, the Spark job in parallel.
    """
    total = 0
    for routing_id in _unfinished(group):
        total += _finish(group, routing_id, copy or copy_dead)
    while True:
        routing_id = f"routing-{uuid.uuid4().hex}"

        def freeze(stored: LedgerSnapshot, routing_id: str = routing_id) -> tuple[Ledger | None, int, Mapping[str, Any]]:
            folded = rules_of.fold(group.found(stored), group.queue.now(), group.rules(stored))
            after, frozen = rules_of.freeze_dead(folded, routing_id, ROUTE_RANGES)
            messages = sum(r.message_count for r in frozen)
            return (
                after if frozen else None,
                messages,
                {"operation": "freeze dead", "lease_id": routing_id, "messages": messages},
            )

        if not group.exists() or not change(group.queue.leases, group.name, freeze, pause=LEASE_PAUSE):
            return total
        total += _finish(group, routing_id, copy or copy_dead)


def _unfinished(group: ConsumerGroup) -> list[str]:
    ledger = group.ledger()
    return sorted({r.lease_id for r in ledger.select(ledger.where(ledger.is_state(ROUTING))) if r.lease_id})


def _finish(group: ConsumerGroup, routing_id: str, copy: Copy) -> int:
    """Publishes what is frozen under a routing id, unless it has been, and settles it."""
    queue, dead_log = group.queue, group.queue.dead_letters.log
    ledger = group.ledger()
    frozen = [r for r in ledger.select(ledger.where(ledger.is_state(ROUTING))) if r.lease_id == routing_id]
    if frozen and dead_log.last_number(routing_id) is None:
        try:
            dead_log.commit(
                copy(queue.log, dead_log, _dead_slices(group, frozen)),
                mark=(routing_id, 1),
                note={"operation": "route", "group": group.name},
            )
        except DuplicatePublish:
            _log.info("another sweeper has published %s", routing_id)

    def settle(stored: LedgerSnapshot) -> tuple[Ledger | None, int, Mapping[str, Any]]:
        after, messages = rules_of.routed(group.found(stored), routing_id)
        return (
            after if messages else None,
            messages,
            {"operation": "routed", "lease_id": routing_id, "messages": messages},
        )

    return change(queue.leases, group.name, settle, pause=LEASE_PAUSE)


def _dead_slices(group: ConsumerGroup, frozen: Iterable[Range]) -> list[DeadSlice]:
    index = group.queue.log.index()
    return [(piece, _headers(group, r)) for r in frozen for piece in index.slices(r.first, r.last)]


def _headers(group: ConsumerGroup, r: Range) -> dict[str, str]:
    told = {
        "queue": group.queue.path,
        "group": group.name,
        "delivery_count": str(r.delivery_count),
        "failure_count": str(r.failure_count),
        "reason": r.reason,
        "error": r.error,
        "first_leased_at": to_datetime(r.first_leased_at).isoformat() if r.first_leased_at else None,
        "last_leased_at": to_datetime(r.leased_at).isoformat() if r.leased_at else None,
    }
    return {HEADER_PREFIX + name: value for name, value in told.items() if value is not None}


def copy_dead(log: MessageStore, dead_log: MessageStore, slices: Sequence[DeadSlice]) -> list[WrittenFile]:
    """Copies dead messages into one file of the DLQ, here."""
    return [write_file(dead_log.files, dead_table(log.files, slices))]


def dead_table(files: Any, slices: Sequence[DeadSlice]) -> pa.Table:
    """Dead messages as the DLQ keeps them: id, key, value and headers as published, and ``spark_mq.*`` headers that say why.

    A record without readable payload still arrives, with a null value.
    """
    reader = MessageReader(files)
    return pa.concat_tables([_dead_rows(reader, piece, headers) for piece, headers in slices]) if slices else FILE_SCHEMA.empty_table()


def _dead_rows(reader: MessageReader, piece: FileSlice, why: Mapping[str, str]) -> pa.Table:
    try:
        rows = reader.try_read(piece)
    except (OSError, pa.ArrowException) as error:
        why = {**why, HEADER_PREFIX + "payload": f"unreadable: {unreadable_reason(reader.files, piece.path, error)}"[:500]}
        ids = pa.array([str(piece.first + n) for n in range(piece.rows)], pa.string())
        rows = pa.table([ids if f.name == "message_id" else pa.nulls(piece.rows, f.type) for f in FILE_SCHEMA], schema=FILE_SCHEMA)
    headers = [
        [(k, v) for k, v in (own or ()) if not k.startswith(HEADER_PREFIX)]
        + [*why.items(), (HEADER_PREFIX + "sequence", str(piece.first + n))]
        for n, own in enumerate(rows["headers"].to_pylist())
    ]
    changed = {"headers": pa.array(headers, FILE_SCHEMA.field("headers").type)}
    # A dead letter has no time of its own: it is there at once, and stays.
    changed |= {name: pa.nulls(rows.num_rows, FILE_SCHEMA.field(name).type) for name in TIME_COLUMNS}
    return pa.table([changed.get(f.name, rows[f.name]) for f in FILE_SCHEMA], schema=FILE_SCHEMA)
