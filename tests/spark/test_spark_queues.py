"""One stream over several queues, in Spark.

Policies and verdicts on single rows in foreachBatch.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from support.harness import (
    PATIENCE,
    Sink,
    Stream,
    finish,
    forget_last_commit,
    make_queue,
    numbered,
    start,
    values,
)
from support.marks import slow
from support.tables import group_ledger_of

from spark_mq import Queue
from spark_mq.errors import LeaseLost


@pytest.fixture
def both(tmp_path: Path) -> tuple[Queue, Queue]:
    """Two queues with the messages 000 to 002 and 003 to 005."""
    pair = make_queue(tmp_path / "one"), make_queue(tmp_path / "two")
    for queue, first in zip(pair, (0, 3), strict=True):
        queue.publish(numbered(6)[first : first + 3])
    return pair


def frame(spark: Any, both: tuple[Queue, Queue], **options: Any) -> Any:
    one, two = (queue.group("g") for queue in both)
    return one.read_stream(spark, more_groups=[two], **options)


def each(both: tuple[Queue, Queue], process: Callable[..., Any], **options: Any) -> Any:
    one, two = (queue.group("g") for queue in both)
    return one.for_each_batch(process, more_groups=[two], **options)


def test_a_trigger_that_never_acks_is_refused(
    spark: Any, both: tuple[Queue, Queue], tmp_path: Path
) -> None:
    writer = frame(spark, both).writeStream.foreachBatch(lambda batch, number: None)
    writer = writer.option("checkpointLocation", str(tmp_path / "once")).trigger(once=True)
    with pytest.raises(StreamingQueryException, match=r"Use trigger\(availableNow=True\)"):
        finish(writer.start())
    assert both[0].group("g").stats().leased == 0


def test_a_function_serves_one_query_at_a_time(
    spark: Any, both: tuple[Queue, Queue], tmp_path: Path
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def process(batch: Any, lease: Any) -> None:
        entered.set()
        assert go_on.wait(PATIENCE)

    one, two = (Stream(spark, q, tmp_path / name) for q, name in zip(both, "ab", strict=True))
    function = each(both, process)
    first = one.start(function)
    try:
        assert entered.wait(PATIENCE)
        with pytest.raises(StreamingQueryException, match="once for each query"):
            two.run(function)
    finally:
        go_on.set()
    finish(first)
    assert one.group.stats().acked == 3
    two.run(function)


def test_a_stream_over_two_queues_names_each_rows_queue_and_settles_each_lease_in_its_own(
    spark: Any, both: tuple[Queue, Queue], tmp_path: Path
) -> None:
    seen: list[tuple[str, str]] = []
    sizes: list[int] = []
    sink = Sink()

    def process(batch: Any, lease: Any) -> None:
        rows = batch.select("queue", "value").collect()
        sizes.append(len(rows))
        seen.extend((row.queue, bytes(row.value).decode()) for row in rows)
        lease.reject(batch.where("CAST(value AS STRING) IN ('001', '004')"), error="never")
        sink.write(batch, lease)

    finish(
        start(
            frame(spark, both, maxMessagesPerTrigger=4).writeStream.foreachBatch(
                each(both, process)
            ),
            tmp_path / "c",
        )
    )
    assert sizes == [4, 2], "the limit is for the total"
    assert sorted(seen) == sorted(
        [(both[0].path, v) for v in numbered(3)] + [(both[1].path, v) for v in numbered(6)[3:]]
    )
    for queue in both:
        stats = queue.group("g").stats()
        assert (stats.acked, stats.dead, stats.ready, stats.leased) == (2, 1, 0, 0)
    assert [int(n) for _, n in sink.batches] == [1, 2]


@pytest.mark.slow
def test_a_batch_over_two_queues_that_dies_lands_once_in_an_idempotent_sink(
    spark: Any, both: tuple[Queue, Queue], tmp_path: Path
) -> None:
    sink = Sink()
    query = frame(spark, both).writeStream.foreachBatch(each(both, sink.write))
    finish(start(query, tmp_path / "c"))
    forget_last_commit(tmp_path / "c")
    both[0].publish(["006"])
    again = frame(spark, both).writeStream.foreachBatch(each(both, sink.write))
    finish(start(again, tmp_path / "c"))
    assert sink.values == numbered(7)
    assert [queue.group("g").stats().acked for queue in both] == [4, 3]


def test_a_batch_read_of_two_queues_shows_all_messages_with_their_queue(
    spark: Any, both: tuple[Queue, Queue]
) -> None:
    paths = json.dumps([queue.path for queue in both])
    found = (
        spark.read.format("spark_mq")
        .option("path", paths)
        .load()
        .groupBy("queue", "state")
        .count()
        .collect()
    )
    assert sorted((row["queue"], row["state"], row["count"]) for row in found) == sorted(
        (q.path, "unread", 3) for q in both
    )


def test_a_group_that_is_not_reported_ends_the_query_with_the_fix(
    spark: Any, both: tuple[Queue, Queue], tmp_path: Path
) -> None:
    one = both[0].group("g").for_each_batch(lambda batch, lease: None)
    with pytest.raises(StreamingQueryException, match="more_groups="):
        finish(start(frame(spark, both).writeStream.foreachBatch(one), tmp_path / "c"))


@pytest.mark.parametrize("path", ["[]", '["a", "a"]', "[1]", '["a"'])
def test_a_wrong_list_of_paths_is_refused(spark: Any, path: str) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="path"):
        spark.read.format("spark_mq").option("path", path).load().collect()


# -- verdicts on single rows


def test_rows_say_what_becomes_of_their_messages(stream: Stream) -> None:
    stream.queue.publish(numbered(6))

    def process(batch: Any, lease: Any) -> Any:
        return batch.selectExpr(
            "sequence",
            "CASE CAST(value AS STRING) WHEN '000' THEN 'ack' WHEN '001' THEN 'nack' WHEN '002' "
            "THEN 'reject' END AS outcome",
            "CASE CAST(value AS STRING) WHEN '001' THEN '1h' WHEN '003' THEN '0' END AS delay",
            "concat('why ', CAST(value AS STRING)) AS error",
        ).where("error <> 'why 005'")

    stream.run(stream.group.for_each_batch(process, on_error="nack"), frame=stream.frame().limit(6))
    reported = {(r.state, r.error) for r in group_ledger_of(stream.group).current()}
    assert ("dead", "why 002") in reported
    assert {("available", "why 001"), ("available", "why 003")} <= reported
    stats = stream.group.stats()
    assert (stats.acked, stats.dead, stats.delayed) == (2, 1, 1), (
        "000 as it said, and 005, of which nothing was said"
    )


@pytest.mark.parametrize(
    ("columns", "reported"),
    [
        (["sequence", "'later' AS outcome"], "ack, nack or reject"),
        slow(["sequence", "-1 AS delay"], "delay"),
        slow(["CAST(NULL AS BIGINT) AS sequence", "lease_id"], "null"),
        slow(["value"], "sequence"),
    ],
)
def test_rows_that_say_nothing_of_messages_end_the_query_and_settle_nothing(
    stream: Stream, columns: list[str], reported: str
) -> None:
    stream.queue.publish(numbered(2))
    with pytest.raises(StreamingQueryException, match=reported):
        stream.run(stream.group.for_each_batch(lambda batch, lease: batch.selectExpr(*columns)))
    assert stream.group.stats().leased == 2


def test_a_delay_column_overrides_the_backoff_of_a_nack(stream: Stream) -> None:
    stream.queue.publish(numbered(2))

    def process(batch: Any, lease: Any) -> None:
        lease.nack(batch.selectExpr("lease_id", "sequence", "3600 AS delay"))

    stream.settle_with(process)
    assert stream.group.stats().delayed == 2


# -- policies


def test_acked_first_a_batch_is_not_seen_again_though_it_fails(stream: Stream) -> None:
    stream.queue.publish(numbered(3))
    during: list[int] = []

    def fail(batch: Any, lease: Any) -> None:
        during.append(stream.group.stats().acked)
        raise ValueError("boom")

    stream.run(stream.group.for_each_batch(fail, ack="on_receive"))
    assert during == [3]
    assert stream.group.stats().acked == 3


@pytest.mark.slow
def test_acked_first_a_batch_that_others_may_have_by_now_is_not_handed_over(stream: Stream) -> None:
    stream.queue.publish(numbered(3))
    handed: list[Any] = []
    function = stream.group.for_each_batch(lambda batch, lease: handed.append(1), ack="on_receive")

    def late(batch: Any, batch_id: int) -> None:
        stream.group.seek("earliest")  # the lease is gone
        function(batch, batch_id)

    with pytest.raises(StreamingQueryException, match=LeaseLost.__name__):
        stream.run(late)
    assert handed == []


def test_manual_settles_only_what_the_function_does(spark: Any, tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "queue")
    queue.publish(numbered(3))
    stream = Stream(spark, queue, tmp_path / "c", ack="manual")

    def process(batch: Any, lease: Any) -> None:
        assert values(batch) == numbered(3)
        lease.ack(batch.where("CAST(value AS STRING) = '001'"))

    stream.run(stream.group.for_each_batch(process, ack="manual"))
    stats = stream.group.stats()
    assert (stats.acked, stats.leased) == (1, 2)


@pytest.mark.slow
def test_manual_a_failed_batch_is_settled_by_the_policy(stream: Stream) -> None:
    stream.queue.publish(numbered(3))

    def fail(batch: Any, lease: Any) -> None:
        raise ValueError("boom")

    stream.run(stream.group.for_each_batch(fail, on_error="reject", ack="manual"))
    assert stream.group.stats().dead == 3
