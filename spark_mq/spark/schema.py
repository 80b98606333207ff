"""The columns of ``format("spark_mq")``, for Spark and Arrow."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_mq.errors import InvalidSchema
from spark_mq.parquet.schema import FILE_SCHEMA
from spark_mq.spark.value_schema import DATA_COLUMNS, data_fields

__all__ = [
    "PAYLOAD_COLUMNS",
    "READ_SCHEMA",
    "SEVERAL_SCHEMA",
    "arrow_schema",
    "check_projection",
    "read_schema",
]

_DELIVERED: Final = StructType(
    [
        StructField("sequence", LongType()),
        StructField("message_id", StringType()),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("published_at", TimestampType()),
        StructField("priority", IntegerType()),
        StructField("delivery_count", IntegerType()),
        StructField("lease_id", StringType()),
        StructField("lease_expires_at", TimestampType()),
    ]
)
# The last six columns are the message's state in the group. A stream has the state at its lease.
READ_SCHEMA: Final = StructType(
    [
        *_DELIVERED.fields,
        StructField("state", StringType()),
        StructField("failure_count", IntegerType()),
        StructField("worker_id", StringType()),
        StructField("available_at", TimestampType()),
        StructField("reason", StringType()),
        StructField("error", StringType()),
    ]
)

SEVERAL_SCHEMA: Final = StructType([*READ_SCHEMA.fields, StructField("queue", StringType())])

PAYLOAD_COLUMNS: Final = frozenset(FILE_SCHEMA.names)


def read_schema(several: bool, value_schema: DataType | None) -> StructType:
    schema = SEVERAL_SCHEMA if several else READ_SCHEMA
    return schema if value_schema is None else StructType(schema.fields + data_fields(value_schema))


def arrow_schema(schema: StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def check_projection(
    schema: StructType, several: bool, value_schema: DataType | None = None
) -> None:
    """Raise InvalidSchema if ``.schema(...)`` has an unknown column or another type."""
    known = {f.name: f.dataType for f in read_schema(several, value_schema).fields}
    for wanted in schema.fields:
        if wanted.name not in known:
            fix = ". The option valueSchema adds it" if wanted.name in DATA_COLUMNS else ""
            raise InvalidSchema(
                f"there is no column {wanted.name!r} to read. Choose from {', '.join(known)}{fix}",
                column=wanted.name,
            )
        if known[wanted.name].simpleString() != wanted.dataType.simpleString():
            raise InvalidSchema(
                f"column {wanted.name!r} is {known[wanted.name].simpleString()}, not "
                f"{wanted.dataType.simpleString()}. Cast it after the read",
                column=wanted.name,
            )
    if "data_error" in schema.names and "data" not in schema.names:
        raise InvalidSchema("column 'data_error' needs 'data': read both", column="data")
