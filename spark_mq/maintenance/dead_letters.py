"""Move dead messages to the dead-letter queue, and read its letters as tables.

Any program that may append there can write any header, so each one is checked.
"""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq.delta.object_store import canonical_uri
from spark_mq.errors import CorruptLog, DuplicatePublish
from spark_mq.ledger.commands import Command
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.interventions import DropDead, FreezeDead, SettleRouted
from spark_mq.ledger.message_index import FileSlice, MessageIndex
from spark_mq.ledger.ranges import TRANSFERRING, Range
from spark_mq.message import HEADER_PREFIX
from spark_mq.operations.context import GroupLedger, QueueContext
from spark_mq.parquet.files import unreadable_reason
from spark_mq.parquet.reader import MAX_ROWS, MessageReader, cut_slices, join_tables, sequences_of
from spark_mq.parquet.schema import FILE_SCHEMA, TIME_COLUMNS
from spark_mq.parquet.writer import WrittenFile
from spark_mq.storage.message_table import MessageTable
from spark_mq.storage.publishes import PendingPublish
from spark_mq.util.clock import to_datetime
from spark_mq.util.validation import whole_number

_log = logging.getLogger(__name__)
ROUTE_RANGES = 5_000  # most dead ranges that one round of commits routes
ROUTE_MESSAGES = 100_000  # most messages of these
FILE_BYTES = 32 * 2**20  # in one file of the dead-letter queue, all of it in memory
DeadSlice = tuple[FileSlice, dict[str, str]]
"""A slice of messages with one cause of death, and the values of their dead letters' headers."""


class Transfer(ABC):
    """Moves messages of one ledger into another queue. Safe to kill, to repeat, to run twice."""

    prefix: str  # of the transfer ids
    operation: str  # in the note of the publish, which is the second one
    event: str  # of the messages in the ledger: "routed" or "redriven"
    detail: str | None = None  # a person's request, for the note of the last commit

    def __init__(self, source: GroupLedger, target: MessageTable) -> None:
        self.source = source
        self.target = target

    @abstractmethod
    def freezing(self, transfer_id: str) -> Command[int]:
        """Return the command that freezes messages under an id, and counts them."""

    @abstractmethod
    def write(self, ranges: Sequence[Range]) -> list[WrittenFile]:
        """Write the files of the target."""

    def commit_info(self) -> Mapping[str, Any]:
        return {}

    def finish_all(self) -> int:
        """Finish the transfers that were begun. Return the number of messages."""
        ledger = self.source.ledger_in(self.source.snapshot())
        rows = ledger.ranges_at(ledger.find((TRANSFERRING,)))
        begun = {r.lease_id: r for r in rows if r.lease_id}
        transfers = ((transfer_id, self.begun(begun[transfer_id])) for transfer_id in sorted(begun))
        return sum(transfer.finish(transfer_id) for transfer_id, transfer in transfers if transfer)

    def begun(self, r: Range, index: MessageIndex | None = None) -> Transfer | None:
        """Return the transfer that can finish one which was begun, or None if none can now.

        A recovery gives its own `index` of the source, because a look at it may be refused.
        """
        return self

    def freeze(self) -> str | None:
        """Freeze messages under a new id. Return the id, or None without messages."""
        transfer_id = f"{self.prefix}-{uuid.uuid4().hex}"
        return transfer_id if self.source.run(self.freezing(transfer_id)) else None

    def finish(self, transfer_id: str) -> int:
        """Publish the frozen messages of an id unless that is done, and settle it."""
        ledger = self.source.ledger_in(self.source.snapshot())
        moving = ledger.ranges_at(ledger.find((TRANSFERRING,)))
        frozen = [r for r in moving if r.lease_id == transfer_id]
        # The check saves writing the files. The transaction refuses a second publish.
        if frozen and self.target.last_number(transfer_id) is None:
            self.publish(frozen, transfer_id)
        return self.settle(transfer_id)

    def settle(self, transfer_id: str) -> int:
        """Settle the published messages of an id. Return their number."""
        return self.source.run(SettleRouted(transfer_id, self.event, self.detail))

    def publish(self, ranges: Sequence[Range], transfer_id: str) -> None:
        """Publish an id's messages, or those that the target has lost."""
        files = self.write(ranges)
        note = {"operation": self.operation, **self.commit_info()}
        try:
            pending = PendingPublish(self.target.files, files)
            self.target.commit(pending, txn=(transfer_id, 1), note=note)
        except DuplicatePublish:
            _log.info("another sweeper has published %s", transfer_id)


