"""Publishing from Spark, and looking without leasing."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException
from support.harness import (
    configured,
    finish,
    forget_last_commit,
    look,
    numbered,
    publish,
    start,
    values,
    versions,
)

from spark_mq import Message, Queue


def received(queue: Queue) -> list[Message]:
    """All messages of a queue, taken by a group of its own."""
    lease = queue.group("check").lease("test", max_messages=1000)
    return [] if lease is None else lease.messages  # type: ignore[return-value]


def test_a_dataframe_is_published_in_one_commit_with_keys_headers_ids_and_times(
    spark: Any, queue: Queue
) -> None:
    before = versions(queue)["messages"]
    rows = spark.range(4, numPartitions=2).selectExpr(
        "concat('v', id) AS value",
        "concat('k', id) AS key",
        "concat('m', id) AS message_id",
        "map('h', CAST(id AS STRING)) AS headers",
        "timestamp_seconds(id) AS published_at",
    )
    publish(rows, queue.path)
    assert versions(queue)["messages"] == (before or 0) + 1
    got = sorted(received(queue), key=lambda message: message.message_id or "")
    assert [(m.message_id, m.value, m.key, m.headers) for m in got] == [
        (f"m{i}", f"v{i}".encode(), f"k{i}", {"h": str(i)}) for i in range(4)
    ]
    assert [m.published_at.timestamp() for m in got] == [0, 1, 2, 3]  # type: ignore[attr-defined]


def test_a_dataframe_gets_the_queues_default_times_where_it_has_none(
    spark: Any, tmp_path: Path
) -> None:
    queue = Queue.create(tmp_path / "delaying", delivery_delay="1h", message_ttl="1d")
    rows = spark.createDataFrame(
        [("default", None), ("own", datetime(2020, 1, 1, tzinfo=UTC))],
        "value string, deliver_at timestamp",
    )
    publish(rows.coalesce(1), queue.path)
    assert [message.value for message in received(queue)] == [b"own"]
    assert queue.group("check").stats().delayed == 1
    assert all(message.expires_at is not None for message in queue.peek())


def test_sql_writes_text_through_a_view_and_makes_no_table(spark: Any, queue: Queue) -> None:
    using = f"USING spark_mq OPTIONS (path '{queue.path}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW into_queue (key STRING, value STRING) {using}")
    spark.sql("INSERT INTO into_queue VALUES ('k', 'text')")
    assert [(message.key, message.value) for message in received(queue)] == [("k", b"text")]
    with pytest.raises(AnalysisException, match="Use CREATE TEMPORARY VIEW orders USING spark_mq"):
        spark.sql(f"CREATE TABLE no_queue {using}")
    spark.catalog.dropTempView("into_queue")


@pytest.mark.slow
def test_a_streaming_publish_that_is_replayed_publishes_each_batch_once(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    lines, checkpoint = tmp_path / "lines", tmp_path / "checkpoint"
    lines.mkdir()

    def publish_lines(name: str, text: str) -> None:
        (lines / name).write_text(text)
        writer = spark.readStream.text(str(lines)).writeStream.format("spark_mq")
        finish(start(writer.option("path", queue.path), checkpoint))

    publish_lines("1", "a\nb\n")
    forget_last_commit(checkpoint)
    published = versions(queue)["messages"]
    publish_lines("2", "c\n")
    assert sorted(m.value for m in received(queue)) == [b"a", b"b", b"c"]
    assert versions(queue)["messages"] == (published or 0) + 1, (
        "the replay committed nothing, the new batch once"
    )


# -- peek


def test_a_batch_read_shows_each_message_with_its_state_and_changes_nothing(
    spark: Any, queue: Queue
) -> None:
    first, *_ = queue.publish(numbered(6)).sequences
    group = queue.group("g")
    done, held, failed, bad, given = (group.lease(f"w{n}", max_messages=1) for n in range(5))
    done.ack()
    failed.nack([first + 2], delay="1h", error="not now")
    bad.reject(error="never")
    given.nack([first + 4])
    before = versions(queue)
    types = (
        "sequence LONG, state STRING, delivery_count INT, failure_count INT, worker_id STRING, "
        "reason STRING, error STRING"
    )
    peek = look(spark, queue, consumerGroup="g")
    expected = [
        (first, "acked", 1, 0, None, None, None),
        (first + 1, "leased", 1, 0, "w1", None, None),
        (first + 2, "available", 1, 1, None, None, "not now"),
        (first + 3, "dead", 1, 0, None, "rejected", "never"),
        (first + 4, "available", 1, 1, None, None, None),
        (first + 5, "unread", 0, 0, None, None, None),
    ]
    shown = spark.createDataFrame(expected, types)
    assert_df_equality(
        peek.select(shown.columns), shown, ignore_row_order=True, ignore_nullable=True
    )
    with configured(spark, "spark.sql.python.filterPushdown.enabled", "true"):
        peek = look(spark, queue, consumerGroup="g")
        leased = peek.where("state = 'leased'").first()
        assert values(peek) == numbered(6), "the conditions of one query hold for no other"
    assert leased.lease_id == held.lease_id
    assert leased.lease_expires_at is not None
    assert versions(queue) == before
