"""Build the table of delivered messages from their rows and ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_mq.ledger.message_index import FileSlice
from spark_mq.ledger.ranges import Range
from spark_mq.parquet.bands import effective_priorities
from spark_mq.parquet.reader import cast_column, repeat_values, sequences_of
from spark_mq.parquet.schema import INSTANT

__all__ = ["to_delivery_table"]


def to_delivery_table(
    payload: pa.Table | None,
    pieces: Sequence[tuple[FileSlice, Range]],
    schema: pa.Schema,
    constants: Mapping[str, Any],
) -> pa.Table:
    """Return leased messages in the columns of a schema.

    A column comes from `payload`, from `constants`, or from the slice and its range. `payload` is
    None if the schema has no column of a data file. Instants are in microseconds since 1970.
    """
    rows = [piece.rows for piece, _ in pieces]

    def column(field: pa.Field) -> Any:
        if payload is not None and field.name in payload.schema.names:
            column = payload[field.name]
            return cast_column(
                _priority(column) if field.name == "priority" else column, field.type
            )
        if field.name == "sequence":
            return sequences_of(piece for piece, _ in pieces)
        if field.name in constants:
            return _repeated([constants[field.name]], [sum(rows)], field.type)
        name = "expires_at" if field.name == "lease_expires_at" else field.name
        return _repeated([getattr(of, name) for _, of in pieces], rows, field.type)

    return pa.table([column(field) for field in schema], schema=schema)


def _priority(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if column.null_count == len(column):
        return pa.chunked_array([pa.repeat(pa.scalar(0, column.type), len(column))])
    return effective_priorities(column)


def _repeated(values: Sequence[Any], rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return repeat_values(values, rows, pa.int64()).cast(INSTANT).cast(kind)
    return repeat_values(values, rows, kind)
