"""SQL over a queue: the table functions, and the filters of a batch read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, Not
from support.harness import make_queue

from spark_mq import GroupStats, Queue
from spark_mq.ledger.ranges import Range
from spark_mq.spark import register
from spark_mq.spark.options import ReadOptions
from spark_mq.spark.peek_filters import PeekFilters
from spark_mq.spark.peek_reader import PeekReader
from spark_mq.spark.schema import READ_SCHEMA
from spark_mq.spark.tables import STATS_SCHEMA


@pytest.fixture
def busy(tmp_path: Path) -> Queue:
    """Five files of two messages. Of the first one was rejected, and one is acked."""
    queue = make_queue(tmp_path / "orders", retry_delay="1h")
    for n in range(5):
        queue.publish([f"{n}a", f"{n}b"])
    group = queue.group("billing")
    lease = group.lease("worker-1", max_messages=2)
    assert lease is not None
    lease.reject([lease.messages[0].sequence], error="no customer")
    lease.ack()
    held = group.lease("worker-2", max_messages=2)
    assert held is not None
    return queue


@pytest.fixture
def pushing(spark: Any) -> Iterator[Any]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def rows(spark: Any, query: str) -> list[dict[str, Any]]:
    return [row.asDict() for row in spark.sql(query).collect()]


def test_the_table_functions_say_what_the_python_api_says(spark: Any, busy: Queue) -> None:
    register(spark)
    (stats,) = rows(spark, f"SELECT * FROM spark_mq_stats('{busy.path}')")
    assert (stats["consumer_group"], stats["ready"], stats["in_flight"]) == ("billing", 6, 2)
    (lease,) = rows(spark, f"SELECT * FROM spark_mq_leases('{busy.path}')")
    (expected,) = busy.group("billing").leases()
    assert lease["lease_id"] == expected.lease_id
    assert (lease["worker_id"], lease["messages"]) == ("worker-2", 2)
    assert lease["since"].replace(tzinfo=UTC) == expected.since
    assert (lease["first"], lease["last"]) == expected.positions[0]
    (first,) = busy.find(message_id=str(busy.peek(1)[0].message_id))
    trace = rows(spark, f"SELECT * FROM spark_mq_trace('{busy.path}', {first}) ORDER BY version")
    assert [one["event"] for one in trace] == [one.event for one in busy.trace(first).events]
    assert trace[-1]["error"] == "no customer"
    busy.sweep()
    query = f"SELECT outcome, sum(message_count) AS n FROM spark_mq_history('{busy.path}')"
    found = rows(spark, query + " WHERE outcome IS NOT NULL GROUP BY outcome ORDER BY outcome")
    assert found == [{"outcome": "acked", "n": 1}, {"outcome": "dead_lettered", "n": 1}]


def test_stats_have_every_count() -> None:
    names = {one.name for one in fields(GroupStats)} - {"tail_version"}
    assert names == set(STATS_SCHEMA.names[1:])


QUERIES = {
    "state = 'leased'": 2,
    "state = 'dead'": 1,
    "state IN ('leased', 'dead')": 3,
    "state = 'unread' AND sequence > 4 * 4294967296": 3,
    "worker_id = 'worker-2'": 2,
    "failure_count >= 1": 0,
    "delivery_count >= 1": 3,
    "lease_expires_at > current_timestamp()": 2,
    "lease_expires_at < current_timestamp()": 0,
    "state <> 'settled'": 9,
    "cast(value AS string) = '0a' AND state = 'dead'": 1,
}


def test_filters_change_no_result(pushing: Any, busy: Queue) -> None:
    def count(where: str) -> int:
        frame = pushing.read.format("spark_mq").option("consumerGroup", "billing").load(busy.path)
        return int(frame.where(where).count())

    pushed = {where: count(where) for where in QUERIES}
    assert pushed == QUERIES
    pushing.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert {where: count(where) for where in QUERIES} == pushed


def read_rows(queue: Queue, *filters: Any) -> int:
    """The rows of the slices that tasks would read."""
    options = ReadOptions.parse({"path": queue.path, "consumerGroup": "billing"})
    reader = PeekReader(options, READ_SCHEMA)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark applies all of them"
    return sum(piece.rows for part in reader.partitions() for piece, _ in part.pieces)


def test_less_is_read(busy: Queue) -> None:
    assert read_rows(busy) == 10
    assert read_rows(busy, EqualTo(("state",), "leased")) == 2
    assert read_rows(busy, In(("state",), ("leased", "dead"))) == 3
    assert read_rows(busy, GreaterThan(("sequence",), 4 << 32)) == 3
    assert read_rows(busy, EqualTo(("sequence",), 4 << 32)) == 1
    assert read_rows(busy, LessThanOrEqual(("sequence",), 2 << 32)) == 3
    assert read_rows(busy, EqualTo(("value", "state"), "leased")) == 10
    assert read_rows(busy, Not(EqualTo(("state",), "leased"))) == 10
    late = datetime(2100, 1, 1, tzinfo=UTC)
    assert read_rows(busy, GreaterThan(("lease_expires_at",), late)) == 0
    assert read_rows(busy, GreaterThan(("lease_expires_at",), late.replace(tzinfo=None))) == 10


def test_an_empty_list_of_sequences_wants_nothing() -> None:
    wanted = PeekFilters.of([In(("sequence",), ())])
    assert not wanted.keep(Range(0, 5, "unread", message_count=6))