class Routing(Transfer):
    prefix = "routing"
    operation = "route"
    event = "routed"

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
        return copy_dead(messages, self.target, slices)

    def commit_info(self) -> Mapping[str, Any]:
        return {"group": self.source.name}


def route_dead_letters(context: QueueContext, group: GroupLedger) -> int:
    """Move all dead messages of a group to the dead-letter queue. Return their number.

    A dead-letter queue's own dead messages are dropped, because a copy in the same queue
    would reach the group again.
    """
    dead = context.dead_letters()
    if dead.path == context.path:
        group.run(DropDead())
        return 0
    routing = Routing(group, dead.messages)
    total = routing.finish_all()
    while (transfer_id := routing.freeze()) is not None:
        total += routing.finish(transfer_id)
    return total


def _headers(group: GroupLedger, r: Range) -> dict[str, str]:
    values = {
        "queue": group.queue_path,
        "queue_id": group.queue.settings.queue_id or None,
        "group": group.name,
        "delivery_count": str(r.delivery_count),
        "failure_count": str(r.failure_count),
        "reason": r.reason,
        "error": _error(group, r),
        "first_leased_at": _iso(r.first_leased_at),
        "last_leased_at": _iso(r.leased_at),
    }
    return {HEADER_PREFIX + name: value for name, value in values.items() if value is not None}


def _error(group: GroupLedger, r: Range) -> str | None:
    """Return a message's last error, with a warning if the group's sink may have its rows."""
    if r.sink_writes is None:
        return r.error
    warning = f"The sink {group.last_settings.sink} may have its rows: look before a redrive"
    return warning if r.error is None else f"{r.error}. {warning}"


def _iso(at: int | None) -> str | None:
    return to_datetime(at).isoformat() if at else None


def copy_dead(
    log: MessageTable, dead_log: MessageTable, slices: Sequence[DeadSlice]
) -> list[WrittenFile]:
    """Copy dead messages into files of the dead-letter queue. Unreadable values are null."""
    reader = MessageReader(log.files)
    parts = (_dead_rows(reader, part) for part in cut_slices(log.files, slices))
    return [dead_log.write_file(table) for table in join_tables(parts, FILE_BYTES)]


def _dead_rows(reader: MessageReader, part: Sequence[DeadSlice]) -> pa.Table:
    try:
        rows = reader.try_read(*(piece for piece, _ in part))
    except (OSError, pa.ArrowException) as error:
        if len(part) > 1:  # find the slice that cannot be read
            return pa.concat_tables([_dead_rows(reader, [letter]) for letter in part])
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


def is_own_letter(queue: QueueContext, letters: pa.Table) -> pa.Array:
    """Return a mask of a queue's own letters, by the queue's id, or by its path without one."""
    settings, options = queue.settings, queue.storage_options
    own = canonical_uri(queue.path, options)
    texts = letters["queue"].unique().drop_null().to_pylist()
    names = {text for text in texts if canonical_uri(text, options) == own}
    ids = pa.array({settings.queue_id, *settings.former_ids} - {""}, pa.string())
    by_path = pc.is_in(letters["queue"], value_set=pa.array(names, pa.string()))
    without_id = pc.and_(pc.is_null(letters["queue_id"]), by_path)
    return pc.or_(pc.is_in(letters["queue_id"], value_set=ids), without_id)


