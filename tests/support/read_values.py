"""What a batch read of Spark makes of the values of messages, without a session."""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as t
from pyspark.sql.datasource import GreaterThanOrEqual

from spark_mq import Queue
from spark_mq.spark import SparkMQDataSource
from support.tables import add_values, messages_of


def read_values(
    queue: Queue, values: list[bytes | None], kind: t.DataType, **options: str
) -> tuple[list[Any], list[str | None]]:
    """Return the columns `data` and `data_error` of values that another Delta writer appends.

    `kind` is what Spark makes of the DDL of a valueSchema.
    """
    first = messages_of(queue).index().last_sequence + 1
    add_values(queue, *values)
    source = SparkMQDataSource({"path": queue.path, **options})
    reader: Any = source.reader(t.StructType().add("data", kind).add("data_error", "string"))
    reader.pushFilters([GreaterThanOrEqual(("sequence",), first)])
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert len(rows) == len(values)
    return [row["data"] for row in rows], [row["data_error"] for row in rows]
