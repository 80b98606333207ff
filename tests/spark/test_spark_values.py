"""JSON values by a schema: what a stream and a look return, and what becomes of values that do not
fit.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.harness import Stream, forget_last_commit

from spark_mq import Queue

SCHEMA = "id INT NOT NULL, items ARRAY<STRUCT<price DOUBLE>>"
GOOD = ['{"id": 1, "items": [{"price": 2.5}]}', '{"id": 2}']
BAD = '{"id": "3"}'
ERROR = "Expected `int`, got `str` - at `$.id`"


@pytest.fixture
def parsed(stream: Stream, queue: Queue) -> Stream:
    queue.publish([*GOOD, BAD])
    stream.options["valueSchema"] = SCHEMA
    return stream


def test_a_look_returns_parsed_values_and_the_reason_of_others(
    spark: Any, queue: Queue, parsed: Stream
) -> None:
    reader = spark.read.format("spark_mq").option("valueSchema", SCHEMA)
    rows = reader.load(queue.path).orderBy("sequence").select("data", "data_error").collect()
    assert [row.asDict(recursive=True) for row in rows] == [
        {"data": {"id": 1, "items": [{"price": 2.5}]}, "data_error": None},
        {"data": {"id": 2, "items": None}, "data_error": None},
        {"data": None, "data_error": ERROR},
    ]
    narrow = reader.schema(f"data STRUCT<{SCHEMA}>").load(queue.path)
    assert narrow.where("data.id = 1").count() == 1


def test_a_wrong_schema_is_refused_before_the_query_starts(spark: Any, queue: Queue) -> None:
    with pytest.raises(Exception, match="INTT"):
        spark.readStream.format("spark_mq").option("valueSchema", "id INTT").load(queue.path)
    reader = spark.read.format("spark_mq").option("valueSchema", "a INT>, x STRUCT<b INT")
    with pytest.raises(Exception, match="there is no column 'x'"):
        reader.load(queue.path).collect()
    with pytest.raises(Exception, match="The option valueSchema adds it"):
        spark.read.format("spark_mq").schema("data STRUCT<id INT>").load(queue.path).collect()


def test_invalid_values_are_rejected_with_their_reason_before_process(
    queue: Queue, parsed: Stream
) -> None:
    seen: list[Any] = []

    def process(batch: Any, lease: Any) -> None:
        seen.extend(row.data.id for row in batch.orderBy("sequence").collect())
        seen.extend(row.data.id for row in lease.read().orderBy("sequence").collect())

    each = parsed.group.for_each_batch(process, on_error="raise", invalid="reject")
    parsed.run(each)
    assert seen == [1, 2, 1, 2]
    stats = parsed.group.stats()
    assert (stats.acked, stats.dead) == (2, 1)
    queue.sweep()
    letters = queue.redrive(dry_run=True).table
    assert letters["value"].to_pylist() == [BAD.encode()]
    assert letters["error"].to_pylist() == [ERROR]


@pytest.mark.slow
def test_process_is_not_called_if_no_value_is_valid(queue: Queue, stream: Stream) -> None:
    queue.publish([BAD, BAD])
    parsed = Stream(stream.spark, queue, stream.checkpoint, valueSchema=SCHEMA)
    called: list[Any] = []
    each = parsed.group.for_each_batch(
        lambda batch, lease: called.append(batch), on_error="raise", invalid="reject"
    )
    parsed.run(each)
    forget_last_commit(parsed.checkpoint)
    parsed.run(each)
    assert called == []
    stats = parsed.group.stats()
    assert (stats.dead, stats.leased) == (2, 0)
