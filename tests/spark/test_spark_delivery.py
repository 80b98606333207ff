"""What a streaming query gets, when it is acked, and when it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from support.handles import until
from support.harness import Stream, finish, numbered, start, values
from support.having import having

from spark_mq import Message, Queue
from spark_mq.errors import InvalidSchema
from spark_mq.spark import ack

pytestmark = pytest.mark.on_stores


def test_available_now_drains_the_queue_in_batches_acks_all_of_it_and_ends(
    stream: Stream, queue: Queue
) -> None:
    queue.publish(numbered(5))
    queue.publish(numbered(4))
    stream.options["maxMessagesPerTrigger"] = "3"
    seen: list[list[str]] = []
    stream.run(lambda batch, _: seen.append(values(batch)))
    assert sorted(v for rows in seen for v in rows) == sorted(numbered(5) + numbered(4))
    assert [len(rows) for rows in seen] == [3, 3, 3]
    stats = stream.group.stats()
    assert (stats.acked, stats.leased, stats.ready) == (9, 0, 0)


@pytest.mark.delta
def test_on_commit_with_a_plain_delta_sink_delivers_and_acks(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(10))
    writer = stream.frame().select("value", "sequence").writeStream.format("delta")
    finish(start(writer.option("path", tmp_path / "out"), stream.checkpoint))
    assert values(spark.read.format("delta").load(str(tmp_path / "out"))) == numbered(10)
    assert stream.group.stats().acked == 10


def test_the_columns_tell_what_was_published_and_how_it_is_leased(
    stream: Stream, queue: Queue
) -> None:
    message = Message(b"\x00\xff", key="k", headers={"a": "b"}, message_id="m-1")
    receipt = queue.publish([message, Message("plain")])
    stream.options["workerId"] = "w7"
    rows: list[Any] = []
    stream.run(lambda batch, _: rows.extend(batch.orderBy("sequence").collect()))
    first, second = rows
    assert first == having(value=b"\x00\xff", key="k", headers={"a": "b"}, message_id="m-1")
    assert second == having(value=b"plain", key=None, headers=None)
    assert second.message_id not in (None, "m-1")
    assert [row.sequence for row in rows] == list(receipt.sequences)
    assert {(row.delivery_count, row.worker_id) for row in rows} == {(1, "w7")}
    assert first.lease_expires_at > first.published_at
    assert first.lease_id.split("/")[1] == "1"


def test_two_actions_in_one_batch_see_the_same_rows_and_lease_once(
    stream: Stream, queue: Queue
) -> None:
    queue.publish(numbered(20))
    stream.options["minPartitions"] = "3"
    seen: list[tuple[int, list[str], int]] = []

    def process(batch: Any, lease: Any) -> None:
        seen.append((batch.count(), values(batch), batch.rdd.getNumPartitions()))

    stream.settle_with(process)
    assert seen == [(20, numbered(20), 3)]
    assert stream.group.stats().acked == 20


def test_a_batch_whose_rows_a_filter_dropped_entirely_is_acked(
    stream: Stream, queue: Queue
) -> None:
    queue.publish(numbered(4))
    stream.options["maxMessagesPerTrigger"] = "2"
    reached: list[int] = []
    frame = stream.frame().where("CAST(value AS STRING) > '001'")
    stream.settle_with(lambda batch, lease: reached.append(batch.count()), frame=frame)
    assert reached == [2], "the function of a batch without a row has nothing to do"
    assert stream.group.stats().acked == 4


def test_a_continuous_query_picks_up_what_is_published_while_it_runs(
    stream: Stream, queue: Queue
) -> None:
    seen: list[str] = []
    query = stream.start(lambda batch, _: seen.extend(values(batch)), available_now=False)
    queue.publish("one")
    until(lambda: seen == ["one"], "the first message came")
    queue.publish("two")
    until(lambda: stream.group.stats().acked == 2, "the second message came and both were acked")
    assert seen == ["one", "two"]
    query.stop()


# -- settling from foreachBatch


def test_what_process_returns_is_settled_as_failed_and_the_rest_is_acked(
    stream: Stream, queue: Queue
) -> None:
    queue.publish(numbered(6))

    def process(batch: Any, lease: Any) -> Any:
        bad = batch.where("CAST(value AS STRING) IN ('002', '004')")
        return bad.selectExpr("lease_id", "sequence", "concat('bad ', value) AS error")

    stream.settle_with(process, on_error="reject")
    dead = {message.value: message.error for message in stream.group.peek(state="dead")}
    assert dead == {b"002": "bad 002", b"004": "bad 004"}
    assert stream.group.stats().acked == 4


@pytest.mark.parametrize("column", ["lease_id", "sequence"])
def test_the_error_of_a_null_names_its_column(spark: Any, queue: Queue, column: str) -> None:
    rows = spark.sql("SELECT 'a' AS lease_id, 1L AS sequence").withColumn(column, F.lit(None))
    with pytest.raises(InvalidSchema, match=f"null {column}") as caught:
        ack(rows, queue.group())
    assert caught.value.column == column


def test_rows_settled_inside_the_function_stay_as_they_were_settled(
    stream: Stream, queue: Queue
) -> None:
    """A settle reads no column that it has no use for."""
    queue.publish(numbered(5))

    def process(batch: Any, lease: Any) -> None:
        mine = batch.selectExpr(
            "lease_id", "sequence", "CAST(value AS STRING) AS v", "'paid' AS outcome"
        )
        late = mine.selectExpr("*", "'soon' AS delay")
        lease.reject(late.where("v = '000'"), error="never")
        lease.nack(mine.where("v = '001'"), delay="1h", error="not now")
        lease.nack(mine.where("v = '002'").selectExpr("*", "3600 AS delay"))
        assert lease.ack(late.where("v = '003'")).settled == 1

    stream.settle_with(process)
    states = {(m.value, m.state, m.error) for m in stream.group.peek() if m.state != "settled"}
    assert states == {
        (b"000", "dead", "never"), (b"001", "delayed", "not now"), (b"002", "delayed", None)
    }  # fmt: skip
    assert stream.group.stats().acked == 2
