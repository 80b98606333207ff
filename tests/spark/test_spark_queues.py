"""One stream over several queues, in Spark.

Also verdicts on single rows in foreachBatch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from support.harness import Sink, Stream, finish, make_queue, numbered, start, values

from spark_mq import Queue


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


def test_a_stream_over_two_queues_names_each_rows_queue_and_settles_each_lease_in_its_own(
    spark: Any, both: tuple[Queue, Queue], tmp_path: Path
) -> None:
    batches: list[list[tuple[str, str]]] = []
    sink = Sink()

    def process(batch: Any, lease: Any) -> None:
        rows = batch.select("queue", "value").collect()
        assert sorted(lease.read().select("queue", "value").collect()) == sorted(rows)
        batches.append([(row.queue, bytes(row.value).decode()) for row in rows])
        lease.reject(batch.where("CAST(value AS STRING) IN ('001', '004')"), error="never")
        sink.write(batch, lease)

    writer = frame(spark, both, maxMessagesPerTrigger=4).writeStream
    finish(start(writer.foreachBatch(each(both, process)), tmp_path / "c"))
    assert [len(rows) for rows in batches] == [4, 2], "the limit is for the total"
    one, two = (queue.path for queue in both)
    assert sorted(row for rows in batches for row in rows) == [
        *((one, value) for value in numbered(3)),
        *((two, value) for value in numbered(6)[3:]),
    ]
    for queue in both:
        stats = queue.group("g").stats()
        assert (stats.acked, stats.dead, stats.ready, stats.leased) == (2, 1, 0, 0)
    assert [int(n) for _, n in sink.batches] == [1, 2]


@pytest.mark.slow
def test_a_batch_of_a_union_that_reads_one_queue_settles_only_that_ones_lease(
    spark: Any, both: tuple[Queue, Queue], tmp_path: Path
) -> None:
    """The other's stream stands at a batch that is done, and maybe was a replay: neither is this
    batch's affair.
    """
    one, two = (Stream(spark, queue, tmp_path / "checkpoint") for queue in both)
    leases: list[tuple[str, ...]] = []

    def process(batch: Any, lease: Any) -> None:
        leases.append(lease.lease_ids)
        if len(leases) == 1:
            two.queue.publish("006")
        elif len(leases) == 2:
            assert values(batch) == ["006"]
            assert lease.delta_options["txnVersion"] == "2"

    function = each(both, process, on_error="raise")
    for _ in range(2):
        one.run(function, frame=one.frame().union(two.frame()))
    assert [len(ids) for ids in leases] == [2, 1]
    assert (one.group.stats().acked, two.group.stats().acked) == (3, 4)


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
    states = {(message.value, message.state, message.error) for message in stream.group.peek()}
    assert states >= {
        (b"001", "delayed", "why 001"),
        (b"002", "dead", "why 002"),
        (b"003", "ready", "why 003"),
    }
    assert stream.group.stats().acked == 2, "000 as it said, and 005, of which nothing was said"


def test_rows_with_another_outcome_end_the_query_and_settle_nothing(stream: Stream) -> None:
    def process(batch: Any, lease: Any) -> Any:
        return batch.selectExpr("sequence", "'later' AS outcome")

    stream.queue.publish(numbered(2))
    with pytest.raises(StreamingQueryException, match="ack, nack or reject"):
        stream.run(stream.group.for_each_batch(process))
    assert stream.group.stats().leased == 2
