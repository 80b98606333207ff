"""``for_each_batch`` hands over ``batch`` by Spark's own Parquet reader, if that changes
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from both_readers import read_twice
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from support.harness import Stream, add_foreign_file, configured, make_queue, numbered, values
from support.limits import Limits
from support.marks import slow, slow_but
from support.spark_session import is_read_by_spark
from support.tables import messages_of

from spark_mq import Message, Queue
from spark_mq.errors import InvalidOption
from spark_mq.spark import lease_frame, private_spark


@pytest.fixture(autouse=True)
def small_batches_count(limits: Limits) -> None:
    """Spark also reads the few bytes of a test."""
    limits(plan_bytes=1)


def test_the_batch_is_read_by_spark_with_the_rows_and_types_and_order_of_the_source(
    stream: Stream, queue: Queue
) -> None:
    own = Message(b"\x00\xff", key="k", headers={"a": "b"}, message_id="m-1")
    queue.publish([own, Message("plain")])
    for size in (5, 50, 20):
        queue.publish([Message(text * 200, key=text) for text in numbered(size)])
    stream.options["maxMessagesPerTrigger"] = "60"
    first, second = read_twice(stream, by_spark=True)
    sequences = [row.sequence for row in first + second]
    assert sequences == sorted(sequences)
    assert stream.group.stats().acked == 77


@pytest.mark.parametrize("ack", [slow("on_success"), slow("on_receive"), "manual"])
def test_each_ack_policy_hands_over_the_same_rows(stream: Stream, queue: Queue, ack: str) -> None:
    for read in (False, True):
        queue.publish(numbered(6))
        read_twice(stream, by_spark=True, read=read, ack=ack)
    stats = stream.group.stats()
    assert (stats.acked, stats.leased) == ((0, 12) if ack == "manual" else (12, 0))


CHANGED: dict[str, Callable[[Any], Any]] = {
    "filter": lambda rows: rows.where("CAST(value AS STRING) >= '003'"),
    "new column": lambda rows: rows.selectExpr("*", "upper(key) AS upper"),
    "renamed": lambda rows: rows.withColumnRenamed("key", "name"),
    "other value": lambda rows: rows.selectExpr(
        "sequence", "lease_id", "CAST('x' AS BINARY) AS value"
    ),
    "watermark": lambda rows: rows.withWatermark("published_at", "1 minute"),
    "observed": lambda rows: rows.observe("seen", f.count("*").alias("rows")),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", slow_but({"filter"}, CHANGED))
def test_a_change_between_the_source_and_the_function_stays_in_the_batch(
    stream: Stream, queue: Queue, change: str
) -> None:
    queue.publish(numbered(6))
    (rows,) = read_twice(stream, by_spark=False, frame=CHANGED[change](stream.frame()))
    assert len(rows) == (3 if change == "filter" else 6)
    assert stream.group.stats().acked == 6


PRUNED: dict[str, Callable[[Stream], Any]] = {
    "select": lambda stream: stream.frame().select("value", "lease_id", "sequence"),
    "drop and alias": lambda stream: stream.frame().alias("a").drop("headers"),
    "schema": lambda stream: (
        stream.spark.readStream.format("spark_mq")
        .schema("sequence bigint, lease_id string, value binary")
        .options(**stream.options).load(stream.queue.path)
    ),
}  # fmt: skip


@pytest.mark.parametrize("pruned", slow_but({"schema"}, PRUNED))
def test_a_choice_of_columns_is_read_by_spark(stream: Stream, queue: Queue, pruned: str) -> None:
    queue.publish(numbered(6))
    frame = PRUNED[pruned](stream)
    (rows,) = read_twice(stream, by_spark=True, frame=frame)
    assert list(rows[0].asDict()) == frame.columns


def test_a_caller_that_changes_the_batch_keeps_its_change(stream: Stream, queue: Queue) -> None:
    """A checkpointed batch has the columns of the source and a plan of the same kind."""
    queue.publish(numbered(6))
    seen: list[tuple[list[str], bool]] = []
    each = stream.group.for_each_batch(
        lambda batch, lease: seen.append((values(batch), is_read_by_spark(batch))), on_error="raise"
    )
    stream.run(
        lambda batch, n: each(batch.where("CAST(value AS STRING) >= '003'").localCheckpoint(), n)
    )
    assert seen == [(numbered(6)[3:], False)]


def test_python_reads_the_batch_if_asked_to(stream: Stream, queue: Queue) -> None:
    queue.publish(numbered(3))
    read_twice(stream, by_spark=False, reader="python")
    with pytest.raises(InvalidOption, match="reader"):
        stream.group.for_each_batch(lambda batch, lease: None, reader="rust")


@pytest.mark.slow
def test_the_source_reads_small_batches_and_those_with_min_partitions(
    stream: Stream, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.publish(numbered(6))
    stream.options.update(minPartitions="2", maxMessagesPerTrigger="6")
    read_twice(stream, by_spark=False)
    monkeypatch.undo()
    del stream.options["minPartitions"]
    queue.publish(numbered(6))
    read_twice(stream, by_spark=False)
    assert stream.group.stats().acked == 12


@pytest.mark.slow
def test_a_union_is_read_by_the_source_and_several_queues_by_spark(
    spark: Any, tmp_path: Path
) -> None:
    queues = [make_queue(tmp_path / name) for name in ("one", "two")]
    for queue in queues:
        queue.publish(numbered(4))
    union = [Stream(spark, queue, tmp_path / "checkpoint", group="u") for queue in queues]
    several = Stream(
        spark, queues[0], tmp_path / "several", path=json.dumps([queue.path for queue in queues])
    )
    frame = union[0].frame().union(union[1].frame())
    read_twice(union[0], by_spark=False, frame=frame, more_groups=[union[1].group])
    frame = spark.readStream.format("spark_mq").options(**several.options).load()
    as_list = read_twice(several, by_spark=True, frame=frame, more_groups=[queues[1].group("g")])
    seen = {row.queue for rows in as_list for row in rows}
    assert seen == {queue.path for queue in queues}
    assert [queue.group(name).stats().acked for queue in queues for name in "ug"] == [4] * 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ns", "us"])
def test_a_file_whose_types_spark_reads_otherwise_is_left_to_the_source(
    stream: Stream, queue: Queue, kind: str
) -> None:
    """Spark refuses nanoseconds, and takes instants without a zone for others."""
    times = pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 2).cast(pa.timestamp(kind))
    rows = pa.table({"value": [b"x", b"y"], "published_at": times})
    add_foreign_file(queue, "foreign.parquet", rows)
    read_twice(stream, by_spark=False)
    assert stream.group.stats().acked == 2


def test_a_file_that_shrinks_after_the_lease_is_not_acked(stream: Stream, queue: Queue) -> None:
    """The source finds it, because Spark would read fewer rows without an error."""
    queue.publish(numbered(5))
    (path,) = Path(messages_of(queue).path).glob("*.parquet")
    whole = pq.read_table(path, partitioning=None)
    each = stream.group.for_each_batch(lambda batch, lease: batch.collect(), on_error="raise")

    def shrink(batch: Any, n: int) -> None:
        pq.write_table(whole.slice(0, 4), path)
        each(batch, n)

    with pytest.raises(StreamingQueryException, match="fewer than its commit says"):
        stream.run(shrink)
    assert stream.group.stats().acked == 0


@pytest.mark.slow
def test_a_store_that_spark_cannot_read_is_read_by_the_source(
    stream: Stream, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        queue.publish(numbered(3))
    stream.options["maxMessagesPerTrigger"] = "3"
    wrong = {"mode": "no such mode", "basePath": "nowhere://there"}
    monkeypatch.setattr(lease_frame, "_STRICT_READ_OPTIONS", wrong)
    assert len(read_twice(stream, by_spark=False)) == 2
    (warning,) = [one for one in caplog.records if "Spark cannot read" in one.getMessage()]
    assert warning.levelname == "WARNING"


class Renamed:
    """A query in the JVM, of a Spark that has given one of its private methods another name."""

    def __init__(self, query: Any, method: str) -> None:
        self._query, self._method = query, method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._query, f"{name}Anew" if name == self._method else name)


@pytest.mark.parametrize(
    "method", ["lastExecution", *map(slow, ("runId", "availableOffsets", "logicalPlan"))]
)
def test_other_private_classes_of_spark_cost_speed_and_give_one_warning(
    method: str,
    stream: Stream,
    queue: Queue,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(2):
        queue.publish(numbered(3))
    stream.options["maxMessagesPerTrigger"] = "3"
    monkeypatch.setattr(private_spark, "_warned", set())
    known = private_spark.RunningQuery
    monkeypatch.setattr(private_spark, "RunningQuery", lambda query: known(Renamed(query, method)))
    read_twice(stream, by_spark=None)
    assert stream.group.stats().acked == 6
    (warning,) = [record for record in caplog.records if "private classes" in record.getMessage()]
    assert warning.levelname == "WARNING"
    assert f"{method}Anew" in warning.getMessage()


def test_the_first_batch_finds_its_lease_without_a_job(
    spark: Any, stream: Stream, queue: Queue
) -> None:
    queue.publish(numbered(3))
    tracker, jobs = spark.sparkContext.statusTracker(), []

    def process(batch: Any, lease: Any) -> None:
        group = spark.sparkContext.getLocalProperty("spark.jobGroup.id")
        jobs.append(list(tracker.getJobIdsForGroup(group)))
        batch.count()
        jobs.append(list(tracker.getJobIdsForGroup(group)))

    with configured(spark, "spark.sql.adaptive.enabled", "false"):
        stream.settle_with(process)
    assert jobs[0] == []
    assert jobs[1]