def _typed(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return header texts as whole numbers or instants. Unfit texts become null."""
    parse = whole_number if pa.types.is_int64(kind) else _instant
    return pa.array([parse(text) for text in texts.to_pylist()], kind)


def _instant(text: str | None) -> datetime | None:
    try:
        at = datetime.fromisoformat(text or "")
        return at.astimezone(UTC) if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


_HEADER_COLUMNS: Final = (
    "queue",
    "queue_id",
    "group",
    "sequence",
    "delivery_count",
    "failure_count",
    "reason",
    "error",
    "first_leased_at",
    "last_leased_at",
)
_RENAMED: Final = {"group": "consumer_group"}
_PAYLOAD_COLUMNS: Final = ("message_id", "key", "value", "headers", "published_at", "priority")
COLUMNS: Final = (
    "dead_letter_sequence",
    *_PAYLOAD_COLUMNS,
    *(_RENAMED.get(name, name) for name in _HEADER_COLUMNS),
)
"""The columns that ``where`` may name.

``sequence`` is that in the queue, null if the letter does not name it. ``dead_letter_sequence`` is
that in the dead-letter queue. ``value`` is bytes.
"""

_TYPES: Final = {
    "sequence": pa.int64(),
    "delivery_count": pa.int64(),
    "failure_count": pa.int64(),
    "first_leased_at": pa.timestamp("us", tz="UTC"),
    "last_leased_at": pa.timestamp("us", tz="UTC"),
}


def letter_schema() -> pa.Schema:
    return pa.schema(
        [
            pa.field("dead_letter_sequence", pa.int64()),
            *(FILE_SCHEMA.field(name) for name in _PAYLOAD_COLUMNS),
            *(
                pa.field(_RENAMED.get(name, name), _TYPES.get(name, pa.string()))
                for name in _HEADER_COLUMNS
            ),
        ]
    )


def letter_tables(
    log: MessageTable,
    index: MessageIndex,
    intervals: Sequence[Interval],
    max_rows: int,
    *,
    skip: bool = False,
) -> Iterator[pa.Table]:
    """Yield letters in tables that fit in memory, without unreadable ones if `skip`."""
    reader = MessageReader(log.files)
    slices = ((piece, None) for interval in intervals for piece in index.slices(*interval))
    parts = cut_slices(log.files, slices, max_rows=min(max_rows, MAX_ROWS))
    tables = (
        _as_columns(read, rows)
        for part in parts
        for read, rows in read_pieces(reader, [piece for piece, _ in part], skip)
    )
    return join_tables(tables, FILE_BYTES, max_rows)


def read_pieces(
    reader: MessageReader, pieces: Sequence[FileSlice], skip: bool
) -> Iterator[tuple[Sequence[FileSlice], pa.Table]]:
    """Yield the rows of some slices, without unreadable ones if `skip`."""
    try:
        yield pieces, reader.read(*pieces)
        return
    except CorruptLog as error:
        if not skip:
            raise
        if len(pieces) == 1:
            _log.error("dead letters that cannot be redriven: %s", error)
            return
    for piece in pieces:
        yield from read_pieces(reader, [piece], skip)


def _as_columns(pieces: Sequence[FileSlice], rows: pa.Table) -> pa.Table:
    schema = letter_schema()
    given = (dict(headers or ()) for headers in rows["headers"].to_pylist())
    own = [
        [(name, text) for name, text in headers.items() if not name.startswith(HEADER_PREFIX)]
        for headers in given
    ]
    columns = header_columns(pieces, rows)
    columns["headers"] = pa.array(own, schema.field("headers").type)
    return pa.table(
        [columns[f.name] if f.name in columns else rows[f.name] for f in schema], schema=schema
    )


def header_columns(
    pieces: Sequence[FileSlice], rows: pa.Table, names: Sequence[str] = _HEADER_COLUMNS
) -> dict[str, Any]:
    """Return the sequences of letters, and what some of their headers say."""
    headers = rows["headers"].combine_chunks()
    columns: dict[str, Any] = {"dead_letter_sequence": sequences_of(pieces)}
    for name in names:
        key = pa.scalar(HEADER_PREFIX + name)
        # The last header of a name counts, as in a dict.
        texts = pc.map_lookup(headers, query_key=key, occurrence="last").cast(pa.string())
        kind = _TYPES.get(name)
        columns[_RENAMED.get(name, name)] = texts if kind is None else _typed(texts, kind)
    return columns


def as_messages(
    table: pa.Table, letter_header: str, more: Sequence[tuple[str, str]] = ()
) -> pa.Table:
    """Return dead letters as first published, with headers of their origin."""
    rows = zip(
        table["headers"].to_pylist(),
        table["consumer_group"].to_pylist(),
        table["reason"].to_pylist(),
        table["dead_letter_sequence"].to_pylist(),
        strict=True,
    )
    headers = [
        [
            *(own or ()),
            (letter_header, str(seq)),
            *more,
            *([(HEADER_PREFIX + "group", group)] if group else []),
            # In its own queue, the trace of a message says why it died.
            *([(HEADER_PREFIX + "reason", reason)] if more and reason else []),
        ]
        for own, group, reason, seq in rows
    ]
    renewed = pa.array(headers, FILE_SCHEMA.field("headers").type)
    names = [f.name for f in FILE_SCHEMA if f.name in table.schema.names]
    return pa.table(
        [renewed if name == "headers" else table[name] for name in names],
        schema=pa.schema([FILE_SCHEMA.field(n) for n in names]),
    )
