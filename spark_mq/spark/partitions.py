"""Input partitions: slices of immutable files with what the ledger says of them, and how a task reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from spark_mq import delta
from spark_mq.index import Slice
from spark_mq.payload import unreadable
from spark_mq.ranges import RANGE_SCHEMA, Range
from spark_mq.slices import SliceReader
from spark_mq.spark.schema import PAYLOAD_COLUMNS, arrow_schema

__all__ = ["SlicePartition", "cut", "cut_all", "read"]

PARTITION_BYTES = 32 * 2**20
_BATCH_ROWS = 10_000

Piece = tuple[Slice, Range]


@dataclass(frozen=True)
class SlicePartition(InputPartition):
    """What one task reads: ``pieces`` of the files of ``queue``. A pure value: reading it twice gives the same rows."""

    queue: str
    pieces: tuple[Piece, ...]
    storage_options: dict[str, str] = field(default_factory=dict, repr=False)


def cut_all(plans: Sequence[tuple[str, Sequence[Piece]]], options: Mapping[str, str], at_least: int) -> list[InputPartition]:
    """The slices of several queues (by path) as partitions, one queue after the other."""
    total = sum(piece.rows for _, pieces in plans for piece, _ in pieces)
    return [
        part
        for queue, pieces in plans
        for part in cut(queue, pieces, options, -(-at_least * sum(piece.rows for piece, _ in pieces) // max(1, total)))
    ]


def cut(queue: str, pieces: Sequence[Piece], options: Mapping[str, str], at_least: int) -> list[InputPartition]:
    """Slices as partitions of like numbers of rows: `at_least` so many (as far as there are rows), more where they are large."""
    rows = sum(piece.rows for piece, _ in pieces)
    size = sum(piece.size for piece, _ in pieces)
    wanted = min(rows, max(at_least, -(-size // PARTITION_BYTES)))
    if not wanted:
        return []
    share = -(-rows // wanted)
    out: list[InputPartition] = []
    current: list[Piece] = []
    room = share
    for piece, of in pieces:
        left = piece
        while left.rows:
            take = min(room, left.rows)
            current.append((replace(left, rows=take, size=left.size * take // left.rows), of))
            left = replace(left, offset=left.offset + take, first=left.first + take, rows=left.rows - take,
                           size=left.size - left.size * take // left.rows)  # fmt: skip
            room -= take
            if room == 0:
                out.append(SlicePartition(queue, tuple(current), dict(options)))
                current, room = [], share
    if current:
        out.append(SlicePartition(queue, tuple(current), dict(options)))
    return out


def read(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in the columns of `schema`. Where there was nothing to read, Spark gives a partition of its own."""
    if not isinstance(partition, SlicePartition):
        return
    wanted = arrow_schema(schema)
    payload = [name for name in wanted.names if name in PAYLOAD_COLUMNS]
    reader = SliceReader(delta.Files(delta.child(partition.queue, "messages"), partition.storage_options), payload)
    for piece, of in _in_batches(partition.pieces):
        try:
            rows = reader.read(piece) if payload else None
        except (OSError, pa.ArrowException) as error:
            raise unreadable(reader.files, piece, error) from error
        columns = [rows[f.name].cast(f.type) if rows is not None and f.name in payload else _state(f, piece, of, partition) for f in wanted]
        yield from pa.table(columns, schema=wanted).to_batches()


def _in_batches(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Slices no longer than one batch, so that a task holds only that much at a time."""
    for piece, of in pieces:
        for start in range(0, piece.rows, _BATCH_ROWS):
            rows = min(_BATCH_ROWS, piece.rows - start)
            yield replace(piece, offset=piece.offset + start, first=piece.first + start, rows=rows), of


_FROM_RANGE = {"lease_expires_at": "expires_at"}


def _state(wanted: pa.Field, piece: Slice, of: Range, partition: SlicePartition) -> pa.Array:
    """A column that is the same for the whole slice, or counts up along it."""
    if wanted.name == "queue":
        return pa.repeat(pa.scalar(partition.queue, pa.string()), piece.rows)
    if wanted.name == "sequence":
        return pa.array(range(piece.first, piece.first + piece.rows), pa.int64())
    name = _FROM_RANGE.get(wanted.name, wanted.name)
    value = getattr(of, name)
    if pa.types.is_timestamp(RANGE_SCHEMA.field(name).type):
        return pa.repeat(pa.scalar(value, pa.int64()), piece.rows).cast(wanted.type)
    return pa.repeat(pa.scalar(value, wanted.type), piece.rows)
