"""SQL over a queue: the table functions, and the filters of a batch read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, Not
from support.handles import again, housekeep
from support.harness import make_queue
from support.people import own_user
from support.tables import ledgers_of

from spark_mq import GroupStats, Message, Queue
from spark_mq.ledger.ranges import Range
from spark_mq.operations import history
from spark_mq.spark import register
from spark_mq.spark.options import ReadOptions
from spark_mq.spark.peek_reader import PeekFilters, PeekReader
from spark_mq.spark.schema import READ_SCHEMA
from spark_mq.spark.tables import STATS_SCHEMA
from spark_mq.testing import ManualClock


@pytest.fixture
def busy(tmp_path: Path) -> Queue:
    """Five files of two messages. Of the first one was rejected, and one is acked."""
    queue = make_queue(tmp_path / "orders", retry_delay="15m")
    for n in range(5):
        queue.publish([f"{n}a", f"{n}b"])
    group = queue.group("billing")
    lease = group.lease("worker-1", max_messages=2)
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
    assert read_rows(busy, EqualTo(("state",), "acked")) == 1
    assert read_rows(busy, EqualTo(("state",), "dead_lettered")) == 0
    assert read_rows(busy, EqualTo(("lease_id",), "unknown")) == 0
    assert read_rows(busy, LessThanOrEqual(("sequence",), 2 << 32)) == 3
    assert read_rows(busy, EqualTo(("value", "state"), "leased")) == 10
    assert read_rows(busy, Not(EqualTo(("state",), "leased"))) == 10
    late = datetime(2100, 1, 1, tzinfo=UTC)
    assert read_rows(busy, GreaterThan(("lease_expires_at",), late)) == 0
    assert read_rows(busy, GreaterThan(("lease_expires_at",), late.replace(tzinfo=None))) == 10


def test_an_empty_list_of_sequences_wants_nothing() -> None:
    wanted = PeekFilters.of([In(("sequence",), ())])
    assert not wanted.keep(Range(0, 5, "unread", message_count=6))


ENDED = {
    "acked": (1, 0, None, None),
    "dead_lettered": (2, 1, "rejected", "no customer"),
    "dropped": (1, 0, "requested", None),
    "skipped": (0, 0, None, None),
    "expired": (0, 0, None, None),
}
"""The deliveries, failures, reason and error of a message that ended in each way."""


@pytest.fixture
def ended(tmp_path: Path) -> Queue:
    """A queue with a message for each outcome, and two that are waiting and unread."""
    clock = ManualClock(datetime.now(UTC))
    queue = make_queue(tmp_path / "orders", clock=clock, retry_delay=0)
    group = queue.group("billing")
    for name in ("acked", "dead_lettered", "dropped"):
        queue.publish(name)
    lease = group.lease("w", max_messages=3)
    acked, bad, dropped = (message.sequence for message in lease.messages)
    lease.nack([bad], error="first")
    lease.ack([acked])
    group.discard([dropped], force=True)
    retried = group.lease("w")
    retried.reject(error="no customer")
    queue.sweep()  # a seek skips messages that are dead, too
    queue.publish(Message("expired", expires_at=timedelta(seconds=5)))
    clock.advance("1m")
    group.expire()
    queue.publish("skipped")
    group.seek("latest")
    queue.publish(["available", "unread"])
    held = group.lease("w")
    held.nack(delay="1h")
    return queue


def seen(spark: Any, queue: Queue, where: str) -> dict[str, tuple[Any, ...]]:
    """The state of each message by its value, with the counts, the reason and the error."""
    frame = spark.read.format("spark_mq").option("consumerGroup", "billing").load(queue.path)
    columns = ("state", "delivery_count", "failure_count", "reason", "error")
    rows = frame.where(where).selectExpr("cast(value AS string) AS name", *columns).collect()
    return {row["name"]: tuple(row[name] for name in columns) for row in rows}


def test_a_read_shows_how_each_message_ended_also_once_a_sweep_has_cleaned(
    pushing: Any, ended: Queue
) -> None:
    expected = {name: (name, *kept) for name, kept in ENDED.items()}
    expected["available"] = ("available", 1, 1, None, None)
    expected["unread"] = ("unread", 0, 0, None, None)
    for _ in range(2):
        assert seen(pushing, ended, "true") == expected
        for state in ENDED:
            assert seen(pushing, ended, f"state = '{state}'") == {state: expected[state]}
        assert seen(pushing, ended, "state IN ('dropped', 'skipped')").keys() == {
            "dropped", "skipped",
        }  # fmt: skip
        assert seen(pushing, ended, "error = 'no customer'").keys() == {"dead_lettered"}
        assert seen(pushing, ended, "state = 'settled'") == {}
        # A sweep archives the events. Its cleaning drops the commits that had them.
        for _ in range(20):
            ended.group("other").configure(max_in_flight=1)
            ended.group("other").configure(max_in_flight=2)
        housekeep(ended, keep_versions=1, keep_seconds=0)
    assert list(ledgers_of(again(ended)).commits(1, 10)) == []
    assert read_rows(ended, EqualTo(("state",), "dead_lettered")) == 1
    assert read_rows(ended, EqualTo(("state",), "acked")) == 1
    assert read_rows(ended) == 7


def test_a_seek_back_makes_ended_messages_unread_again(pushing: Any, ended: Queue) -> None:
    ended.group("billing").seek("earliest")
    first = ended.group("billing").lease("w")
    first.ack()
    found = seen(pushing, ended, "true")
    assert found["acked"][:2] == ("acked", 1)
    assert {found[name][0] for name in ("dead_lettered", "dropped", "skipped")} == {"unread"}


def test_a_group_of_the_same_name_does_not_show_the_ends_of_the_one_before(
    pushing: Any, ended: Queue
) -> None:
    ended.sweep()
    ended.drop_group("billing")
    ended.group("billing", start="latest").ensure()
    assert {one[0] for one in seen(pushing, ended, "true").values()} == {"settled"}


def test_the_history_is_read_only_for_messages_that_may_have_ended(
    ended: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    real = history.read_group_history

    def read(group: Any, columns: Any) -> Any:
        looks.append(group.name)
        return real(group, columns)

    monkeypatch.setattr(history, "read_group_history", read)
    assert read_rows(ended, In(("state",), ("leased", "available", "unread"))) == 2
    assert read_rows(ended, EqualTo(("worker_id",), "w")) == 0
    assert looks == []
    read_rows(ended, EqualTo(("state",), "acked"))
    assert looks == ["billing"]
