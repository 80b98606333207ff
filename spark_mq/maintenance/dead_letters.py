"""Move dead messages to the dead-letter queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.ledger.routing import DropDead, FreezeDead
from spark_mq.maintenance.transfer import Transfer
from spark_mq.operations.context import QueueContext
from spark_mq.operations.group_ledger import GroupLedger
from spark_mq.parquet.bounded import cut_slices, join_tables
from spark_mq.parquet.files import unreadable_reason
from spark_mq.parquet.reader import MessageReader
from spark_mq.parquet.schema import FILE_SCHEMA, TIME_COLUMNS
from spark_mq.parquet.writer import WrittenFile, write_file
from spark_mq.storage.message_table import MessageTable
from spark_mq.util.clock import to_datetime

__all__ = [
    "HEADER_PREFIX",
    "Copy",
    "DeadSlice",
    "Routing",
    "copy_dead",
    "dead_tables",
    "route_dead_letters",
]

HEADER_PREFIX = "spark_mq."
ROUTE_RANGES = 5_000  # most dead ranges that one round of commits routes
ROUTE_MESSAGES = 100_000  # most messages of these
FILE_BYTES = 32 * 2**20  # in one file of the dead-letter queue, all of it in memory

DeadSlice = tuple[FileSlice, dict[str, str]]
"""A slice of messages with one cause of death, and the values of their dead letters' headers."""

Copy = Callable[[MessageTable, MessageTable, Sequence[DeadSlice]], list[WrittenFile]]


class Routing(Transfer):
    prefix = "routing"
    operation = "route"
    event = "routed"

    def __init__(self, source: GroupLedger, target: MessageTable, copy: Copy) -> None:
        super().__init__(source, target)
        self._copy = copy

    def freezing(self, transfer_id: str) -> FreezeDead:
        return FreezeDead(transfer_id, ROUTE_RANGES, ROUTE_MESSAGES)

    def write(self, ranges: Sequence[Range]) -> list[WrittenFile]:
        messages = self.source.messages
        index = messages.index()
        slices = [
            (piece, _headers(self.source, r))
            for r in ranges
            for piece in index.slices(r.first, r.last)
        ]
        return self._copy(messages, self.target, slices)

    def commit_info(self) -> Mapping[str, Any]:
        return {"group": self.source.name}


def route_dead_letters(context: QueueContext, group: GroupLedger, copy: Copy | None = None) -> int:
    """Move all dead messages of a group to the dead-letter queue. Return their number.

    ``copy(messages, dead_messages, slices)`` writes the files, which the Spark job does in
    parallel. A dead-letter queue's own dead messages are dropped, because a copy in the same queue
    would reach the group again.
    """
    dead = context.dead_letters()
    if dead.path == context.path:
        group.run(DropDead())
        return 0
    routing = Routing(group, dead.messages, copy or copy_dead)
    total = routing.finish_all()
    while (transfer_id := routing.freeze()) is not None:
        total += routing.finish(transfer_id)
    return total


def _headers(group: GroupLedger, r: Range) -> dict[str, str]:
    values = {
        "queue": group.queue_path,
        "queue_id": group.queue_id or None,
        "group": group.name,
        "delivery_count": str(r.delivery_count),
        "failure_count": str(r.failure_count),
        "reason": r.reason,
        "error": r.error,
        "first_leased_at": _iso(r.first_leased_at),
        "last_leased_at": _iso(r.leased_at),
    }
    return {HEADER_PREFIX + name: value for name, value in values.items() if value is not None}


def _iso(at: int | None) -> str | None:
    return to_datetime(at).isoformat() if at else None


def copy_dead(
    log: MessageTable, dead_log: MessageTable, slices: Sequence[DeadSlice]
) -> list[WrittenFile]:
    """Copy dead messages into files of the dead-letter queue, in this process."""
    return [
        write_file(dead_log.files, table, lanes=dead_log.lanes)
        for table in dead_tables(log.files, slices)
    ]


def dead_tables(files: Any, slices: Iterable[DeadSlice]) -> Iterator[pa.Table]:
    """Yield dead messages as dead letters, in tables that fit in memory.

    A message whose payload cannot be read still arrives, with a null value.
    """
    reader = MessageReader(files)
    return join_tables((_dead_rows(reader, part) for part in cut_slices(files, slices)), FILE_BYTES)


def _dead_rows(reader: MessageReader, part: Sequence[DeadSlice]) -> pa.Table:
    try:
        rows = reader.try_read(*(piece for piece, _ in part))
    except (OSError, pa.ArrowException) as error:
        if len(part) > 1:  # find the slice that cannot be read
            return pa.concat_tables([_dead_rows(reader, [one]) for one in part])
        piece, why = part[0]
        reason = unreadable_reason(
            reader.files, piece.path, error, lambda files: MessageReader(files).try_read(piece)
        )
        part = [(piece, {**why, HEADER_PREFIX + "payload": f"unreadable: {reason}"[:500]})]
        ids = pa.array([str(piece.first + n) for n in range(piece.rows)], pa.string())
        rows = pa.table(
            [ids if f.name == "message_id" else pa.nulls(piece.rows, f.type) for f in FILE_SCHEMA],
            schema=FILE_SCHEMA,
        )
    each = ((why, piece.first + n) for piece, why in part for n in range(piece.rows))
    headers = [
        [(k, v) for k, v in (own or ()) if not k.startswith(HEADER_PREFIX)]
        + [*why.items(), (HEADER_PREFIX + "sequence", str(seq))]
        for own, (why, seq) in zip(rows["headers"].to_pylist(), each, strict=True)
    ]
    changed = {"headers": pa.array(headers, FILE_SCHEMA.field("headers").type)}
    # A dead letter has no delivery times. It is due immediately, and stays.
    changed |= {
        name: pa.nulls(rows.num_rows, FILE_SCHEMA.field(name).type) for name in TIME_COLUMNS
    }
    return pa.table([changed.get(f.name, rows[f.name]) for f in FILE_SCHEMA], schema=FILE_SCHEMA)
