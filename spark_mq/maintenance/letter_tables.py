"""Read dead letters as tables with a column for each header."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from spark_mq.errors import CorruptLog
from spark_mq.ledger.intervals import Interval
from spark_mq.ledger.message_index import FileSlice
from spark_mq.maintenance.dead_letters import FILE_BYTES, HEADER_PREFIX
from spark_mq.maintenance.letter_headers import typed_texts
from spark_mq.parquet.bounded import MAX_ROWS, cut_slices, join_tables
from spark_mq.parquet.reader import MessageReader, sequences_of
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.storage.message_table import MessageTable

__all__ = ["COLUMNS", "letter_schema", "letter_tables"]

_log = logging.getLogger(__name__)

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
COLUMNS: Final = (
    "dead_letter_sequence",
    "message_id",
    "key",
    "value",
    "headers",
    "published_at",
    "priority",
    "queue",
    "queue_id",
    "consumer_group",
    "sequence",
    "delivery_count",
    "failure_count",
    "reason",
    "error",
    "first_leased_at",
    "last_leased_at",
)
"""The columns that ``where`` may name.

``sequence`` is that in the queue, null if the letter does not name it. ``dead_letter_sequence`` is
that in the dead-letter queue. ``value`` is bytes.
"""

_RENAMED: Final = {"group": "consumer_group"}
_TYPES: Final = {
    "sequence": pa.int64(),
    "delivery_count": pa.int64(),
    "failure_count": pa.int64(),
    "first_leased_at": pa.timestamp("us", tz="UTC"),
    "last_leased_at": pa.timestamp("us", tz="UTC"),
}


def letter_schema() -> pa.Schema:
    payload = [
        pa.field("dead_letter_sequence", pa.int64()),
        *(FILE_SCHEMA.field(n) for n in COLUMNS if n in FILE_SCHEMA.names),
    ]
    return pa.schema(
        [
            *payload,
            *(
                pa.field(_RENAMED.get(name, name), _TYPES.get(name, pa.string()))
                for name in _HEADER_COLUMNS
            ),
        ]
    )


def letter_tables(
    log: MessageTable, intervals: Sequence[Interval], max_rows: int, *, skip: bool = False
) -> Iterator[pa.Table]:
    """Yield dead letters with their headers as columns, in tables that fit in memory.

    ``skip`` leaves out letters that cannot be read.
    """
    index, reader = log.index(), MessageReader(log.files)
    slices = ((piece, None) for interval in intervals for piece in index.slices(*interval))
    parts = cut_slices(log.files, slices, max_rows=min(max_rows, MAX_ROWS))
    tables = (
        _as_columns(read, rows)
        for part in parts
        for read, rows in _read(reader, [piece for piece, _ in part], skip)
    )
    return join_tables(tables, FILE_BYTES, max_rows)


def _read(
    reader: MessageReader, pieces: Sequence[FileSlice], skip: bool
) -> Iterator[tuple[Sequence[FileSlice], pa.Table]]:
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
        yield from _read(reader, [piece], skip)


def _as_columns(pieces: Sequence[FileSlice], rows: pa.Table) -> pa.Table:
    schema = letter_schema()
    headers = [dict(own or ()) for own in rows["headers"].to_pylist()]
    own = [
        [(name, text) for name, text in one.items() if not name.startswith(HEADER_PREFIX)]
        for one in headers
    ]
    columns = {
        "dead_letter_sequence": sequences_of(pieces),
        "headers": pa.array(own, schema.field("headers").type),
    }
    for name in _HEADER_COLUMNS:
        texts = [one.get(HEADER_PREFIX + name) for one in headers]
        columns[_RENAMED.get(name, name)] = typed_texts(texts, _TYPES.get(name, pa.string()))
    return pa.table(
        [columns[f.name] if f.name in columns else rows[f.name] for f in schema], schema=schema
    )
