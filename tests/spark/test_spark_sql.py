"""SQL over a queue: the table functions, and the filters of a batch read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from support.harness import busy_queue
from support.people import own_user

from spark_mq import GroupStats, Queue
from spark_mq.spark import register
from spark_mq.spark.tables import STATS_SCHEMA


@pytest.fixture
def busy(tmp_path: Path) -> Queue:
    return busy_queue(tmp_path / "orders")


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
    assert (stats["consumer_group"], stats["ready"], stats["leased"]) == ("billing", 6, 2)
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
    wanted = f"message_id => '{busy.peek(1)[0].message_id}'"
    named = rows(spark, f"SELECT * FROM spark_mq_trace('{busy.path}', {wanted}) ORDER BY version")
    assert named == trace
    busy.sweep()
    query = f"SELECT outcome, sum(message_count) AS n FROM spark_mq_history('{busy.path}')"
    found = rows(spark, query + " WHERE outcome IS NOT NULL GROUP BY outcome ORDER BY outcome")
    assert found == [{"outcome": "acked", "n": 1}, {"outcome": "dead_lettered", "n": 1}]
    trace = rows(spark, f"SELECT * FROM spark_mq_trace('{busy.path}', {first}) ORDER BY version")
    assert [trace[-1][name] for name in ("state", "outcome", "reason")] == [
        "settled", "dead_lettered", "rejected",
    ]  # fmt: skip
    last = busy.peek(20)[-1].sequence
    busy.group("billing").discard(last, reason="a test")
    queries = (
        f"spark_mq_history('{busy.path}') WHERE operation = 'discard'",
        f"spark_mq_trace('{busy.path}', {last})",
    )
    for query in queries:
        (end,) = rows(spark, f"SELECT user, detail, outcome FROM {query}")
        assert end == {"user": own_user(), "detail": "a test", "outcome": "dropped"}


def test_the_history_has_changes_that_move_no_message(spark: Any, busy: Queue) -> None:
    register(spark)
    busy.group("billing").pause("repairs")
    query = f"SELECT operation, user, detail FROM spark_mq_history('{busy.path}')"
    changes = rows(spark, query + " WHERE user IS NOT NULL")
    assert changes == [{"operation": "pause", "user": own_user(), "detail": "repairs"}]
    assert len(changes) == len([one for one in busy.changes() if one.user is not None])


def test_stats_have_every_count() -> None:
    names = {one.name for one in fields(GroupStats)} - {"latest_version"}
    assert names == set(STATS_SCHEMA.names[1:])


QUERIES = {
    "state = 'leased'": 2,
    "state = 'dead'": 1,
    "state IN ('leased', 'dead')": 3,
    "state = 'unread' AND sequence > 4 * 4294967296": 3,
    "worker_id = 'worker-2'": 2,
    "failure_count >= 1": 0,
    "lease_expires_at > current_timestamp()": 2,
    "lease_expires_at < current_timestamp()": 0,
    "state <> 'acked'": 9,
    "delivery_count >= 1": 4,
    "state = 'settled'": 0,
    "state IN ('acked', 'leased') AND delivery_count = 1": 3,
    "cast(value AS string) = '0a' AND state = 'dead'": 1,
}


@pytest.mark.slow
def test_filters_change_no_result(pushing: Any, busy: Queue) -> None:
    def count(where: str) -> int:
        frame = pushing.read.format("spark_mq").option("consumerGroup", "billing").load(busy.path)
        return int(frame.where(where).count())

    pushed = {where: count(where) for where in QUERIES}
    assert pushed == QUERIES
    pushing.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert {where: count(where) for where in QUERIES} == pushed
