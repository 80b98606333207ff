"""The columns of ``format("spark_mq")``."""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from spark_mq.errors import InvalidSchema
from spark_mq.parquet.schema import FILE_SCHEMA

DATA_COLUMNS: Final = ("data", "data_error")  # that valueSchema adds to a read
_ONE_TYPE: Final = re.compile(r"\s*\w+\s*([<(]|$)")  # other schemas of values are columns


def with_json_values(schema: t.StructType, values: str) -> str:
    """Return columns as DDL, with those of ``valueSchema``. Only Spark's JVM can parse it."""
    kind = values if _ONE_TYPE.match(values) else f"STRUCT<{values}>"
    # A setting of the session may give "timestamp" another meaning.
    columns = [
        f"`{field.name}` {field.dataType.simpleString().replace('timestamp', 'timestamp_ltz')}"
        for field in schema
    ]
    return ", ".join([*columns, f"`data` {kind}", "`data_error` STRING"])


_DELIVERED: Final = t.StructType(
    [
        t.StructField("sequence", t.LongType()),
        t.StructField("message_id", t.StringType()),
        t.StructField("key", t.StringType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("headers", t.MapType(t.StringType(), t.StringType())),
        t.StructField("published_at", t.TimestampType()),
        t.StructField("priority", t.IntegerType()),
        t.StructField("delivery_count", t.IntegerType()),
        t.StructField("lease_id", t.StringType()),
        t.StructField("lease_expires_at", t.TimestampType()),
    ]
)
# The last six columns are the message's state in the group. A stream has the state at its lease.
READ_SCHEMA: Final = t.StructType(
    [
        *_DELIVERED.fields,
        t.StructField("state", t.StringType()),
        t.StructField("failure_count", t.IntegerType()),
        t.StructField("worker_id", t.StringType()),
        t.StructField("available_at", t.TimestampType()),
        t.StructField("reason", t.StringType()),
        t.StructField("error", t.StringType()),
    ]
)

SEVERAL_SCHEMA: Final = t.StructType([*READ_SCHEMA.fields, t.StructField("queue", t.StringType())])

PAYLOAD_COLUMNS: Final = frozenset(FILE_SCHEMA.names)


# Columns that the option ``outcomes`` adds to a batch read.
OUTCOME_FIELDS: Final = (
    t.StructField("outcome", t.StringType()),
    t.StructField("settled_at", t.TimestampType()),
)


def read_schema(
    several: bool, value_type: t.DataType | None = None, *, outcomes: bool = False
) -> t.StructType:
    schema = SEVERAL_SCHEMA if several else READ_SCHEMA
    added = [*OUTCOME_FIELDS] if outcomes else []
    if value_type is not None:
        added += [t.StructField("data", value_type), t.StructField("data_error", t.StringType())]
    return t.StructType([*schema.fields, *added]) if added else schema


def arrow_schema(schema: t.StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def check_projection(schema: t.StructType, columns: t.StructType) -> None:
    """Raise InvalidSchema if ``.schema(...)`` has an unknown column or another type."""
    known = {column.name: column.dataType for column in columns}
    for wanted in schema.fields:
        if wanted.name not in known:
            fix = ""
            if wanted.name in DATA_COLUMNS:
                fix = ". The option valueSchema adds it"
            if wanted.name in (outcome.name for outcome in OUTCOME_FIELDS):
                fix = ". The option outcomes of spark.read adds it"
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
