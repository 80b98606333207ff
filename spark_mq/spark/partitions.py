"""Cut a batch into partitions, and read one in a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_mq.delta.object_store import ObjectStore, join
from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.parquet.reader import MessageReader, to_delivery_table
from spark_mq.spark.schema import DATA_COLUMNS, PAYLOAD_COLUMNS, arrow_schema

if TYPE_CHECKING:
    from spark_mq.spark.json_values import JsonParser
    from spark_mq.streaming.lanes import LaneRuns

PARTITION_BYTES = 64 * 2**20
PARTITION_ROWS = 50_000
_BATCH_ROWS = 10_000

Piece = tuple[FileSlice, Range]


@dataclass(frozen=True)
class SlicePartition(InputPartition):
    """The slices of one queue's files that one task reads, each with its range of the ledger.

    The files never change, so a second read gives the same rows.
    """

    queue: str
    pieces: tuple[Piece, ...]
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)
    keeps_lanes: bool = False  # It has all rows of its lanes, so no other read may divide them.


class QueuePlan(NamedTuple):
    """The slices to read of one queue."""

    queue: str
    pieces: Sequence[Piece]
    runs: Sequence[LaneRuns] = ()  # the lanes of each slice, if rows of a lane stay together


def cut_all(
    plans: Sequence[QueuePlan], options: Mapping[str, str], at_least: int
) -> list[InputPartition]:
    """Cut the slices of several queues into partitions. See :func:`cut`."""
    rows = [sum(piece.rows for piece, _ in plan.pieces) for plan in plans]
    total = max(1, sum(rows))
    return [
        part
        for plan, mine in zip(plans, rows, strict=True)
        for part in cut(*plan[:2], options, -(-at_least * mine // total), plan.runs)
    ]


def cut(
    queue: str,
    pieces: Sequence[Piece],
    options: Mapping[str, str],
    at_least: int,
    runs: Sequence[LaneRuns] = (),
) -> list[InputPartition]:
    """Cut slices into `at_least` or more equal partitions, or by the `runs` of lanes."""
    rows = sum(piece.rows for piece, _ in pieces)
    size = sum(piece.size for piece, _ in pieces)
    wanted = min(rows, max(at_least, -(-size // PARTITION_BYTES), -(-rows // PARTITION_ROWS)))
    if not wanted:
        return []
    if runs:
        from spark_mq.streaming.lanes import divide_by_lane  # tasks load this module too

        parts = divide_by_lane(pieces, runs, wanted)
        return [SlicePartition(queue, tuple(part), dict(options), True) for part in parts]
    shares = (rows * (at + 1) // wanted - rows * at // wanted for at in range(wanted))
    return [SlicePartition(queue, tuple(part), dict(options)) for part in _divide(pieces, shares)]


def _divide(pieces: Iterable[Piece], shares: Iterator[int]) -> Iterator[list[Piece]]:
    """Yield the slices in parts of so many rows. The last part may have fewer."""
    part, room = cast(list[Piece], []), next(shares)
    for piece, of in pieces:
        left = piece
        while left.rows:
            rows = min(room, left.rows)
            part.append((left.part(0, rows), of))
            left = left.part(rows, left.rows - rows)
            room -= rows
            if not room:
                yield part
                part, room = [], next(shares, 0)
    if part:
        yield part


def read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition, in the columns of `schema`."""
    if not isinstance(partition, SlicePartition):  # Spark's own, for a batch without slices
        return
    wanted, parser = arrow_schema(schema), _parser(schema)
    stored = wanted if parser is None else _without_data(wanted)
    payload = [name for name in stored.names if name in PAYLOAD_COLUMNS]
    reader = MessageReader(
        ObjectStore(join(partition.queue, "messages"), partition.storage_options), payload
    )
    # A task holds one batch in memory.
    for pieces in _divide(partition.pieces, repeat(_BATCH_ROWS)):
        rows = reader.read(*(piece for piece, _ in pieces)) if payload else None
        table = to_delivery_table(rows, pieces, stored, {"queue": partition.queue})
        if parser is not None:
            table = _with_data(table, parser, wanted)
        yield from table.to_batches()


def _parser(schema: StructType) -> JsonParser | None:
    if "data" not in schema.names:
        return None
    from spark_mq.spark.json_values import JsonParser

    return JsonParser(schema["data"].dataType)


def _without_data(wanted: pa.Schema) -> pa.Schema:
    """Return the columns to read: ``value``, and the wanted ones that are not parsed from it."""
    kept = [field for field in wanted if field.name not in (*DATA_COLUMNS, "value")]
    return pa.schema([*kept, pa.field("value", pa.binary())])


def _with_data(table: pa.Table, parser: JsonParser, wanted: pa.Schema) -> pa.Table:
    data, errors = parser.parse(table["value"].to_pylist())
    parsed = dict(zip(DATA_COLUMNS, (data, errors), strict=True))
    columns = [parsed.get(field.name) for field in wanted]
    return pa.table(
        [
            table[field.name] if column is None else column
            for field, column in zip(wanted, columns, strict=True)
        ],
        schema=wanted,
    )
