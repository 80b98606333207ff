"""Other uses of streaming queries: copies, unions, state, other options after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from support import harness
from support.harness import Death, Sink, Stream, finish, numbered, until, values

from spark_mq import Queue

pytestmark = pytest.mark.on_stores


@pytest.mark.slow
def test_two_copies_of_a_checkpoint_run_at_once_and_each_message_lands_once(
    spark: Any, stream: Stream, queue: Queue, tmp_path: Path
) -> None:
    """A zombie and its successor, both at full speed: one of them is fenced, and what it had done,
    the other skips.
    """
    queue.publish(numbered(1))
    stream.run(lambda batch, _: None)
    copy = harness.copy_checkpoint(stream.checkpoint, tmp_path / "copy")
    queue.publish(numbered(12))
    sink, queries = Sink(), []
    for checkpoint in (stream.checkpoint, copy):
        driver = Stream(spark, queue, checkpoint, maxMessagesPerTrigger="2")
        queries.append(
            driver.start(
                driver.group.for_each_batch(sink.write, on_error="raise"), available_now=False
            )
        )
    until(lambda: not all(query.isActive for query in queries), "one of them is fenced")
    until(lambda: stream.group.ensure().stats().acked == 13, "the other does the work")
    fenced = [str(query.exception()) for query in queries if not query.isActive]
    assert len(fenced) == 1
    assert "StreamFenced" in fenced[0]
    assert sink.values == numbered(12)


@pytest.mark.delta
def test_a_new_checkpoint_on_an_old_sink_skips_nothing(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    """Its batches count from 1 again, as those did that the sink has seen.

    Its stream is another one.
    """
    out, reported = str(tmp_path / "out"), []

    def process(batch: Any, lease: Any) -> None:
        reported.append(lease.delta_options)
        batch.select("value").write.format("delta").mode("append").options(
            **lease.delta_options
        ).save(out)

    for number in range(2):
        queue.publish(numbered(6)[number * 3 : number * 3 + 3])
        Stream(spark, queue, tmp_path / f"checkpoint-{number}").settle_with(process)
    assert values(spark.read.format("delta").load(out)) == numbered(6)
    assert [options["txnVersion"] for options in reported] == ["1", "1"]
    assert queue.group("g").stats().acked == 6


@pytest.mark.slow
def test_a_union_of_a_queue_with_itself_delivers_each_message_once(
    stream: Stream, queue: Queue
) -> None:
    """Two streams of one group share its messages, as two workers do."""
    queue.publish(numbered(10))
    stream.options["maxMessagesPerTrigger"] = "3"
    seen: list[str] = []

    def process(batch: Any, lease: Any) -> None:
        seen.extend(values(batch))

    stream.settle_with(process, frame=stream.frame().union(stream.frame()))
    assert sorted(seen) == numbered(10)
    stats = stream.group.stats()
    assert (stats.acked, stats.leased, stats.ready) == (10, 0, 0)


@pytest.mark.slow
def test_a_stateful_query_counts_each_message_once_across_a_restart(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    """The state is Spark's, and is rolled back with the batch that died.

    The batch that comes again is the same one.
    """
    stream = Stream(spark, queue, tmp_path / "checkpoint", maxMessagesPerTrigger="4")
    counts: dict[str, int] = {}
    deaths = [1]

    def each(batch: Any, batch_id: int) -> None:
        rows = batch.collect()
        if deaths and any(row["count"] > 2 for row in rows):
            deaths.pop()
            raise Death
        counts.update({bytes(row.value).decode(): row["count"] for row in rows})

    def run() -> Any:
        counted = (
            stream.frame()
            .withWatermark("published_at", "1 hour")
            .groupBy(f.window("published_at", "1 day"), "value")
            .count()
        )
        query = counted.writeStream.outputMode("update").foreachBatch(each)
        return finish(harness.start(query, stream.checkpoint))

    queue.publish([name for name in "abc" for _ in range(4)])
    with pytest.raises(StreamingQueryException):
        run()
    run()
    queue.publish("a")
    run()
    assert not deaths
    # A window may end at midnight between the two: then the last one counts from 1.
    assert counts["b"] == counts["c"] == 4
    assert counts["a"] in (5, 1)
    until(
        lambda: stream.group.ensure().stats().leased + stream.group.stats().acked == 13,
        "all leased, the last batch maybe not acked yet",
    )
    assert stream.group.stats().ready == 0


@pytest.mark.slow
def test_other_limits_after_a_restart_leave_the_batch_that_is_replayed_as_it_was(
    spark: Any, queue: Queue, tmp_path: Path
) -> None:
    queue.publish(numbered(10))
    batches: list[list[str]] = []

    def process(batch: Any, lease: Any) -> None:
        batches.append(values(batch))
        if len(batches) == 1:
            raise Death

    before = Stream(
        spark, queue, tmp_path / "checkpoint", maxMessagesPerTrigger="4", minPartitions="1"
    )
    with pytest.raises(StreamingQueryException):
        before.settle_with(process)
    after = Stream(spark, queue, tmp_path / "checkpoint", maxMessagesPerTrigger="1",
                   maxBytesPerTrigger="1k", minPartitions="3",
                   visibilityTimeout="7m", workerId="another")  # fmt: skip
    after.settle_with(process)
    assert batches[:2] == [numbered(4), numbered(4)], "the same messages, also under other limits"
    assert all(len(batch) == 1 for batch in batches[2:])
    assert sorted(value for batch in batches[1:] for value in batch) == numbered(10)
    assert after.group.stats().acked == 10
